"""A package for `engine: pytorch` is run, as NVIDIA's server gets it, by a real Triton and a real PyTorch on a CPU."""

import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tritonclient import grpc

from shiplift.runtime.model.conversion import postprocess
from shiplift.runtime.model.conversion.torch_models import TorchModule
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.serving.machine.server import Server, private_server
from shiplift.runtime.serving.triton.client import TritonClient, check_golden
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.serving.triton.config import ModelDescription, positional
from shiplift.runtime.serving.triton.environment import ServerEnvironment, default_root
from shiplift.runtime.serving.triton.repository import golden_arrays, install, write_package
from shiplift.runtime.spec.model import Conversion
from shiplift.runtime.spec.serving_settings import Serving
from tests.integration.conftest import until

pytestmark = pytest.mark.integration
BACKEND = Path(__file__).with_name("pytorch_backend.py")
CLASSES = 5
WARM_UP = 9  # samples: one, and a full batch of eight
X = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
OUTPUTS = {
    "softmax": (TensorSpec(name="probabilities", datatype="FP32", shape=(-1, CLASSES)),),
    "argmax": (TensorSpec(name="label", datatype="INT64", shape=(-1, 1)),),
    "top_k": (
        TensorSpec(name="top_scores", datatype="FP32", shape=(-1, 2)),
        TensorSpec(name="top_labels", datatype="INT64", shape=(-1, 2)),
    ),
}


def with_pytorch(root: Path) -> ServerEnvironment:
    """The bundled server's environment with one more backend; the server is confined to what it links to."""
    real = ServerEnvironment(default_root())
    backend = root / "backends" / "pytorch"
    backend.mkdir(parents=True)
    for entry in real.root.iterdir():
        if entry.name != "backends":
            (root / entry.name).symlink_to(entry)
    for name, to in (("python", real.backends / "python"), ("packages", Path(sysconfig.get_path("purelib")))):
        (root / name).symlink_to(to)  # the server may read what the root's own entries link to
        (root / "backends" / name).symlink_to(to)
    (backend / "model.py").write_bytes(BACKEND.read_bytes())
    return ServerEnvironment(root)


@contextmanager
def served(
    work: Path, step: str, *, delay_us: int = 0, max_batch: int = 8
) -> Iterator[tuple[Server, Signature, Arrays]]:
    """Serves version 3 of the model `m`, exported with one post-processing step."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, CLASSES)).eval()
    inputs = (TensorSpec(name="x", datatype="FP32", shape=(-1, 4)),)
    conversion = Conversion(torchscript=True, postprocess=(step,), top_k=2)
    original = TorchModule(module, inputs, ())
    expected = postprocess.in_numpy(original.answer({"x": X}), conversion.postprocess, conversion.top_k)
    (work / "script").mkdir(parents=True)
    original.to_torchscript({"example": {"x": X}}, {"example": expected}, work / "script" / "model.pt", conversion)
    signature, _ = positional(Signature(inputs=inputs, outputs=OUTPUTS[step]))
    model = ModelDescription(
        name="m",
        version=3,
        signature=signature,
        serving=Serving(),
        engine="pytorch",
        config=ServingConfig(max_batch=max_batch, queue_delay_us=delay_us, instances=1, threads=1),
    )
    answers = dict(zip((spec.name for spec in signature.outputs), expected.values(), strict=True))
    golden = golden_arrays({"INPUT__0": X}, answers)
    (work / "package").mkdir()
    package = write_package(work / "package", model, work / "script", "nvidia", example={"INPUT__0": X}, golden=golden)
    install(package, work / "models", source="m", name="m")
    environment = with_pytorch(work / "environment")
    with (
        private_server(environment, work / "models", Features(), log=work / "log") as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
    ):
        client.load("m")
        yield server, signature, golden


def executions_of(server: Server, samples: int) -> int:
    """How many executions this many samples took: Triton counts them after it has answered."""
    with grpc.InferenceServerClient(server.grpc) as client:

        def counted() -> Any:
            stats = client.get_inference_statistics("m").model_stats[0]
            return stats.inference_count >= samples and stats

        return int(until(counted).execution_count)


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=() if step == "argmax" else pytest.mark.slow) for step in OUTPUTS]
)
def test_a_traced_model_with_post_processing_answers_its_golden_requests(tmp_path: Path, step: str) -> None:
    with (
        served(tmp_path, step) as (server, signature, golden),
        TritonClient(server.grpc, repository_key=server.key) as client,
    ):
        until(lambda: client.ready("m", 3))  # an answer that takes long on a busy machine counts as no
        check_golden(client, "m", signature, golden, tolerance=1e-5)
        executions_of(server, WARM_UP + len(X))


def test_requests_of_several_clients_are_one_batch(tmp_path: Path) -> None:
    with (
        served(tmp_path, "argmax", delay_us=3_000_000, max_batch=4) as (server, _, golden),
        ThreadPoolExecutor(4) as pool,
    ):
        before = executions_of(server, 1 + 4)

        def ask(row: int) -> Any:
            tensor = grpc.InferInput("INPUT__0", [1, 4], "FP32")
            tensor.set_data_from_numpy(X[row : row + 1])
            return grpc.InferenceServerClient(server.grpc).infer("m", [tensor]).as_numpy("OUTPUT__0")

        answers = np.concatenate(list(pool.map(ask, range(4))))
        np.testing.assert_array_equal(answers, golden["output/OUTPUT__0"][:4])
        assert executions_of(server, 1 + 4 + 4) == before + 1
