"""config.pbtxt for the bundled server and for NVIDIA's image, from one description of a model.

It is written through Triton's own protobuf, so an unknown field or a wrong type is impossible. The differences between
the two servers are in `_backend`; Triton's model_configuration.md explains each field. The bundled server runs ONNX
models in backends with the same names and parameters as NVIDIA's (`backends/onnxruntime`, `backends/openvino`), and
ensembles of trees in one with the file and parameters of NVIDIA's `fil` (`backends/trees`). Models that these do not
support, with text or states, run in the Python backend. On NVIDIA's server, only the front of a model that takes text
or images runs in Python.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from shiplift.runtime.records.limits import Limits
from shiplift.runtime.records.precision import TEXT_ENGINES, Engine, Precision
from shiplift.runtime.records.serving import Padding, ServerKind, ServerNeeds, ServingConfig
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.trees import TreesForm
from shiplift.runtime.spec.serving_settings import Generation, Metrics, SequenceBatching, Serving
from shiplift.runtime.spec.target import InstanceGroup, Profile, TensorRT

_US_PER_MS = 1000
_US_PER_S = 1_000_000
_MS_PER_S = 1000
TENSORRT_CACHE = "/var/cache/shiplift/tensorrt"
_MODES: dict[Precision, str] = {
    "fp64": "FP32",
    "fp32": "FP32",
    "fp16": "FP16",
    "bf16": "FP32",
    "int8": "INT8",
    "fp8": "FP32",
}
_DTYPES: dict[Precision, str] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_HINTS: dict[Precision, str] = {"bf16": "bf16", "fp16": "f16"}
OPENVINO_CACHE = "/tmp/openvino"  # noqa: S108 - the bundled server's private /tmp, which ends with it
_THREADS = {
    "python": "intra_op_threads",
    "onnxruntime": "intra_op_thread_count",
    "pytorch": "INTRA_OP_THREAD_COUNT",
    "trees": "cpu_nthread",
    "fil": "cpu_nthread",
}
TIME_LIMIT = "request_timeout_ms"
LIMITS = {  # the parameters of `Limits`
    "load_s": "load_timeout_ms",
    "memory_mb": "memory_mb",
    "cpu_s": "cpu_time_ms",
    "threads": "max_threads",
    "open_files": "max_open_files",
    "temporary_mb": "temporary_mb",
}
# Parameters that tuning writes.
TUNED = ("NUM_STREAMS", "INFERENCE_NUM_THREADS", *_THREADS.values(), LIMITS["memory_mb"])
_FILES = {
    "tensorrt": "model.plan",
    "pytorch": "model.pt",
    "onnxruntime": "model.onnx",
    "openvino": "model.onnx",
    "trees": "checkpoint.tl",
    "fil": "checkpoint.tl",
}
_PAD, _CUT, _BUCKETS = "length_pad.", "length_cut.", "length_buckets"  # as in `backends/common/lengths.h`
_GRAPH_LEVELS = {"off": -1, "basic": 1, "all": 0}  # ModelOptimizationPolicy.Graph: -1 off, 0 default, 1 basic


@dataclass(frozen=True, kw_only=True)
class WarmupRequest:
    """A warm-up request: its batch size and, per input, the file with its raw bytes and its shape without the batch.

    An input without a file gets zeros. The request is executed `count` times. `name` begins its name in the log.
    """

    batch: int
    name: str = "example"
    count: int = 1
    files: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """Everything a configuration says about a model, whichever server runs it.

    `signature` is what clients see; `states` are the tensors hidden from them, by the input that takes each. `trees`
    is how a forest's scores become answers, if the engine is `trees`. `limits` are for servers that enforce them: the
    bundled one, and Python in any.
    """

    name: str
    version: int
    signature: Signature
    states: Mapping[str, TensorSpec] = field(default_factory=dict)
    config: ServingConfig
    serving: Serving
    labels_file: str = ""
    warmups: tuple[WarmupRequest, ...] = ()
    gpu: bool = False
    engine: Engine = "onnxruntime"
    precision: Precision = "fp32"
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    tensorrt: TensorRT = field(default_factory=TensorRT)
    gpus: tuple[int, ...] = ()
    instance_groups: tuple[InstanceGroup, ...] = ()
    padding: Padding | None = None
    trees: TreesForm | None = None
    limits: Limits = field(default_factory=Limits)


def model_config(model: ModelDescription, server: ServerKind) -> pb.ModelConfig:
    """The configuration of a model on one kind of server."""
    config = pb.ModelConfig(name=model.name, max_batch_size=model.config.max_batch)
    config.version_policy.specific.versions.append(model.version)
    reshaped = not in_python(model, server)
    if model.signature.streamed:
        config.model_transaction_policy.decoupled = True
    for spec in model.signature.inputs:
        _tensor(config.input.add(), spec, reshaped=reshaped)
    for at, spec in enumerate(model.signature.outputs):
        output = config.output.add()
        _tensor(output, spec, reshaped=reshaped)
        if at == 0 and model.labels_file:
            output.label_filename = model.labels_file
    _lengths(config, model)
    _instances(config, model, server)
    _batching(config, model)
    if model.serving.response_cache:
        config.response_cache.enable = True
    for warmup in model.warmups:
        _warmup(config, warmup, model.signature.inputs)
    if server == "nvidia":
        _implicit_states(config, model)
    _backend(config, model, server)
    return config


def in_python(model: ModelDescription, server: ServerKind) -> bool:
    """Whether a server runs the model in its Python backend, so that the package needs a `model.py`."""
    tensors = (*model.signature.inputs, *model.signature.outputs)
    special = model.serving.sequence_batching is not None or any(spec.datatype == "BYTES" for spec in tensors)
    return model.engine == "python" or model.signature.streamed or (server == "bundled" and special)


def render(config: pb.ModelConfig) -> str:
    """The configuration as text; equal configurations give equal text."""
    return str(text_format.MessageToString(config))


def parse(text: str) -> pb.ModelConfig:
    """A configuration from text; raises `text_format.ParseError` for an unknown field."""
    return text_format.Parse(text, pb.ModelConfig())


def renamed(text: str, name: str) -> str:
    """The same configuration with another model name."""
    config = parse(text)
    config.name = name
    return render(config)


def retuned(text: str, config: ServingConfig, late_after_ms: float = 0.0, memory_mb: int | None = None) -> str:
    """The same model with another serving configuration: changes only what tuning varies.

    A request that has waited for `late_after_ms` lets all others go first; with 0, requests are answered in turn.
    Triton calls this DELAY: the request moves to a second queue, which is served when the first one is empty. A
    pipeline's graph takes whole tensors and stays as it is. `memory_mb` is what each of the model's processes may use
    (None: as before).
    """
    model = parse(text)
    if not model.max_batch_size:
        return text
    model.max_batch_size = config.max_batch
    _batcher(model).max_queue_delay_microseconds = config.queue_delay_us
    model.instance_group[0].count = config.instances
    _buckets(model, config.buckets)
    _threads(model, config)
    if memory_mb is not None and TIME_LIMIT in model.parameters:  # a server that enforces limits
        model.parameters[LIMITS["memory_mb"]].string_value = str(memory_mb)
    if late_after_ms:
        policy = model.dynamic_batching.default_queue_policy
        policy.timeout_action = pb.ModelQueuePolicy.TimeoutAction.Value("DELAY")
        policy.default_timeout_microseconds = int(late_after_ms * _US_PER_MS)
    for warmup in model.model_warmup[1:]:
        warmup.batch_size = config.max_batch
        warmup.name = f"{warmup.name.rpartition('-')[0]}-{config.max_batch}"
    return render(model)


def of_called(config: ServingConfig) -> ServingConfig:
    """The configuration of a model that one with `config` calls: without a delay, since its batches already waited."""
    return config.model_copy(update={"queue_delay_us": 0})


def positional(signature: Signature) -> tuple[Signature, dict[str, str]]:
    """The signature with tensors named by position, as PyTorch's backend needs, and the new names by the old ones."""
    inputs = {spec.name: f"INPUT__{at}" for at, spec in enumerate(signature.inputs)}
    outputs = {spec.name: f"OUTPUT__{at}" for at, spec in enumerate(signature.outputs)}

    def with_names(specs: tuple[TensorSpec, ...], names: Mapping[str, str]) -> tuple[TensorSpec, ...]:
        return tuple(spec.model_copy(update={"name": names[spec.name]}) for spec in specs)

    by_position = Signature(inputs=with_names(signature.inputs, inputs), outputs=with_names(signature.outputs, outputs))
    return by_position, {f"input/{old}": f"input/{new}" for old, new in inputs.items()} | {
        f"output/{old}": f"output/{new}" for old, new in outputs.items()
    }


