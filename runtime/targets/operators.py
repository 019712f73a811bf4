"""What a target's ONNX Runtime can load: opsets, domains and IR versions, by release."""

from dataclasses import dataclass
from pathlib import Path

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.serving.triton.requirements import pinned
from shiplift.runtime.spec.model import NEWEST_OPSET
from shiplift.runtime.spec.target import Target
from shiplift.runtime.targets.machine import numbers


def bundled_onnxruntime() -> str:
    """The version of ONNX Runtime in the bundled server's environment."""
    return pinned("onnxruntime")


# (minor release of ONNX Runtime, newest opset that it loads): measured from 1.19 on, taken from ONNX Runtime's
# compatibility table before that. A release loads models of newer opsets only by chance.
_OPSETS = ((12, 17), (14, 18), (15, 19), (17, 20), (18, 21), (21, 22), (23, 23), (24, 25), (25, 26))
_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "com.microsoft", "com.microsoft.nchwc"}


@dataclass(frozen=True, kw_only=True)
class Support:
    """The newest opsets and IR version that a version of ONNX Runtime loads."""

    opset: int
    ml_opset: int
    ir: int


def require_operators(model: Path, target: Target) -> None:
    """Checks a graph against the target's ONNX Runtime, before anything is built for the target.

    Raises:
        ExportFailed: that version does not know an operator, an opset or the IR version of the graph.
    """
    import onnx  # noqa: PLC0415 - takes 0.1 s

    loaded = onnx.load(model, load_external_data=False)
    own = {function.domain for function in loaded.functions}
    for node in loaded.graph.node:
        if node.domain not in _DOMAINS | own:
            raise ExportFailed(
                f"operator {node.domain}::{node.op_type} is in no ONNX Runtime that target {target.name} can run",
                do="Export the model with standard operators.",
            )
    version = target.versions.onnxruntime or (bundled_onnxruntime() if target.server == "bundled" else "")
    supported = support_of(version)
    if supported is None:
        return
    runs = f"target {target.name} runs ONNX Runtime {version}, which loads"
    for entry in loaded.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version > supported.opset:
            raise ExportFailed(
                f"the model has opset {entry.version}; {runs} opsets up to {supported.opset}",
                do=f"Set `export.opset: {min(supported.opset, NEWEST_OPSET)}`, or serve it with a newer ONNX Runtime.",
            )
        if entry.domain == "ai.onnx.ml" and entry.version > supported.ml_opset:
            raise ExportFailed(
                f"the model has opset {entry.version} of ai.onnx.ml; {runs} those up to {supported.ml_opset}",
                do="Convert the model with an older opset and log it as ONNX, or serve it with a newer ONNX Runtime.",
            )
    if loaded.ir_version > supported.ir:
        raise ExportFailed(
            f"the model's file has IR version {loaded.ir_version}; {runs} those up to {supported.ir}",
            do="Save it with an older `ir_version`, or serve it with a newer ONNX Runtime.",
        )


def support_of(version: str) -> Support | None:
    """What a version of ONNX Runtime loads, from the release of ONNX that it was built with; None if unknown."""
    import onnx  # noqa: PLC0415

    release = numbers(version)
    if len(release) < 2 or release[0] != 1:
        return None
    opset = max((opset for minor, opset in _OPSETS if minor <= release[1]), default=0)
    rows = [row for row in onnx.helper.VERSION_TABLE if row[2] <= opset]
    if not rows:
        return None
    return Support(opset=opset, ml_opset=max(row[3] for row in rows), ir=max(row[1] for row in rows))
