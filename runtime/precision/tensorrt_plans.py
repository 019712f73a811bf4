"""TensorRT plans from ONNX graphs: strongly typed, for given shapes, and stamped with what they can run on.

A plan belongs to one TensorRT version and one kind of GPU. Both are written beside it and are compared with the target
before anything is scheduled, and by `serving.kubernetes.guard` with the node's GPU and library before it is loaded.
Precisions are the graph's own (FP16 and BF16 by conversion, INT8 and FP8 by Q/DQ). What TensorRT learned about kernels
is kept, and used for the next version.
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
_WORKSPACE_SHARE = 0.5  # of the GPU's memory, for the builder's trials


class Stamp(Record):
    """What a plan was built by, on and for."""

    tensorrt: str
    compute_capability: str
    profiles: dict[str, Profile]
    timing_cache: str = ""


def library() -> Any:
    """TensorRT's Python module.

    Raises:
        MissingTool: it is not installed here.
    """
    try:
        return import_module("tensorrt")
    except ImportError as error:
        raise MissingTool(
            "TensorRT is not installed in this environment: a plan can't be built here",
            do="Run quantize in an image with TensorRT on a node with the target's GPU, or set "
            "`engine: onnxruntime-tensorrt`, which builds its engines when it is served.",
        ) from error


def profiles_for(signature: Signature, given: Mapping[str, Profile]) -> dict[str, Profile]:
    """The shapes to build for: the target's, else every input with a dynamic batch of 1 to 32 and no other freedom.

    Raises:
        QuantizeFailed: an input has further dynamic axes, or a profile does not fit it.
    """
    found = {}
    for spec in signature.inputs:
        profile = given.get(spec.name) or _default(spec.name, spec.shape)
        shape = profile.opt
        if len(shape) != len(spec.shape) or any(w not in (-1, h) for w, h in zip(spec.shape, shape, strict=True)):
            raise QuantizeFailed(
                f"the profile of {spec.name!r} is {shape}, the model takes {spec.shape}",
                do="Mend the target's profiles.",
            )
        found[spec.name] = profile
    return found


def _default(name: str, shape: tuple[int, ...]) -> Profile:
    if -1 in shape[1:]:
        raise QuantizeFailed(
            f"input {name!r} has dynamic axes beyond the batch {shape}: TensorRT must know their sizes",
            do=f"Add `profiles: {{{name}: {{min: ..., opt: ..., max: ...}}}}` to the target.",
        )
    low, best, high = ((size, *shape[1:]) for size in _BATCHES)
    return Profile(min=low, opt=best, max=high)


def build_plan(model: Path, signature: Signature, target: Target, kept: Path, trt: Any, *, built_on: str = "") -> Stamp:
    """Writes `model.plan` and its stamp beside the ONNX file `model`; the timing cache lies in the folder `kept`.

    `trt` is TensorRT's module (`library()`), `built_on` this machine's compute capability, where the target says none.

    Raises:
        QuantizeFailed: TensorRT does not take the graph, or finds no way to run it.
    """
    profiles = profiles_for(signature, target.profiles)
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = builder.create_network(_strongly_typed(trt))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(model)):
        said = "; ".join(str(parser.get_error(at)) for at in range(parser.num_errors))
        raise QuantizeFailed(
            f"TensorRT {trt.__version__} does not take the graph: {' '.join(said.split())[:400]}",
            do="Use `engine: onnxruntime`, which falls back to CUDA for such operators.",
        )
    config = _config(builder, target, profiles, trt)
    cache, file = _timing_cache(config, target, kept, trt)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise QuantizeFailed(
            f"TensorRT {trt.__version__} found no way to run the graph with {target.memory_mb or 'its'} MiB",
            do="Use smaller profiles, or `engine: onnxruntime`.",
        )
    learned = bytes(cache.serialize())
    write_atomically(file, learned)
    (model.parent / PLAN).write_bytes(bytes(plan))
    stamp = Stamp(
        tensorrt=str(trt.__version__),
        compute_capability=target.compute_capability or built_on,
        profiles=profiles,
        timing_cache=hashlib.sha256(learned).hexdigest(),
    )
    (model.parent / STAMP).write_text(stamp.model_dump_json())
    return stamp


def _strongly_typed(trt: Any) -> int:
    """Every network is strongly typed from TensorRT 11 on; before, a flag says so."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def _config(builder: Any, target: Target, profiles: Mapping[str, Profile], trt: Any) -> Any:
    config = builder.create_builder_config()
    if target.memory_mb:
        workspace = int(target.memory_mb * _WORKSPACE_SHARE) << 20
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace)
    profile = builder.create_optimization_profile()
    for name, shapes in profiles.items():
        profile.set_shape(name, shapes.min, shapes.opt, shapes.max)
    config.add_optimization_profile(profile)
    return config


def lesson_of(target: Target) -> str:
    """The name under which kernel timings are shared: those of every version and kind of GPU lie in files of their own,
    and a target that names no GPU has its own."""
    return f"TensorRT timings {target.compute_capability or target.name}"


def _timing_cache(config: Any, target: Target, kept: Path, trt: Any) -> tuple[Any, Path]:
    """What earlier builds on this kind of GPU, by this version, learned: a new version of a model builds faster."""
    file = kept / f"tensorrt-{trt.__version__}-sm{target.compute_capability.replace('.', '')}.cache"
    cache = config.create_timing_cache(file.read_bytes() if file.is_file() else b"")
    config.set_timing_cache(cache, False)  # positional in TensorRT: ignore_mismatch
    return cache, file


def read_stamp(folder: Path) -> Stamp | None:
    """The stamp of a model folder; None: it holds no plan."""
    file = folder / STAMP
    return Stamp.model_validate_json(file.read_text()) if file.is_file() else None


def mismatch(stamp: Stamp, *, tensorrt: str, compute_capability: str) -> str:
    """Why a plan can't run under a TensorRT version on a GPU; empty: it can. What is not known is not compared.

    Plans are made without version compatibility, so the whole version must agree, as far as it is given.
    """
    wanted = tensorrt.split(".")
    if tensorrt and stamp.tensorrt.split(".")[: len(wanted)] != wanted:
        return f"the plan was built by TensorRT {stamp.tensorrt}, {tensorrt} would load it"
    built = capability(stamp.compute_capability)
    if compute_capability and (0, 0) != built != capability(compute_capability):
        return f"the plan was built for compute capability {stamp.compute_capability}, not {compute_capability}"
    return ""


def require_match(stamp: Stamp, target: Target) -> None:
    """The check before a plan is scheduled to a target.

    Raises:
        QuantizeFailed: it could not be loaded there.
    """
    wanted = target.versions.tensorrt
    if why := mismatch(stamp, tensorrt=wanted, compute_capability=target.compute_capability):
        raise QuantizeFailed(f"target {target.name}: {why}", do="Run the release again for this target.")
