"""`make check-gpu`: runs what the libraries of an NVIDIA GPU machine allow, and says what it skipped.

Compares half precision with FP32 on ResNet-50's architecture and a 12-layer encoder: parity, latency percentiles,
throughput, memory and power, with TorchScript, AOTInductor, and ONNX Runtime's CUDA and TensorRT providers, where they
are installed. It builds no TensorRT plan and starts no Triton. It needs only torch and numpy; the result is one JSON
file for each kind of GPU. `--on-cpu` tries the script itself: a few runs, on whatever engines a CPU has.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PRECISIONS = ("fp32", "fp16", "bf16")
_PARITY_BATCH = 16
_COMPILE_S = 300  # a longer compilation is abandoned


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The batches to measure, how often each is timed, and how often it runs before."""

    batches: tuple[int, ...]
    runs: int
    warm: int


EFFORTS = {"cuda": Effort(batches=(1, 8, 32), runs=100, warm=10), "cpu": Effort(batches=(1,), runs=2, warm=1)}
# ONNX Runtime's provider and its options, by the name of the engine and the precision
PROVIDERS: dict[str, dict[tuple[str, str], tuple[str, dict[str, bool]]]] = {
    "cuda": {
        ("onnxruntime-cuda", "fp32"): ("CUDAExecutionProvider", {"use_tf32": False}),
        ("onnxruntime-cuda", "tf32"): ("CUDAExecutionProvider", {}),
        ("onnxruntime-tensorrt", "fp32"): ("TensorrtExecutionProvider", {}),
        ("onnxruntime-tensorrt", "fp16"): ("TensorrtExecutionProvider", {"trt_fp16_enable": True}),
    },
    "cpu": {("onnxruntime-cpu", "fp32"): ("CPUExecutionProvider", {})},
}


class Skipped(Exception):
    """A part that needs libraries which are not installed here."""


def percentile(sorted_values: list[float], share: float) -> float:
    """The value that a share of them (0 to 1) does not exceed, by nearest rank."""
    index = max(0, min(len(sorted_values) - 1, round(share * len(sorted_values) + 0.5) - 1))
    return sorted_values[index]


def timed(call: Callable[[], Any], device: str, batch: int) -> dict[str, float]:
    """Latency percentiles (ms) of calls waited for one by one; then, of calls back to back, samples per second.

    Of a GPU also its memory in use (MiB, by all processes) and its mean power (W) meanwhile.
    """
    effort, synchronize = EFFORTS[device], waiting(device)
    for _ in range(effort.warm):
        call()
    synchronize()
    spent = []
    for _ in range(effort.runs):
        before = time.perf_counter()
        call()
        synchronize()
        spent.append((time.perf_counter() - before) * 1000)
    with gpu_watched(device) as gpu:
        before = time.perf_counter()
        for _ in range(effort.runs):
            call()
        synchronize()
        took = time.perf_counter() - before
    spent.sort()
    return {
        "p50_ms": round(percentile(spent, 0.5), 4),
        "p99_ms": round(percentile(spent, 0.99), 4),
        "samples_per_s": round(batch * effort.runs / took, 1),
        **gpu,
    }


def waiting(device: str) -> Callable[[], None]:
    """What waits until the device has done all its work."""
    import torch

    return torch.cuda.synchronize if device == "cuda" else lambda: None


@contextlib.contextmanager
def gpu_watched(device: str) -> Iterator[dict[str, float]]:
    """Fills the mapping at the end with what nvidia-smi reported; leaves it empty without a GPU or nvidia-smi."""
    seen: list[tuple[float, float]] = []
    ended = threading.Event()

    def watch() -> None:
        command = ["nvidia-smi", "--query-gpu=memory.used,power.draw", "--format=csv,noheader,nounits", "--id=0"]
        while not ended.is_set():
            with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
                done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
                memory, power = map(float, done.stdout.split(","))
                seen.append((memory, power))
            ended.wait(0.05)

    watcher = threading.Thread(target=watch, daemon=True)
    figures: dict[str, float] = {}
    if device == "cuda":
        watcher.start()
    try:
        yield figures
    finally:
        ended.set()
        if device == "cuda":
            watcher.join()
    if seen:
        memories, powers = zip(*seen, strict=True)
        figures |= {"memory_mb": max(memories), "power_w": round(sum(powers) / len(powers), 1)}


def parity(expected: Any, actual: Any) -> dict[str, float]:
    """How far answers are from FP32's: relative L2 error, largest difference, share of equal top classes."""
    import torch

    exact, rough = expected.double().cpu(), actual.double().cpu()
    if not torch.isfinite(rough).all():
        return {"finite": 0.0}
    return {
        "finite": 1.0,
        "relative_error": float((rough - exact).norm() / exact.norm()),
        "max_abs": float((rough - exact).abs().max()),
        "same_choice": float((rough.argmax(1) == exact.argmax(1)).double().mean()),
    }


# --- torch ----------------------------------------------------------------------------------------------------------


