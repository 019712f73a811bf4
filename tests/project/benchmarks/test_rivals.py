"""The table of rivals, what is read from config.pbtxt and Model Analyzer, and the accounting of CPU time."""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as pb

from benchmarks import load, protocols, server_comparison
from benchmarks.bare import CLIENTS, bare, batch_sizes, openvino_properties
from benchmarks.model_analyzer import best
from benchmarks.plot import colour
from benchmarks.ratios import Window
from benchmarks.rivals.table import EMBEDDERS, RIVALS, SKIPPED, Rival, Start
from benchmarks.server_comparison import SIDES, Effort, chosen_sides
from benchmarks.sides import Side, triton_package
from benchmarks.subjects import Champion, Failed, Subject
from shiplift.runtime.records.process import Process

FOLDER = Path(protocols.__file__).parent / "rivals"
SCORES = np.asarray([[0.25, -1.5, 3.0]], np.float32)


def subject(folder: Path, *, torch: bool = True) -> Subject:
    return Subject(
        name="x",
        folder=folder,
        samples=np.zeros((2, 4), np.float32),
        answers=SCORES.repeat(2, 0),
        about="",
        torch=torch,
    )


# --- the table ------------------------------------------------------------------------------------------------------


def test_names_are_unique_and_what_is_skipped_is_in_the_table() -> None:
    assert len(set(SIDES)) == len(SIDES)
    assert set(SKIPPED) <= {rival.name for rival in RIVALS}
    assert len({colour(name) for name in SIDES}) == len(SIDES)


@pytest.mark.parametrize("rival", [*RIVALS, *EMBEDDERS], ids=lambda rival: rival.name)
def test_every_rival_has_its_files_and_settings_that_differ(rival: Rival, tmp_path: Path) -> None:
    assert (FOLDER / rival.requirements).is_file()
    assert 0 < rival.quick <= len(rival.tries)
    assert len({str(sorted(settings.items())) for settings in rival.tries}) == len(rival.tries)
    champion = Champion(name="x", logged=tmp_path, report={})
    for settings in rival.tries:
        start = Start(python="PYTHON", subject=subject(tmp_path), champion=champion, settings=settings, port=1234)
        words = rival.command(start)
        assert words[0] == "PYTHON"
        modules = [word.split(":")[0] for word in words if word.startswith("benchmarks.rivals.")]
        assert modules or rival.name == "mlflow-serve"  # it serves the logged model by itself
        assert all((FOLDER / f"{module.rpartition('.')[2]}.py").is_file() for module in modules)


def test_a_model_without_a_torch_form_has_no_rival_in_torch(tmp_path: Path) -> None:
    unfit = {rival.name for rival in RIVALS if rival.unfit(subject(tmp_path, torch=False))}
    assert unfit == {rival.name for rival in RIVALS if rival.precision == "bf16"}
    assert not any(rival.unfit(subject(tmp_path)) for rival in RIVALS)


def test_sides_are_chosen_by_name() -> None:
    assert chosen_sides("bentoml,triton-default") == {"bentoml", "triton-default"}
    with pytest.raises(argparse.ArgumentTypeError, match=r"no side torchserve; the sides are triton-default"):
        chosen_sides("bentoml,torchserve")


# --- what breaks down ------------------------------------------------------------------------------------------------


def side(name: str) -> Side:
    return Side(
        name=name, port=1, process=Process(pid=1, started_at=0.0), requests=(), check={}, difference=0.0, settings={}
    )


def measured(broken: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[str, int, int]], dict[str, str]]:
    """The windows of a benchmark whose side `broken` fails with 16 clients."""

    def measure(side: Side, _others: list[Side], concurrency: int, round_: int, _effort: Effort, _work: Path) -> Window:
        if side.name == broken and concurrency == 16:
            raise Failed("no correct answer")
        return Window(
            side=side.name,
            concurrency=concurrency,
            round=round_,
            requests=1,
            errors=0,
            server_cores={},
            server_cpu_ms=1,
            client_cores=0,
            others_cores=0,
            throughput_per_s=1,
            p50_ms=1,
            p99_ms=1,
        )

    monkeypatch.setattr(server_comparison, "measure", measure)
    failed: dict[str, str] = {}
    effort = Effort(rounds=2, concurrencies=(1, 16))
    windows = list(server_comparison.rounds([side("shiplift"), side("bentoml")], effort, Path(), failed))
    return [(window.side, window.concurrency, window.round) for window in windows], failed


def test_a_rival_that_breaks_down_is_left_out_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    windows, failed = measured("bentoml", monkeypatch)
    assert [window for window in windows if window[0] == "bentoml"] == [("bentoml", 1, 0)]
    assert len(windows) == 5
    assert failed == {"bentoml": "with 16 clients: no correct answer"}
    assert server_comparison.described(side("bentoml"), failed["bentoml"])["failed"] == failed["bentoml"]


def test_nothing_is_compared_with_a_shiplift_that_breaks_down(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Failed, match="no correct answer"):
        measured("shiplift", monkeypatch)


# --- protocols ------------------------------------------------------------------------------------------------------


