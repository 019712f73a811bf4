"""Buckets of lengths on the real server: every request gets its own answer, whatever it was padded beside."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.model.lengths import padded_length
from shiplift.runtime.records.precision import Engine
from shiplift.runtime.records.serving import Padding
from shiplift.runtime.serving.machine.server import Server
from tests.integration.backends import ask, model, put, server_for
from tests.integration.conftest import until

pytestmark = pytest.mark.integration
ENGINES = ("onnxruntime", "openvino")  # ensembles of trees take no lengths
BUCKETS = (8, 16, 40)
PADDING = Padding(pad={"ids": -7, "mask": 0, "vectors": 0.5}, cut=("seen", "masked"), buckets=BUCKETS)
Arrays = dict[str, NDArray[Any]]


def tokens() -> Any:
    """Masks ids and vectors, sums the ids, and says what length it was run at (`width`)."""
    nodes = [
        helper.make_node("Mul", ["ids", "mask"], ["seen"]),
        helper.make_node("ReduceSum", ["seen", "one"], ["total"], keepdims=1),
        helper.make_node("Cast", ["mask"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["floats", "two"], ["column"]),
        helper.make_node("Mul", ["vectors", "column"], ["masked"]),
        helper.make_node("Shape", ["ids"], ["length"], start=1),
        helper.make_node("Mul", ["total", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "length"], ["width"]),
    ]
    constants = {"zero": [0], "one": [1], "two": [2]}
    return model(
        nodes,
        [("ids", "INT64", ["n", "m"]), ("mask", "INT64", ["n", "m"]), ("vectors", "FP32", ["n", "m", 3])],
        [
            ("seen", "INT64", ["n", "m"]),
            ("total", "INT64", ["n", 1]),
            ("masked", "FP32", ["n", "m", 3]),
            ("width", "INT64", ["n", 1]),
        ],
        tuple(numpy_helper.from_array(np.array(value, np.int64), name) for name, value in constants.items()),
    )


def request(rng: np.random.Generator, rows: int, length: int) -> Arrays:
    return {
        "ids": rng.integers(1, 1000, (rows, length)),
        "mask": np.ones((rows, length), np.int64),
        "vectors": rng.normal(size=(rows, length, 3)).astype(np.float32),
    }


@contextmanager
def tokens_served(work: Path, engine: Engine, **options: Any) -> Iterator[Server]:
    defaults: dict[str, Any] = {"padding": PADDING, "buckets": BUCKETS, "instances": 2, "delay_us": 3000}
    put(work, tokens(), engine=engine, **defaults | options)
    with server_for(work) as (server, client):
        client.load("m")
        yield server


def all_at_once(server: Server, requests: list[Arrays]) -> tuple[list[Any], Any]:
    """The answers, and the server's counts once all rows are in them: they are counted after they are answered."""
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda arrays: ask(server, arrays), requests))
    client, rows = grpc.InferenceServerClient(server.grpc), sum(len(arrays["ids"]) for arrays in requests)

    def counted() -> Any:
        stats = client.get_inference_statistics("m").model_stats[0]
        return stats if stats.inference_count >= rows else None

    return answers, until(counted)


@pytest.mark.parametrize("engine", ENGINES)
def test_requests_of_every_length_each_get_their_own_answer_run_at_their_bucket(engine: Engine, tmp_path: Path) -> None:
    """Rows, lengths in, at and beyond the buckets, and no length at all, in every mixture that 16 clients make."""
    rng = np.random.default_rng(0)
    lengths = [*range(1, 46), *rng.choice([1, 7, 8, 9, 16, 17, 39, 40, 41, 60], 255)]
    requests = [request(rng, int(rows), int(m)) for m, rows in zip(lengths, rng.integers(1, 5, 300), strict=True)]
    with tokens_served(tmp_path, engine) as server:
        answers, stats = all_at_once(server, requests)
    for arrays, answer in zip(requests, answers, strict=True):
        length = arrays["ids"].shape[1]
        assert (answer.as_numpy("seen") == arrays["ids"]).all()
        assert (answer.as_numpy("total") == arrays["ids"].sum(1, keepdims=True)).all()
        assert np.allclose(answer.as_numpy("masked"), arrays["vectors"], rtol=1e-6)
        assert (answer.as_numpy("width") == padded_length(length, BUCKETS)).all()
    assert stats.inference_count == sum(len(arrays["ids"]) for arrays in requests)
    assert stats.execution_count < len(requests)