def mixed(model: Any, precision: str) -> Any:
    """The model in a precision, with FP32 outputs; it casts float inputs itself, as a served model would."""
    import copy

    import torch

    dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

    class Mixed(torch.nn.Module):  # type: ignore[misc]
        """A model between casts."""

        def __init__(self) -> None:
            super().__init__()
            self.model = copy.deepcopy(model).to(dtypes[precision])

        def forward(self, x: Any) -> Any:
            """The model's output, in FP32."""
            return self.model(x.to(dtypes[precision]) if x.is_floating_point() else x).float()

    return Mixed().eval()


def torchscript(model: Any, example: Any) -> Any:
    """Traces and freezes the model."""
    import torch

    traced = torch.jit.trace(model, example, check_trace=False)
    return torch.jit.freeze(traced)


def inductor(model: Any, example: Any) -> Any:
    """Compiles the model ahead of time with AOTInductor, for the example's shape.

    The package stays on disk after the call, because it is memory-mapped.
    """
    import torch

    folder = tempfile.mkdtemp(prefix="aoti-")
    program = torch.export.export(model, (example,))
    package = torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/model.pt2")
    return torch._inductor.aoti_load_package(package)


def torch_figures(device: str, tell: Callable[[str], None], *, compile_too: bool) -> Iterator[dict[str, Any]]:
    """Every architecture, precision and batch as TorchScript, then batch 8 as AOTInductor, which compiles slowly."""
    from benchmarks.architectures import LARGE

    for architecture in LARGE:
        for precision in PRECISIONS:
            for batch in EFFORTS[device].batches:
                tell(f"{architecture.name} {precision} torchscript batch {batch}")
                yield torch_figure(device, architecture.name, precision, "torchscript", batch)
    for architecture in LARGE if compile_too else ():
        for precision in PRECISIONS:
            tell(f"{architecture.name} {precision} aotinductor batch 8")
            yield isolated(device, architecture.name, precision, "aotinductor", 8)


