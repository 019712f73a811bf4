"""A pipeline's configuration in Triton: an ensemble, or a model of the Python backend that calls the members (BLS).

Both work on whole tensors, without Triton's batch dimension: the members batch the rows of many requests themselves,
and a pipeline's tensors need not have the same number of rows.
"""

from collections.abc import Mapping
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.composition.checked import CheckedPipeline
from shiplift.runtime.composition.signature import outputs_of
from shiplift.runtime.composition.types import rows_of
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.bundles.names import member_name, pool_name, witness_name
from shiplift.runtime.serving.triton.config import datatype_value
from shiplift.runtime.spec.pipeline import (
    BUNDLE,
    REQUEST_TIMEOUT_S,
    Condition,
    Constant,
    PipelineSpec,
    TensorType,
)

VERSION = 1
_WITNESSES = 2  # instances; each answers in a fraction of a millisecond


def ensemble(spec: PipelineSpec, checked: CheckedPipeline, version: int = VERSION) -> pb.ModelConfig:
    """The pipeline as an ensemble: its steps, one after another, and last the witness, which passes on their outputs.

    No two steps run at the same time: Triton loses a request if a step fails while another one is under way.
    """
    config = _graph(spec, version)
    config.platform = "ensemble"
    packages = {member.name: member.package for member in checked.members}
    for name in checked.order:
        step, package = spec.steps[name], packages[spec.steps[name].member]
        entry = config.ensemble_scheduling.step.add(
            model_name=member_name(package, checked.digest), model_version=package.version
        )
        for key, tensor in step.inputs.items():
            entry.input_map[key] = tensor if tensor in spec.inputs else _inner(tensor)
        for key, output in step.outputs.items():
            entry.output_map[key] = _inner(str(output))
    witnessed = config.ensemble_scheduling.step.add(
        model_name=witness_name(spec.name, checked.digest), model_version=VERSION
    )
    for name in spec.outputs:
        witnessed.input_map[_inner(name)] = _inner(name)
        witnessed.output_map[name] = name
    witnessed.output_map[BUNDLE] = BUNDLE
    return config


def witness(spec: PipelineSpec, checked: CheckedPipeline) -> pb.ModelConfig:
    """The model that passes the pipeline's outputs on and adds the bundle's digest."""
    config = pb.ModelConfig(name=witness_name(spec.name, checked.digest), backend="python")
    for name, kind in spec.outputs.items():
        _tensor(config.input.add(), _inner(name), kind)
    for name, kind in outputs_of(spec).items():
        _tensor(config.output.add(), name, kind)
    config.instance_group.add(count=_WITNESSES, kind=pb.ModelInstanceGroup.KIND_CPU)
    config.parameters["FORCE_CPU_ONLY_INPUT_TENSORS"].string_value = "yes"
    config.parameters["bundle"].string_value = checked.digest
    return config


def bls(spec: PipelineSpec, version: int = VERSION) -> pb.ModelConfig:
    """The pipeline as a model of the Python backend, which reads `plan` beside it."""
    config = _graph(spec, version)
    config.backend = "python"
    config.instance_group.add(count=spec.instances, kind=pb.ModelInstanceGroup.KIND_CPU)
    config.parameters["FORCE_CPU_ONLY_INPUT_TENSORS"].string_value = "yes"
    return config


def pool(spec: PipelineSpec, checked: CheckedPipeline) -> pb.ModelConfig:
    """The model that runs the author's Python: each instance is one worker, and Triton's queue hands it the calls."""
    config = pb.ModelConfig(name=pool_name(spec.name, checked.digest), backend="python")
    for name, datatype, dim in (("call", "UINT8", -1), ("limits", "FP64", 2)):
        config.input.add(name=name, data_type=datatype_value(datatype), dims=[dim])
    config.output.add(name="answer", data_type=datatype_value("UINT8"), dims=[-1])
    config.instance_group.add(count=spec.workers, kind=pb.ModelInstanceGroup.KIND_CPU)
    config.parameters["FORCE_CPU_ONLY_INPUT_TENSORS"].string_value = "yes"
    return config


def pooled(spec: PipelineSpec) -> dict[str, Any]:
    """What `guest/pipelines/pipeline_pool.py` runs, as JSON: files and functions, and the limits of each worker."""
    return {"functions": spec.functions, "limits": spec.admission.model_dump(exclude={"python"})}


def plan(spec: PipelineSpec, checked: CheckedPipeline) -> dict[str, Any]:
    """What `guest/pipelines/pipeline_model.py` does for a request, as JSON."""
    packages = {member.name: member.package for member in checked.members}
    return {
        "pipeline": spec.name,
        "bundle": checked.digest,
        "timeout_s": spec.timeout_s or REQUEST_TIMEOUT_S,
        "inputs": list(spec.inputs),
        "outputs": {name: _type(kind) for name, kind in spec.outputs.items()},
        "steps": [_planned(name, spec, packages.get(spec.steps[name].member), checked) for name in checked.order],
    }


def _graph(spec: PipelineSpec, version: int) -> pb.ModelConfig:
    """What an ensemble and a BLS model have in common: the tensors that clients see."""
    config = pb.ModelConfig(name=serving_name(spec.name))
    config.version_policy.specific.versions.append(version)
    for name, kind in spec.inputs.items():
        _tensor(config.input.add(), name, kind)
    for name, kind in outputs_of(spec).items():
        _tensor(config.output.add(), name, kind)
    return config


def _tensor(entry: Any, name: str, kind: TensorType) -> None:
    entry.name = name
    entry.data_type = datatype_value(kind.datatype)
    entry.dims.extend(kind.shape)


def _inner(tensor: str) -> str:
    """The name of a tensor between steps. It differs from every output's, since only the witness gives outputs."""
    return f"step/{tensor}"


def _planned(name: str, spec: PipelineSpec, package: Package | None, checked: CheckedPipeline) -> dict[str, Any]:
    step = spec.steps[name]
    gives = {key: output if isinstance(output, str) else key for key, output in step.outputs.items()}
    runs = (
        {"model": member_name(package, checked.digest), "version": package.version, "rows": rows_of(package)}
        if package
        else {
            "python": step.python,
            "function": step.called,
            "pool": pool_name(spec.name, checked.digest),
            "version": VERSION,
        }
    )
    return {
        "name": name,
        **runs,
        "inputs": dict(step.inputs),
        "outputs": gives,
        "types": {tensor: _type(checked.tensors[tensor]) for tensor in gives.values()},
        "when": _condition(step.when),
        "for_each": step.for_each.model_dump() if step.for_each else None,
        "on_error": step.on_error,
        "otherwise": dict(step.otherwise),
        "defaults": {tensor: _constant(value) for tensor, value in step.defaults.items()},
        "timeout_s": step.timeout_s,
    }


def _type(kind: TensorType) -> dict[str, Any]:
    return {"datatype": kind.datatype, "shape": list(kind.shape)}


def _condition(when: Condition | None) -> Mapping[str, Any] | None:
    """A condition, with its only comparison by name."""
    if when is None:
        return None
    comparison = next(name for name in ("below", "at_least", "equals") if getattr(when, name) is not None)
    return {"tensor": when.tensor, "is": comparison, "limit": getattr(when, comparison), "of": when.of}


def _constant(constant: Constant) -> Mapping[str, Any]:
    return {"value": constant.value, "shape": list(constant.shape) if constant.shape is not None else None}
