"""What an NVIDIA GPU machine can show: `make check-gpu` runs what its libraries allow, and says what it skipped.

Half precision against FP32 on ResNet-50's architecture and a 12-layer encoder: parity, latency percentiles and
throughput, as TorchScript, as AOTInductor, through ONNX Runtime's CUDA provider, as a TensorRT plan and through the
bundled Triton, wherever the library is there. Torch and numpy are enough to begin with; the result is one JSON file.
"""

import argparse
import contextlib
import json
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
BATCHES = (1, 8, 32)
PRECISIONS = ("fp32", "fp16", "bf16")
_RUNS, _WARM = 100, 10
_PARITY_BATCH = 16
_COMPILE_S = 300  # a compilation that takes longer is given up


class Skipped(Exception):
    """A part that this machine's libraries do not allow."""


def percentile(sorted_values: list[float], share: float) -> float:
    """The value that `share` of them do not exceed (nearest rank)."""
    at = max(0, min(len(sorted_values) - 1, round(share * len(sorted_values) + 0.5) - 1))
    return sorted_values[at]


def timed(call: Callable[[], Any], settle: Callable[[], Any], batch: int) -> dict[str, float]:
    """Latency percentiles in ms of calls one by one, and samples per second of calls in a row."""
    for _ in range(_WARM):
        call()
    settle()
    spent = []
    for _ in range(_RUNS):
        before = time.perf_counter()
        call()
        settle()
        spent.append((time.perf_counter() - before) * 1000)
    before = time.perf_counter()
    for _ in range(_RUNS):
        call()
    settle()
    spent.sort()
    return {
        "p50_ms": round(percentile(spent, 0.5), 4),
        "p99_ms": round(percentile(spent, 0.99), 4),
        "samples_per_s": round(batch * _RUNS / (time.perf_counter() - before), 1),
    }


def parity(wanted: Any, got: Any) -> dict[str, float]:
    """How far answers are from FP32's: relative L2 error, largest difference, share of equal first choices."""
    import torch

    exact, rough = wanted.double().cpu(), got.double().cpu()
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
    """The model in a precision, with FP32 outputs; float inputs are cast inside, as a served model would."""
    import copy

    import torch

    kinds = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

    class Mixed(torch.nn.Module):  # type: ignore[misc]
        """Casts around a model."""

        def __init__(self) -> None:
            super().__init__()
            self.model = copy.deepcopy(model).to(kinds[precision])

        def forward(self, x: Any) -> Any:
            """As the model's, in FP32."""
            return self.model(x.to(kinds[precision]) if x.is_floating_point() else x).float()

    return Mixed().eval()


def torchscript(model: Any, example: Any) -> Any:
    """Traced, frozen and on the GPU."""
    import torch

    traced = torch.jit.trace(model, example, check_trace=False)
    return torch.jit.freeze(traced)


def inductor(model: Any, example: Any) -> Any:
    """Compiled ahead of time by AOTInductor, for the example's shape. The package outlives the call: it is mapped."""
    import torch

    folder = tempfile.mkdtemp(prefix="aoti-")
    program = torch.export.export(model, (example,))
    package = torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/model.pt2")
    return torch._inductor.aoti_load_package(package)


def torch_figures(device: str, tell: Callable[[str], None], *, compile_too: bool) -> Iterator[dict[str, Any]]:
    """Every architecture, precision and batch as TorchScript; then batch 8 as AOTInductor, which compiles for long."""
    from benchmarks.architectures import LARGE

    for architecture in LARGE:
        for precision in PRECISIONS:
            for batch in BATCHES:
                tell(f"{architecture.name} {precision} torchscript batch {batch}")
                yield torch_figure(device, architecture.name, precision, "torchscript", batch)
    for architecture in LARGE if compile_too else ():
        for precision in PRECISIONS:
            tell(f"{architecture.name} {precision} aotinductor batch 8")
            yield isolated(device, architecture.name, precision, "aotinductor", 8)