def isolated(*row: Any) -> dict[str, Any]:
    """Runs `torch_figure` in its own process: compiled code may crash, which must not cost the other figures.

    Code that crashes is compiled once more by the C++ compiler of the PATH: with what CXX names in one image of CUDA,
    every library of AOTInductor crashed while it was loaded.
    """
    figure = _in_a_process(row, dict(os.environ))
    if "crashed" in figure.get("skipped", "") and "CXX" in os.environ:
        figure = _in_a_process(row, {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")})
    return figure


def _in_a_process(row: tuple[Any, ...], variables: dict[str, str]) -> dict[str, Any]:
    labels = dict(zip(("model", "precision", "engine", "batch"), row[1:], strict=True))
    command = [sys.executable, "-m", "benchmarks.check_gpu", "--row", json.dumps(row)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False, env=variables)
    except subprocess.TimeoutExpired:
        return {**labels, "skipped": f"took more than {_COMPILE_S} s"}
    if done.returncode < 0:
        return {**labels, "skipped": f"crashed: {signal.Signals(-done.returncode).name}"}
    if done.returncode:
        return {**labels, "skipped": f"exit code {done.returncode}: {done.stderr[-300:]}"}
    figure: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figure


def torch_figure(device: str, name: str, precision: str, engine: str, batch: int) -> dict[str, Any]:
    """Measures one architecture in one precision and batch, on one engine."""
    import torch

    from benchmarks.architectures import LARGE, seeded

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # FP32 means FP32
    architecture = next(architecture for architecture in LARGE if architecture.name == name)
    plain = seeded(architecture).to(device)
    inputs = architecture.inputs(_PARITY_BATCH).to(device)
    with torch.inference_mode():
        expected = plain(inputs)
    model = mixed(plain, precision).to(device)
    return _measured(model, architecture, precision, engine, batch, expected, inputs)


def _measured(
    model: Any, architecture: Any, precision: str, engine: str, batch: int, expected: Any, inputs: Any
) -> dict[str, Any]:
    import torch

    labels = {"model": architecture.name, "precision": precision, "engine": engine, "batch": batch}
    example = architecture.inputs(batch).to(inputs.device)
    started = time.perf_counter()
    try:
        with torch.inference_mode():
            compiled = torchscript(model, example) if engine == "torchscript" else inductor(model, example)
            build_s = round(time.perf_counter() - started, 2)
            similarity = (
                parity(expected[:batch], compiled(inputs[:batch]))
                if batch <= _PARITY_BATCH
                else parity(expected, compiled(torch.cat([inputs, inputs])[:batch])[:_PARITY_BATCH])
            )
            speed = timed(lambda: compiled(example), inputs.device.type, batch)
            return {**labels, "build_s": build_s, **speed, **similarity}
    except Exception as error:  # a missing compiler, an unsupported kernel: whatever it is, it is the result
        return {**labels, "skipped": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


# --- other engines --------------------------------------------------------------------------------------------------


def onnxruntime_figures(device: str, tell: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Batch 8 with each of ONNX Runtime's providers for the device.

    Raises:
        Skipped: ONNX Runtime is not installed, or has none of them.
    """
    try:
        import onnxruntime as ort
    except ImportError:
        raise Skipped("onnxruntime is not installed") from None
    had = {row: each for row, each in PROVIDERS[device].items() if each[0] in ort.get_available_providers()}
    if not had:
        raise Skipped(f"onnxruntime {ort.__version__} has no provider for {device} here")
    from benchmarks.architectures import LARGE

    for architecture in LARGE:
        with tempfile.TemporaryDirectory() as folder:
            graph = _exported(architecture, Path(folder))
            for (engine, precision), provider in had.items():
                tell(f"{architecture.name} {precision} {engine} batch 8")
                labels = {"model": architecture.name, "precision": precision, "engine": engine, "batch": 8}
                yield labels | _onnxruntime(ort, architecture, graph, provider, device)


def _exported(architecture: Any, folder: Path) -> Path:
    import torch

    from benchmarks.architectures import seeded

    file = folder / "model.onnx"
    torch.onnx.export(
        seeded(architecture), (architecture.inputs(8),), str(file), dynamo=True, input_names=["input"], verbose=False
    )
    return file


def _onnxruntime(
    ort: Any, architecture: Any, graph: Path, provider: tuple[str, dict[str, bool]], device: str
) -> dict[str, Any]:
    import torch

    from benchmarks.architectures import seeded

    example = architecture.inputs(8)
    try:
        session = ort.InferenceSession(str(graph), providers=[provider])
        if session.get_providers()[0] != provider[0]:
            return {"skipped": f"{provider[0]} does not start here"}
        inputs = {"input": example.numpy()}
        with torch.inference_mode():
            similarity = parity(seeded(architecture)(example), torch.from_numpy(session.run(None, inputs)[0]))
        return timed(lambda: session.run(None, inputs), device, 8) | similarity
    except Exception as error:  # a missing library, an unsupported kernel: whatever it is, it is the result
        return {"skipped": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


# --- the whole ------------------------------------------------------------------------------------------------------


def machine(device: str) -> dict[str, Any]:
    """The machine on which the figures were measured."""
    import torch

    facts: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__, "device": device}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "gpu": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "memory_mb": properties.total_memory >> 20,
            "cuda": torch.version.cuda,
        }
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
            facts["driver"] = done.stdout.strip()
    return facts


def table(figures: list[dict[str, Any]]) -> str:
    """The figures as text, with ratios to FP32 on the same engine and batch."""
    measured = [row for row in figures if "p99_ms" in row]
    base = {(row["model"], row["engine"], row["batch"]): row for row in measured if row["precision"] == "fp32"}
    head = f"{'model':<16}{'engine':<18}{'precision':<10}{'batch':>5}{'p50 ms':>9}{'p99 ms':>9}{'samples/s':>11}"
    lines = [f"{head}{'x fp32':>8}{'error':>10}"]
    for row in measured:
        fp32 = base.get((row["model"], row["engine"], row["batch"]))
        ratio = f"{row['samples_per_s'] / fp32['samples_per_s']:.2f}" if fp32 else "-"
        name = f"{row['model']:<16}{row['engine']:<18}{row['precision']:<10}{row['batch']:>5}"
        speed = f"{row['p50_ms']:>9.3f}{row['p99_ms']:>9.3f}{row['samples_per_s']:>11.0f}{ratio:>8}"
        lines.append(f"{name}{speed}{row.get('relative_error', float('nan')):>10.2g}")
    return "\n".join(lines)


def file_name(facts: dict[str, Any]) -> str:
    """The file for a machine's figures: each kind of GPU has its own."""
    return f"gpu_{re.sub(r'[^a-z0-9]+', '_', facts['gpu'].lower())}.json" if "gpu" in facts else "gpu_none.json"


def main() -> None:
    """Runs everything that can run here and writes a file for this GPU; skipped parts are no error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the file goes")
    parser.add_argument("--on-cpu", action="store_true", help="try the script itself, without a GPU")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(torch_figure(*json.loads(arguments.row))))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)

    def save(results: dict[str, Any]) -> None:
        (arguments.out / file_name(results["machine"])).write_text(json.dumps(results, indent=1) + "\n")

    results = run("cpu" if arguments.on_cpu else "cuda", save)
    save(results)
    print(table(results["figures"]))
    for row in results["figures"]:
        if "skipped" in row:
            print(f"skipped {row['model']} {row['precision']} {row['engine']} batch {row['batch']}: {row['skipped']}")
    for name, why in results["skipped"].items():
        print(f"skipped {name}: {why}")


def run(device: str, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The machine, the figures and what was skipped; `save` is called after each figure."""
    results: dict[str, Any] = {"machine": {}, "figures": [], "skipped": {}}
    try:
        import torch
    except ImportError:
        return {**results, "skipped": {"everything": "torch is not installed"}}
    if device == "cuda" and not torch.cuda.is_available():
        return {**results, "skipped": {"everything": "torch sees no CUDA device"}}
    results["machine"] = machine(device)
    for row in torch_figures(device, _tell, compile_too=device == "cuda"):
        results["figures"].append(row)
        save(results)
    try:
        for row in onnxruntime_figures(device, _tell):
            results["figures"].append(row)
            save(results)
    except Skipped as why:
        results["skipped"]["onnxruntime"] = str(why)
    return results


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