def datatype_value(name: str) -> int:
    """The number of a Triton datatype in the protobuf."""
    return int(pb.DataType.Value("TYPE_STRING" if name == "BYTES" else f"TYPE_{name}"))


def _tensor(entry: Any, spec: TensorSpec, *, reshaped: bool) -> None:
    """Writes a tensor. Shapes omit the batch, and a rank-1 tensor, with one number per sample, is [1] in Triton.

    Triton has to remove that dimension again (`reshaped`), unless the backend does so itself.
    """
    entry.name = spec.name
    entry.data_type = datatype_value(spec.datatype)
    entry.dims.extend(spec.shape[1:] or (1,))
    if spec.optional:
        entry.optional = True
    if len(spec.shape) == 1 and reshaped:
        entry.reshape.SetInParent()


def _lengths(config: pb.ModelConfig, model: ModelDescription) -> None:
    """Writes what each input is padded with and which outputs are cut back, and the buckets if there are any."""
    padding = model.padding
    if padding is None or not padding.buckets:
        return
    for name, value in padding.pad.items():
        config.parameters[f"{_PAD}{name}"].string_value = f"{value:.17g}"
    for name in padding.cut:
        config.parameters[f"{_CUT}{name}"].string_value = "yes"
    _buckets(config, model.config.buckets)


