"""TensorRT plans from ONNX graphs: strongly typed, for fixed shape profiles, stamped with what can run them.

A plan works with one TensorRT version on one kind of GPU. Both are written next to it. They are compared with the
target before anything is scheduled, and `guest.pod.guard` compares them with the node's GPU and library before the plan
is loaded. Precisions are those of the graph (FP16 and BF16 by conversion, INT8 and FP8 by Q/DQ). TensorRT's kernel
timings are stored and reused for the next version.
"""

import hashlib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from shiplift.runtime.base.errors import MissingTool, QuantizeFailed
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.target import Profile, Target, capability

PLAN, STAMP = "model.plan", "plan.json"
_BATCHES = (1, 8, 32)
_WORKSPACE_SHARE = 0.5  # of the GPU's memory, for the builder's tactics


class Stamp(Record):
    """The TensorRT version, GPU and shapes that a plan was built with."""

    tensorrt: str
    compute_capability: str
    profiles: dict[str, Profile]
    timing_cache: str = ""


def library() -> Any:
    """TensorRT's Python module.

    Raises:
        MissingTool: TensorRT is not installed here.
    """
    try:
        return import_module("tensorrt")
    except ImportError as error:
        raise MissingTool(
            "TensorRT is not installed in this environment, so a plan can't be built here",
            do="Run quantize in an image with TensorRT on a node with the target's GPU, or set "
            "`engine: onnxruntime-tensorrt`, which builds its engines when the model is served.",
        ) from error


def profiles_for(signature: Signature, configured: Mapping[str, Profile]) -> dict[str, Profile]:
    """The shapes to build for: the target's profiles, else a dynamic batch of 1 to 32 and no other dynamic axis.

    Raises:
        QuantizeFailed: an input without a profile has other dynamic axes, or a profile does not match its input.
    """
    profiles = {}
    for spec in signature.inputs:
        profile = configured.get(spec.name) or _default(spec.name, spec.shape)
        shape = profile.opt
        if len(shape) != len(spec.shape) or any(s not in (-1, size) for s, size in zip(spec.shape, shape, strict=True)):
            raise QuantizeFailed(
                f"the profile of {spec.name!r} is {shape}, the model takes {spec.shape}",
                do="Fix the target's profiles.",
            )
        profiles[spec.name] = profile
    return profiles


def _default(name: str, shape: tuple[int, ...]) -> Profile:
    if -1 in shape[1:]:
        raise QuantizeFailed(
            f"input {name!r} has dynamic axes besides the batch ({shape}), whose sizes TensorRT must know",
            do=f"Add `profiles: {{{name}: {{min: ..., opt: ..., max: ...}}}}` to the target.",
        )
    low, best, high = ((size, *shape[1:]) for size in _BATCHES)
    return Profile(min=low, opt=best, max=high)


def build_plan(
    model: Path, signature: Signature, target: Target, timings: Path, trt: Any, *, built_on: str = ""
) -> Stamp:
    """Writes `model.plan` and its stamp next to the ONNX file `model`; the folder `timings` has the timing caches.

    `trt` is TensorRT's module (`library()`). `built_on` is this machine's compute capability, for targets without one.

    Raises:
        QuantizeFailed: TensorRT can't parse the graph, or finds no implementation for it.
    """
    profiles = profiles_for(signature, target.profiles)
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = builder.create_network(_strongly_typed(trt))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(model)):
        errors = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        raise QuantizeFailed(
            f"TensorRT {trt.__version__} can't parse the graph: {' '.join(errors.split())[:400]}",
            do="Use `engine: onnxruntime`, which falls back to CUDA for such operators.",
        )
    config = _config(builder, target, profiles, trt)
    cache, file = _timing_cache(config, target, timings, trt)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise QuantizeFailed(
            f"TensorRT {trt.__version__} found no way to run the graph"
            + (f" in {target.memory_mb} MiB" if target.memory_mb else ""),
            do="Use smaller profiles, another `tensorrt.workspace_mb`, or `engine: onnxruntime`.",
        )
    measured = bytes(cache.serialize())
    write_atomically(file, measured)
    (model.parent / PLAN).write_bytes(bytes(plan))
    stamp = Stamp(
        tensorrt=str(trt.__version__),
        compute_capability=target.compute_capability or built_on,
        profiles=profiles,
        timing_cache=hashlib.sha256(measured).hexdigest(),
    )
    (model.parent / STAMP).write_text(stamp.model_dump_json())
    return stamp


def _strongly_typed(trt: Any) -> int:
    """The flag that makes a network strongly typed; from TensorRT 11 on, every network is."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def _config(builder: Any, target: Target, profiles: Mapping[str, Profile], trt: Any) -> Any:
    config = builder.create_builder_config()
    if workspace_mb := target.tensorrt.workspace_mb or int(target.memory_mb * _WORKSPACE_SHARE):
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace_mb << 20)
    if target.tensorrt.optimization_level is not None:
        config.builder_optimization_level = target.tensorrt.optimization_level
    profile = builder.create_optimization_profile()
    for name, shapes in profiles.items():
        profile.set_shape(name, shapes.min, shapes.opt, shapes.max)
    config.add_optimization_profile(profile)
    return config


def timings_name(target: Target) -> str:
    """The name under which kernel timings are shared between releases: one per kind of GPU.

    A target that names no GPU has timings of its own. File names keep TensorRT versions apart.
    """
    return f"TensorRT timings {target.compute_capability or target.name}"


def _timing_cache(config: Any, target: Target, timings: Path, trt: Any) -> tuple[Any, Path]:
    """Timings of earlier builds by this TensorRT version on this kind of GPU; they make later builds faster."""
    file = timings / f"tensorrt-{trt.__version__}-sm{target.compute_capability.replace('.', '')}.cache"
    cache = config.create_timing_cache(file.read_bytes() if file.is_file() else b"")
    config.set_timing_cache(cache, False)  # positional in TensorRT: ignore_mismatch
    return cache, file


def read_stamp(folder: Path) -> Stamp | None:
    """The stamp of a model folder, or None if it has no plan."""
    file = folder / STAMP
    return Stamp.model_validate_json(file.read_text()) if file.is_file() else None


def mismatch(stamp: Stamp, *, tensorrt: str, compute_capability: str) -> str:
    """Why a plan can't run with a TensorRT version on a GPU; empty if it can. Unknown values are not compared.

    Plans are built without version compatibility, so every part of the version that is known must match.
    """
    parts = tensorrt.split(".")
    if tensorrt and stamp.tensorrt.split(".")[: len(parts)] != parts:
        return f"the plan was built by TensorRT {stamp.tensorrt}, but {tensorrt} would load it"
    built = capability(stamp.compute_capability)
    if compute_capability and (0, 0) != built != capability(compute_capability):
        return f"the plan was built for compute capability {stamp.compute_capability}, not {compute_capability}"
    return ""


def require_match(stamp: Stamp, target: Target) -> None:
    """Checks a plan before it is scheduled to a target.

    Raises:
        QuantizeFailed: the target could not load it.
    """
    version = target.versions.tensorrt
    if reason := mismatch(stamp, tensorrt=version, compute_capability=target.compute_capability):
        raise QuantizeFailed(f"target {target.name}: {reason}", do="Run the release again for this target.")
