"""A pipeline's tensors as its clients see them, including the output that names the bundle."""

from collections.abc import Mapping

from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.spec.pipeline import BUNDLE, PipelineSpec, TensorType

BUNDLE_TYPE = TensorType(datatype="BYTES", shape=(1,))


def outputs_of(spec: PipelineSpec) -> dict[str, TensorType]:
    """What clients get: the pipeline's outputs, and the one that names the bundle."""
    return {**spec.outputs, BUNDLE: BUNDLE_TYPE}


def pipeline_signature(spec: PipelineSpec) -> Signature:
    """The tensors that a pipeline takes and gives. Shapes are whole: the first dimension counts rows."""
    return Signature(inputs=_tensors(spec.inputs), outputs=_tensors(outputs_of(spec)))


def _tensors(types: Mapping[str, TensorType]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=name, datatype=kind.datatype, shape=kind.shape) for name, kind in types.items())