def isolated(*row: Any) -> dict[str, Any]:
    """`torch_figure` in a process of its own: compiled code can crash, and a crash costs no other figure."""
    named = dict(zip(("model", "precision", "engine", "batch"), row[1:], strict=True))
    command = [sys.executable, "-m", "benchmarks.check_gpu", "--row", json.dumps(row)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
    except subprocess.TimeoutExpired:
        return {**named, "skipped": f"took over {_COMPILE_S} s"}
    if done.returncode < 0:
        return {**named, "skipped": f"crashed: {signal.Signals(-done.returncode).name}"}
    if done.returncode:
        return {**named, "skipped": f"exit code {done.returncode}: {done.stderr[-300:]}"}
    figure: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figure


def torch_figure(device: str, name: str, precision: str, engine: str, batch: int) -> dict[str, Any]:
    """One architecture in one precision and batch, run by one engine."""
    import torch

    from benchmarks.architectures import LARGE, seeded

    def settle() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # FP32 means FP32
    architecture = next(architecture for architecture in LARGE if architecture.name == name)
    plain = seeded(architecture).to(device)
    asked = architecture.inputs(_PARITY_BATCH).to(device)
    with torch.inference_mode():
        wanted = plain(asked)
    model = mixed(plain, precision).to(device)
    return _measured(model, architecture, precision, engine, batch, wanted, asked, settle)


def _measured(
    model: Any, architecture: Any, precision: str, how: str, batch: int, wanted: Any, asked: Any,
    settle: Callable[[], None],
) -> dict[str, Any]:  # fmt: skip
    import torch

    said = {"model": architecture.name, "precision": precision, "engine": how, "batch": batch}
    example = architecture.inputs(batch).to(asked.device)
    started = time.perf_counter()
    try:
        with torch.inference_mode():
            made = torchscript(model, example) if how == "torchscript" else inductor(model, example)
            built = round(time.perf_counter() - started, 2)
            close = parity(wanted[:batch], made(asked[:batch])) if batch <= _PARITY_BATCH else parity(
                wanted, made(torch.cat([asked, asked])[:batch])[:_PARITY_BATCH]
            )  # fmt: skip
            return {**said, "build_s": built, **timed(lambda: made(example), settle, batch), **close}
    except Exception as error:  # a missing compiler, an unsupported kernel: whatever it is, it is the result
        return {**said, "skipped": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


# --- other engines --------------------------------------------------------------------------------------------------


def onnxruntime_figures(tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """FP32 through ONNX Runtime's CUDA provider."""
    with contextlib.suppress(ImportError):
        import onnxruntime as ort

        if "CUDAExecutionProvider" in ort.get_available_providers():
            tell("ONNX Runtime, CUDA")
            return _onnxruntime(ort)
        raise Skipped(f"onnxruntime {ort.__version__} has no CUDA provider here")
    raise Skipped("onnxruntime is not installed")


def _onnxruntime(ort: Any) -> list[dict[str, Any]]:
    import torch

    from benchmarks.architectures import LARGE, seeded

    found = []
    for architecture in LARGE:
        model, example = seeded(architecture), architecture.inputs(8)
        with tempfile.TemporaryDirectory() as folder:
            torch.onnx.export(model, (example,), f"{folder}/m.onnx", dynamo=True, input_names=["input"], verbose=False)
            running = ort.InferenceSession(f"{folder}/m.onnx", providers=["CUDAExecutionProvider"])
        given = {"input": example.numpy()}
        with torch.inference_mode():
            close = parity(model(example), torch.from_numpy(running.run(None, given)[0]))
        figures = timed(lambda run=running, x=given: run.run(None, x), lambda: None, 8)  # type: ignore[misc]
        said = {"model": architecture.name, "precision": "fp32", "engine": "onnxruntime-cuda", "batch": 8}
        found.append({**said, **figures, **close})
    return found


def tensorrt_figures(_: Callable[[str], None]) -> list[dict[str, Any]]:
    """Whether plans can be built here: the package step does so, with `runtime.precision.tensorrt_plans`."""
    try:
        import tensorrt
    except ImportError:
        raise Skipped("tensorrt is not installed") from None
    return [{"engine": "tensorrt", "version": tensorrt.__version__}]


# --- the whole ------------------------------------------------------------------------------------------------------


def machine(device: str) -> dict[str, Any]:
    """What the figures were made on."""
    import torch

    said: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__, "device": device}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        said |= {
            "gpu": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "memory_mb": properties.total_memory >> 20,
            "cuda": torch.version.cuda,
        }
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            said["driver"] = subprocess.run(
                words, capture_output=True, text=True, timeout=20, check=True
            ).stdout.strip()
    return said


def table(found: list[dict[str, Any]]) -> str:
    """The figures as a person reads them, with ratios to FP32 of the same engine and batch."""
    base = {(r["model"], r["engine"], r["batch"]): r for r in found if r.get("precision") == "fp32" and "p99_ms" in r}
    head = f"{'model':<16}{'engine':<18}{'precision':<10}{'batch':>5}{'p50 ms':>9}{'p99 ms':>9}{'samples/s':>11}"
    lines = [f"{head}{'x fp32':>8}{'error':>10}"]
    for row in found:
        if "p99_ms" not in row:
            continue
        over = base.get((row["model"], row["engine"], row["batch"]))
        ratio = f"{row['samples_per_s'] / over['samples_per_s']:.2f}" if over else "-"
        name = f"{row['model']:<16}{row['engine']:<18}{row['precision']:<10}{row['batch']:>5}"
        speed = f"{row['p50_ms']:>9.3f}{row['p99_ms']:>9.3f}{row['samples_per_s']:>11.0f}{ratio:>8}"
        lines.append(f"{name}{speed}{row.get('relative_error', float('nan')):>10.2g}")
    return "\n".join(lines)


def main() -> None:
    """Runs everything that can be run and writes `gpu.json`; ends with 0 whatever was skipped."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=RESULTS, help="where gpu.json goes")
    options.add_argument("--on-cpu", action="store_true", help="try the script itself, without a GPU")
    options.add_argument("--row", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.row:
        print(json.dumps(torch_figure(*json.loads(given.row))))
        return
    given.out.mkdir(parents=True, exist_ok=True)

    def keep(said: dict[str, Any]) -> None:
        (given.out / "gpu.json").write_text(json.dumps(said, indent=1) + "\n")

    said = run("cpu" if given.on_cpu else "cuda", keep)
    keep(said)
    print(table(said["figures"]))
    for row in said["figures"]:
        if "skipped" in row:
            print(f"skipped {row['model']} {row['precision']} {row['engine']} batch {row['batch']}: {row['skipped']}")
    for name, why in said["skipped"].items():
        print(f"skipped {name}: {why}")


def run(device: str, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The machine, the figures and what was skipped; `keep` gets them as they come, since a machine may be lent."""
    said: dict[str, Any] = {"machine": {}, "figures": [], "skipped": {}}
    try:
        import torch
    except ImportError:
        return {**said, "skipped": {"everything": "torch is not installed"}}
    if device == "cuda" and not torch.cuda.is_available():
        return {**said, "skipped": {"everything": "torch sees no CUDA device"}}
    said["machine"] = machine(device)
    for row in torch_figures(device, _tell, compile_too=device == "cuda"):
        said["figures"].append(row)
        keep(said)
    if device == "cuda":
        for name, part in (("onnxruntime", onnxruntime_figures), ("tensorrt", tensorrt_figures)):
            try:
                said["figures"] += part(_tell)
            except Skipped as why:
                said["skipped"][name] = str(why)
    return said


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