def _buckets(config: pb.ModelConfig, buckets: tuple[int, ...]) -> None:
    """Writes the buckets; with them, Triton puts requests of any length in a batch, and the backend pads."""
    if buckets:
        config.parameters[_BUCKETS].string_value = ",".join(map(str, buckets))
    elif _BUCKETS in config.parameters:
        del config.parameters[_BUCKETS]
    for tensor in config.input:
        tensor.allow_ragged_batch = bool(buckets) and f"{_PAD}{tensor.name}" in config.parameters


def _instances(config: pb.ModelConfig, model: ModelDescription, server: ServerKind) -> None:
    """Writes the instances; those that tuning decides on come first, where `retuned` finds them."""
    least = least_instances(model.serving, server)
    if model.config.instances < least:
        raise ValueError(f"{model.name} has {model.config.instances} instance, its queue policy needs {least}")
    tuned = config.instance_group.add(count=model.config.instances, kind=_kind(model), gpus=_gpus(model))
    for fixed in model.instance_groups:
        kind = pb.ModelInstanceGroup.KIND_CPU if fixed.kind == "cpu" else pb.ModelInstanceGroup.KIND_GPU
        config.instance_group.add(count=fixed.count, kind=kind, gpus=fixed.gpus)
    limiter, host = model.serving.rate_limiter, model.serving.host_policy
    if limiter:
        for group in config.instance_group:
            group.rate_limiter.priority = limiter.priority
            for name, count in sorted(limiter.resources.items()):
                group.rate_limiter.resources.add(name=name, count=count)
    if host:
        tuned.host_policy = host_policy_name(model.serving)


def _kind(model: ModelDescription) -> Any:
    """Says who chooses the GPUs: Triton for each instance, or an engine that may spread the model over several."""
    if model.engine in TEXT_ENGINES:
        return pb.ModelInstanceGroup.KIND_MODEL
    return pb.ModelInstanceGroup.KIND_GPU if model.gpu else pb.ModelInstanceGroup.KIND_CPU


def _gpus(model: ModelDescription) -> tuple[int, ...]:
    return () if model.engine in TEXT_ENGINES else model.gpus


def least_instances(serving: Serving, server: ServerKind) -> int:
    """The minimum number of instances for a model's batcher to wake up in time.

    With priorities or a queue policy, Triton hands over a batch only when an instance is idle. A request that arrives
    while the only instance finishes goes unnoticed for up to 500 ms (dynamic_batch_scheduler.cc; seen in 2.51 with one
    instance, not with two). NVIDIA's backends return to idle faster, so there the spec's number stands.
    """
    has_policy = serving.priorities or serving.queue.max_size or serving.queue.timeout_ms or serving.late_last
    return least_policed_instances(server) if has_policy else 1