@pytest.mark.parametrize("engine", ENGINES)
def test_different_lengths_share_an_execution_with_buckets_and_never_without(engine: Engine, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    requests = [request(rng, 1, length) for length in rng.permutation(np.arange(1, 33))]
    executions = []
    for name, buckets in (("with", (40,)), ("without", ())):  # a server each: it counts the requests of `m`
        (tmp_path / name).mkdir()
        with tokens_served(tmp_path / name, engine, buckets=buckets, delay_us=100_000) as server:
            executions.append(all_at_once(server, requests)[1].execution_count)
    assert executions[1] == len(requests)
    assert executions[0] < len(requests) / 2


@pytest.mark.parametrize("engine", ENGINES)
def test_a_request_whose_inputs_differ_in_length_fails_alone(engine: Engine, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    good = [request(rng, 1, 5) for _ in range(24)]
    bad = request(rng, 1, 5) | {"mask": np.ones((1, 4), np.int64)}

    def outcome(arrays: Arrays) -> Any:
        try:
            return ask(server, arrays).as_numpy("seen").tolist()
        except InferenceServerException as error:
            return str(error)

    with tokens_served(tmp_path, engine) as server, ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(outcome, [each for arrays in good for each in (arrays, bad)]))
    assert outcomes[::2] == [arrays["ids"].tolist() for arrays in good]
    assert all("a different length than the request's others" in text for text in outcomes[1::2])


WITHOUT_SENSE = [
    ({"length_buckets": "16,8"}, "length_buckets is not a rising list"),
    ({"length_buckets": "eight"}, "length_buckets is not a rising list"),
    ({"length_buckets": ",".join(map(str, range(1, 34)))}, "length_buckets has more than 32 lengths"),
    ({"length_buckets": " " * 600 + "8"}, "length_buckets is longer than 511 characters"),
    ({"length_pad.ids": "0.5"}, "length_pad.ids is not a number of the input's data type"),
    ({"length_pad.ids": "1e19"}, "length_pad.ids is not a number of the input's data type"),
    ({"length_pad.vectors": "1e39"}, "length_pad.vectors is not a number of the input's data type"),
    ({"length_pad.vectors": "nan"}, "length_pad.vectors is not a number of the input's data type"),
]


@pytest.mark.parametrize("engine", ENGINES)
def test_settings_that_make_no_sense_are_refused_at_load(engine: Engine, tmp_path: Path) -> None:
    """Or nothing says what to fill inputs up with."""
    for number, (settings, _) in enumerate(WITHOUT_SENSE):
        put(tmp_path, tokens(), f"m{number}", engine=engine, padding=PADDING, buckets=BUCKETS, settings=settings)
    put(tmp_path, tokens(), "unpadded", engine=engine, settings={"length_buckets": "8"})
    put(tmp_path, tokens(), "right", engine=engine, padding=PADDING, buckets=BUCKETS)
    with server_for(tmp_path) as (_, client):
        for number, (_, why) in enumerate(WITHOUT_SENSE):
            with pytest.raises(ServerFailed, match=why):
                client.load(f"m{number}")
        with pytest.raises(ServerFailed, match=r"no length_pad\.INPUT says"):
            client.load("unpadded")
        client.load("right")


PADS = [
    ("UINT8", "255", True),
    ("UINT8", "256", False),
    ("UINT8", "-1", False),
    ("INT8", "-128", True),
    ("INT8", "128", False),
    ("INT32", "2147483647", True),
    ("INT32", "2147483648", False),
    ("BOOL", "1", True),
    ("BOOL", "2", False),
]


def test_what_fills_an_input_up_must_fit_its_data_type(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    for datatype, value, _ in PADS:
        graph = model(nodes, [("x", datatype, ["n", "m"])], [("y", datatype, ["n", "m"])])
        settings = {"length_buckets": "4", "length_pad.x": value}
        put(tmp_path, graph, f"{datatype}{value}", engine="onnxruntime", settings=settings)
    with server_for(tmp_path) as (_, client):
        for datatype, value, fits in PADS:
            if fits:
                client.load(f"{datatype}{value}")
            else:
                with pytest.raises(ServerFailed, match=r"length_pad\.x is not a number of the input's data type"):
                    client.load(f"{datatype}{value}")