def test_base64_bodies_hold_the_sample_and_the_scores() -> None:
    sample = np.arange(4, dtype=np.float32)
    scores = protocols._text(SCORES)
    bento, mlserver = protocols.base64_protocol(SCORES), protocols.mlserver_protocol(SCORES)
    text = protocols._text(sample)
    assert text.encode() in bento.encode(sample)[1]
    assert text.encode() in mlserver.encode(sample)[1]
    assert (bento.decode(f'["{scores}"]'.encode(), {}) == SCORES).all()
    assert (mlserver.decode(f'{{"outputs": [{{"data": ["{scores}"]}}]}}'.encode(), {}) == SCORES).all()


def test_an_embedding_is_read_from_an_answer_in_base64_and_the_text_is_asked_as_it_is() -> None:
    protocol = protocols.embeddings_protocol()
    headers, body = protocol.encode(np.array(['a "text"'])[0])
    assert headers["Content-Type"] == "application/json"
    assert json.loads(body) == {"model": "model", "input": ['a "text"'], "encoding_format": "base64"}
    answer = {"data": [{"embedding": protocols._text(SCORES)}], "id": "infinity-1"}
    assert (protocol.decode(json.dumps(answer).encode(), {}) == SCORES).all()


# --- CPU time -------------------------------------------------------------------------------------------------------


@given(
    name=st.binary(max_size=15).filter(lambda name: b"\n" not in name),
    user=st.integers(0, 2**40),
    system=st.integers(0, 2**40),
)
def test_ticks_are_read_past_any_name(name: bytes, user: int, system: int) -> None:
    others = b"S 1 1 1 0 -1 4194304 10 0 0 0 %d %d 7 8 20 0 1 0 100" % (user, system)
    assert load.cpu_ticks(b"42 (" + name + b") " + others) == user + system


def test_only_processes_that_lived_all_the_time_count() -> None:
    assert load.used_between({1: 1.0, 2: 5.0}, {1: 1.5, 3: 9.0}) == 0.5
    assert load.cpu_seconds([2**22 + 1]) == {}  # above the largest PID of Linux


def test_the_cpu_time_of_a_process_is_what_it_used() -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    busy = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        seconds = load.cpu_seconds([busy.pid, os.getpid()])
        assert 0.28 <= seconds[busy.pid] < 2
        assert seconds[os.getpid()] <= time.process_time() + 0.1
    finally:
        busy.kill()
        busy.communicate()


# --- the bare rate and Model Analyzer -------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "sizes"), [(0, [1]), (1, [1]), (6, [1, 2, 4]), (64, [1, 2, 4, 8, CLIENTS])])
def test_batches_are_those_that_the_package_takes_and_the_clients_fill(most: int, sizes: list[int]) -> None:
    assert batch_sizes(most) == sizes


def test_openvino_runs_with_what_the_package_says_and_the_backends_defaults() -> None:
    text = 'parameters [{key: "HINT_BF16" value {string_value: "YES"}}, {key: "NUM_STREAMS" value {string_value: "2"}}]'
    assert openvino_properties(text_format.Parse(text, pb.ModelConfig())) == {
        "INFERENCE_PRECISION_HINT": "bf16",
        "NUM_STREAMS": "2",
        "INFERENCE_NUM_THREADS": "0",
        "PERFORMANCE_HINT": "LATENCY",
    }
    assert openvino_properties(pb.ModelConfig())["INFERENCE_PRECISION_HINT"] == "f32"


def doubling(folder: Path) -> Path:
    """Writes an ONNX model that adds its input to itself."""
    import onnx
    from onnx import TensorProto, helper

    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("input", "output")]
    graph = helper.make_graph([helper.make_node("Add", ["input", "input"], ["output"])], "x", sides[:1], sides[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_each_engine_has_a_bare_rate(engine: str, tmp_path: Path) -> None:
    doubling(tmp_path)
    package = triton_package(subject(tmp_path), tmp_path / "repository", max_batch=2, instances=2)
    file = package / "config.pbtxt"
    file.write_text(file.read_text().replace('backend: "onnxruntime"', f'backend: "{engine}"'))
    alone = bare(package, np.ones((3, 4), np.float32), window_s=0.02, windows=2)
    assert (alone.engine, alone.settings["instances"], set(alone.samples_per_s)) == (engine, "2", {1, 2})
    assert alone.best == max(alone.samples_per_s.values()) > 100


def test_a_package_of_another_backend_has_no_bare_rate(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").write_text('backend: "python"')
    with pytest.raises(ValueError, match="of onnxruntime, openvino, not of backend 'python'"):
        bare(tmp_path, np.ones((1, 4), np.float32), window_s=0.01, windows=1)


def test_the_default_package_leaves_instances_and_batching_to_triton(tmp_path: Path) -> None:
    doubling(tmp_path)
    config = text_format.Parse(
        (triton_package(subject(tmp_path), tmp_path / "r") / "config.pbtxt").read_text(), pb.ModelConfig()
    )
    assert (config.backend, config.max_batch_size, len(config.instance_group)) == ("onnxruntime", 64, 0)
    assert config.HasField("dynamic_batching")
    assert not config.parameters


def test_model_analyzers_best_row_is_the_one_with_the_highest_throughput() -> None:
    table = (
        "Model,Instance Group,Max Batch Size,Throughput (infer/sec)\n"
        "m,1:CPU,8,900.5\nm,2:CPU,32,1200.25\nm,4:CPU,64,1100\n"
    )
    found = best(table, 12.0)
    assert (found.max_batch, found.instances, found.reported, found.seconds, found.why) == (32, 2, 1200.25, 12.0, "")