def least_policed_instances(server: ServerKind) -> int:
    """The same, for a model with a queue policy."""
    return 2 if server == "bundled" else 1


def host_policy_name(serving: Serving) -> str:
    """The name of the host policy that a server's `--host-policy` flags must define."""
    host = serving.host_policy
    if host is None:
        return ""
    node = "any" if host.numa_node is None else str(host.numa_node)
    cores = (host.cpu_cores or "all").replace(",", "_")
    return f"numa_{node}_cores_{cores}"


def server_needs(serving: Serving, server: ServerKind) -> ServerNeeds:
    """What a server must be started with so that a model's configuration takes effect.

    The bundled server needs no host policy: its backends pin their instances themselves.
    """
    flags = [*metrics_flags(serving.metrics), *(host_policy_flags(serving) if server == "nvidia" else [])]
    return ServerNeeds(
        rate_limiter=serving.rate_limiter is not None, flags=tuple(flags), request_timeout_s=serving.request_timeout_s
    )


def metrics_flags(metrics: Metrics) -> list[str]:
    """The flags that set a server's metrics; none for the defaults."""
    if metrics == Metrics():
        return []
    shown = sorted({0.5, 0.99, *metrics.quantiles})
    quantiles = ",".join(f"{quantile:g}:{min(0.05, (1 - quantile) / 10):.2g}" for quantile in shown)
    return [f"--metrics-interval-ms={metrics.interval_ms}", f"--metrics-config=summary_quantiles={quantiles}"]


def host_policy_flags(serving: Serving) -> list[str]:
    """The flags that NVIDIA's server needs for the host policy to take effect."""
    host = serving.host_policy
    if host is None:
        return []
    name = host_policy_name(serving)
    flags = [f"--host-policy={name},numa-node={host.numa_node}"] if host.numa_node is not None else []
    return [*flags, f"--host-policy={name},cpu-cores={host.cpu_cores}"] if host.cpu_cores else flags


def _batching(config: pb.ModelConfig, model: ModelDescription) -> None:
    """Writes dynamic batching: delay, preferred sizes, priorities and queue policy."""
    serving = model.serving
    if largest := max(serving.preferred_batch_size, default=0):
        _require_room(model, largest)
    if serving.sequence_batching:
        _sequences(config, model, serving.sequence_batching)
        return
    batching = config.dynamic_batching
    batching.SetInParent()
    batching.preferred_batch_size.extend(serving.preferred_batch_size)
    batching.max_queue_delay_microseconds = model.config.queue_delay_us
    if serving.priorities:
        batching.priority_levels = serving.priorities.levels
        batching.default_priority_level = serving.priorities.default
    if serving.queue.max_size or serving.queue.timeout_ms:
        policy = batching.default_queue_policy
        policy.max_queue_size = serving.queue.max_size
        policy.default_timeout_microseconds = int(serving.queue.timeout_ms * _US_PER_MS)
        policy.allow_timeout_override = serving.queue.allow_timeout_override
        policy.timeout_action = pb.ModelQueuePolicy.TimeoutAction.Value(serving.queue.on_timeout.upper())


def _require_room(model: ModelDescription, largest: int) -> None:
    """Requires that the model takes batches of the largest preferred size: Triton refuses it otherwise."""
    if model.config.max_batch < largest:
        raise ValueError(f"{model.name} has max_batch {model.config.max_batch}, it prefers batches of {largest}")


def _sequences(config: pb.ModelConfig, model: ModelDescription, sequences: SequenceBatching) -> None:
    """Writes sequence batching: oldest first, so that requests of different sequences can share a batch.

    See Triton's model_configuration.md.
    """
    batching = config.sequence_batching
    batching.max_sequence_idle_microseconds = int(sequences.max_sequence_idle_s * _US_PER_S)
    batching.oldest.max_candidate_sequences = sequences.max_candidate_sequences
    batching.oldest.max_queue_delay_microseconds = model.config.queue_delay_us
    batching.oldest.preferred_batch_size.extend(model.serving.preferred_batch_size)


def _batcher(config: pb.ModelConfig) -> Any:
    """The part of a configuration that says how long its batcher waits."""
    sequences = config.WhichOneof("scheduling_choice") == "sequence_batching"
    return config.sequence_batching.oldest if sequences else config.dynamic_batching


def _implicit_states(config: pb.ModelConfig, model: ModelDescription) -> None:
    """Writes the states, which NVIDIA's backends keep themselves; each sequence starts with zeros."""
    for name, spec in model.states.items():
        state = config.sequence_batching.state.add(input_name=name, output_name=spec.name)
        state.data_type = datatype_value(spec.datatype)
        state.dims.extend(spec.shape[1:])
        first = state.initial_state.add(name=f"{name} at the start", zero_data=True)
        first.data_type = state.data_type
        first.dims.extend(spec.shape[1:])


def _warmup(config: pb.ModelConfig, warmup: WarmupRequest, inputs: tuple[TensorSpec, ...]) -> None:
    entry = config.model_warmup.add(name=f"{warmup.name}-batch-{warmup.batch}", batch_size=warmup.batch)
    if warmup.count > 1:
        entry.count = warmup.count
    for spec in inputs:
        tensor = entry.inputs[spec.name]
        tensor.data_type = datatype_value(spec.datatype)
        tensor.dims.extend(warmup.shapes[spec.name])
        if spec.name in warmup.files:
            tensor.input_data_file = warmup.files[spec.name]
        else:
            tensor.zero_data = True


def _accelerate(config: pb.ModelConfig, model: ModelDescription) -> None:
    """Turns on TensorRT inside ONNX Runtime. With the caches, only the first load builds engines and times kernels."""
    entry = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="tensorrt")
    tensorrt = model.tensorrt
    values = {"precision_mode": _MODES[model.precision]}
    if tensorrt.engine_cache:
        values |= {
            "trt_engine_cache_enable": "true",
            "trt_engine_cache_path": f"{TENSORRT_CACHE}/{model.name}/{model.version}",
        }
    if tensorrt.timing_cache:
        values |= {"trt_timing_cache_enable": "true", "trt_timing_cache_path": TENSORRT_CACHE}
    if tensorrt.workspace_mb:
        values["max_workspace_size_bytes"] = str(tensorrt.workspace_mb << 20)
    if tensorrt.optimization_level is not None:
        values["trt_builder_optimization_level"] = str(tensorrt.optimization_level)
    if tensorrt.min_subgraph_size is not None:
        values["trt_min_subgraph_size"] = str(tensorrt.min_subgraph_size)
    for bound in ("min", "opt", "max") if model.profiles else ():
        shapes = [f"{n}:{'x'.join(map(str, getattr(p, bound)))}" for n, p in sorted(model.profiles.items())]
        values[f"trt_profile_{bound}_shapes"] = ",".join(shapes)
    for key, value in values.items():
        entry.parameters[key] = value


def _threads(model: pb.ModelConfig, config: ServingConfig) -> None:
    """Writes how many threads compute, under the backend's names; TensorRT has no such setting.

    OpenVINO counts the threads of all instances together, and shares them out among as many streams.
    """
    if model.backend == "openvino":
        model.parameters["NUM_STREAMS"].string_value = str(config.instances)
        model.parameters["INFERENCE_NUM_THREADS"].string_value = str(config.instances * config.threads)
    elif model.backend in _THREADS:
        model.parameters[_THREADS[model.backend]].string_value = str(config.threads)


def _backend(config: pb.ModelConfig, model: ModelDescription, server: ServerKind) -> None:
    config.backend = backend_of(model, server)
    config.default_model_filename = _FILES.get(config.backend, "")
    _threads(config, model.config)
    if config.backend == "pytorch":
        config.platform = "pytorch_libtorch"
        config.parameters["INTER_OP_THREAD_COUNT"].string_value = "1"
    elif config.backend == "onnxruntime":
        _onnxruntime(config, model)
    elif config.backend == "openvino":
        _openvino(config, model, server)
    elif model.engine == "trees":
        _trees(config, model.trees or TreesForm(answers={}), server)
    elif config.backend == "python":
        _python_backend(config, model)
    if server == "bundled":
        _pinning(config, model.serving)
    if server == "bundled" or in_python(model, server):
        config.parameters[TIME_LIMIT].string_value = str(round(model.serving.request_timeout_s * _MS_PER_S))
        write_limits(config, model.limits)


def write_limits(config: pb.ModelConfig, limits: Limits) -> None:
    """Writes the limits that are set (`backends/common/limits.h`, `guest/python/python_model.py`)."""
    for name, parameter in LIMITS.items():
        if (value := getattr(limits, name)) is not None:
            number = round(value * _MS_PER_S) if name.endswith("_s") else value
            config.parameters[parameter].string_value = str(number)


def backend_of(model: ModelDescription, server: ServerKind) -> str:
    """The name of the backend that runs a model on a server."""
    if in_python(model, server):
        return "python"
    if model.engine == "trees" and server == "nvidia":
        return "fil"
    return "onnxruntime" if model.engine == "onnxruntime-tensorrt" else model.engine


def _onnxruntime(config: pb.ModelConfig, model: ModelDescription) -> None:
    if model.engine == "onnxruntime-tensorrt":
        _accelerate(config, model)
    config.optimization.graph.level = _GRAPH_LEVELS[model.serving.graph_optimization]
    config.parameters["inter_op_thread_count"].string_value = "1"


def _openvino(config: pb.ModelConfig, model: ModelDescription, server: ServerKind) -> None:
    """Writes OpenVINO's parameters. Without the hint for bf16, the bundled server computes in fp32.

    NVIDIA's backend compiles for the largest batch alone, so smaller batches must be padded.
    """
    if model.precision == "bf16":
        config.parameters["HINT_BF16"].string_value = "YES"
    if server == "bundled":
        config.parameters["CACHE_DIR"].string_value = OPENVINO_CACHE
    else:
        config.parameters["ENABLE_BATCH_PADDING"].string_value = "YES"


def _trees(config: pb.ModelConfig, trees: TreesForm, server: ServerKind) -> None:
    """The parameters of NVIDIA's backend, and those of ours alone: it has several outputs, and classes of any value."""
    values = {"model_type": "treelite_checkpoint", "output_class": "true" if trees.classifier else "false"}
    if trees.classifier:
        values["predict_proba"] = "true" if "scores" in trees.answers.values() else "false"
    if trees.classifier or trees.threshold is not None:
        values["threshold"] = f"{0.5 if trees.threshold is None else trees.threshold:.17g}"
    if server == "bundled":
        values |= {"feature_type": trees.features} | {f"answer.{name}": kind for name, kind in trees.answers.items()}
        values |= {"classes": ",".join(map(str, trees.classes))} if trees.classes else {}
        numbers = {"zero_within": trees.zero_within, "subtracted_from": trees.subtracted_from}
        values |= {name: f"{number:.17g}" for name, number in numbers.items() if number is not None}
    for name, value in values.items():
        config.parameters[name].string_value = value


def _python_backend(config: pb.ModelConfig, model: ModelDescription) -> None:
    """The parameters that our model.py reads; with a precision hint it computes on OpenVINO."""
    serving = model.serving
    if model.engine in TEXT_ENGINES:
        config.parameters["dtype"].string_value = _DTYPES[model.precision]
        config.parameters["gpus"].string_value = str(max(len(model.gpus), 1))
    if model.engine == "openvino":
        config.parameters["precision_hint"].string_value = _HINTS.get(model.precision, "f32")
    config.parameters["FORCE_CPU_ONLY_INPUT_TENSORS"].string_value = "yes"
    if model.engine == "python":
        return
    if model.signature.streamed:
        _generation(config, serving.generation)
        return
    config.parameters["graph_optimization"].string_value = serving.graph_optimization
    if sequences := serving.sequence_batching:
        config.parameters["sequence_states"].string_value = json.dumps(sequences.states, sort_keys=True)


def _generation(config: pb.ModelConfig, generation: Generation) -> None:
    """The limits of a model that generates text, which our model.py enforces."""
    for name, value in generation.model_dump().items():
        config.parameters[name].string_value = str(value)


def _pinning(config: pb.ModelConfig, serving: Serving) -> None:
    """The parameters that the bundled server's backends read instead of a host policy, which needs server flags."""
    host = serving.host_policy
    if host and host.cpu_cores:
        config.parameters["cpu_cores"].string_value = host.cpu_cores
    if host and host.numa_node is not None:
        config.parameters["numa_node"].string_value = str(host.numa_node)
