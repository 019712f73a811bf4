from typing import Any, cast

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as pb

from shiplift.runtime.model.generation.signature import CHAT_SIGNATURE, SIGNATURE
from shiplift.runtime.records.limits import Limits
from shiplift.runtime.records.serving import Padding, ServerKind, ServingConfig
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.trees import TreesForm
from shiplift.runtime.serving.triton.config import (
    ModelDescription,
    WarmupRequest,
    datatype_value,
    host_policy_flags,
    host_policy_name,
    least_instances,
    model_config,
    parse,
    positional,
    renamed,
    render,
    retuned,
)
from shiplift.runtime.spec.serving_settings import Generation, HostPolicy, Priorities, Queue, RateLimiter, Serving
from shiplift.runtime.spec.target import InstanceGroup, Profile, TensorRT
from tests.unit.examples import Golden, config, tensor

SERVERS: tuple[ServerKind, ...] = ("bundled", "nvidia")
IMAGE = Signature(inputs=(tensor("image", -1, 3, 224, 224),), outputs=(tensor("probabilities", -1, 10),))
MIXED = Signature(
    inputs=(tensor("text", -1, 1, datatype="BYTES"), tensor("ids", -1, -1, datatype="INT64")),
    outputs=(tensor("label", -1, datatype="INT64"), tensor("scores", -1, 4, datatype="FP16")),
)
EVERYTHING = Serving(
    labels=("cat", "dog"),
    priorities=Priorities(levels=3, default=2),
    queue=Queue(max_size=64, timeout_ms=12.5, on_timeout="delay", allow_timeout_override=False),
    response_cache=True,
    preferred_batch_size=(8, 32),
    rate_limiter=RateLimiter(resources={"memory": 2, "bus": 1}, priority=3),
    host_policy=HostPolicy(numa_node=0, cpu_cores="0-3,6"),
    graph_optimization="basic",
)


def description(**changes: Any) -> ModelDescription:
    fields: dict[str, Any] = {
        "name": "digits",
        "version": 3,
        "signature": IMAGE,
        "config": config(8),
        "serving": Serving(),
        "warmups": (
            WarmupRequest(batch=1, files={"image": "3-input-0"}, shapes={"image": (3, 224, 224)}),
            WarmupRequest(batch=8, files={"image": "3-input-0"}, shapes={"image": (3, 224, 224)}),
        ),
    }
    return ModelDescription(**fields | changes)


def everything() -> ModelDescription:
    return description(
        name="everything-0123456789",
        version=12,
        signature=MIXED,
        config=config(32, 500, 2, 4),
        serving=EVERYTHING,
        labels_file="labels.12.txt",
        warmups=(
            WarmupRequest(
                batch=1, files={"text": "12-input-0", "ids": "12-input-1"}, shapes={"text": (1,), "ids": (7,)}
            ),
            WarmupRequest(batch=32, name="zeros", count=3, shapes={"text": (1,), "ids": (7,)}),
        ),
    )


def test_a_python_model_is_configured_as_promised(golden: Golden) -> None:
    golden("python.bundled.config.pbtxt", render(model_config(description(engine="python"), "bundled")))


def test_a_model_that_generates_text_is_configured_as_promised(golden: Golden) -> None:
    limits = Generation(max_prompt_tokens=2048, max_tokens=256, max_sequences=8)
    model = description(
        name="writer",
        engine="openvino",
        signature=SIGNATURE,
        config=config(1, threads=2),
        warmups=(),
        serving=Serving(generation=limits),
    )
    text = render(model_config(model, "bundled"))
    golden("generation.bundled.config.pbtxt", text)
    assert parse(text).model_transaction_policy.decoupled
    assert retuned(text, config(1, threads=2)) == text


@pytest.mark.parametrize("engine", ["vllm", "tensorrt-llm"])
def test_a_model_that_generates_text_on_gpus_is_configured_as_promised(engine: Any, golden: Golden) -> None:
    model = description(
        name="writer",
        engine=engine,
        precision="bf16",
        signature=CHAT_SIGNATURE,
        config=config(1),
        warmups=(),
        gpu=True,
        gpus=(0, 1),
        serving=Serving(generation=Generation(), request_timeout_s=120),
    )
    text = render(model_config(model, "nvidia"))
    golden(f"generation.{engine}.config.pbtxt", text)
    assert retuned(text, config(1)) == text


@pytest.mark.parametrize("server", SERVERS)
def test_an_image_classifier_is_configured_as_promised(server: ServerKind, golden: Golden) -> None:
    golden(f"image.{server}.config.pbtxt", render(model_config(description(), server)))


@pytest.mark.parametrize("server", SERVERS)
def test_a_model_with_everything_is_configured_as_promised(server: ServerKind, golden: Golden) -> None:
    golden(f"everything.{server}.config.pbtxt", render(model_config(everything(), server)))


@pytest.mark.parametrize("engine", ["onnxruntime", "onnxruntime-tensorrt", "tensorrt", "pytorch"])
def test_a_gpu_model_is_configured_as_promised(engine: Any, golden: Golden) -> None:
    profiles = {"image": Profile(min=(1, 3, 224, 224), opt=(8, 3, 224, 224), max=(32, 3, 224, 224))}
    model = description(gpu=True, engine=engine, precision="fp16", profiles=profiles)
    if engine == "pytorch":
        both = Signature(inputs=(*IMAGE.inputs, MIXED.inputs[1]), outputs=MIXED.outputs)
        model = description(gpu=True, engine=engine, warmups=(), signature=positional(both)[0])
    text = render(model_config(model, "nvidia"))
    golden(f"gpu.{engine}.config.pbtxt", text)
    assert "max_batch_size: 4" in retuned(text, config(4, 100, 2, 1))


def test_instances_on_several_gpus_and_on_the_cpu_are_configured_as_promised(golden: Golden) -> None:
    model = description(
        gpu=True,
        engine="onnxruntime-tensorrt",
        serving=Serving(rate_limiter=RateLimiter(resources={"memory": 2})),
        gpus=(0, 1),
        instance_groups=(InstanceGroup(count=3, gpus=(2,)), InstanceGroup(kind="cpu", count=2)),
        tensorrt=TensorRT(workspace_mb=2048, optimization_level=5, min_subgraph_size=3, engine_cache=False),
    )
    text = render(model_config(model, "nvidia"))
    golden("gpu.several.config.pbtxt", text)
    groups = parse(retuned(text, config(4, 100, 5, 1))).instance_group
    assert [(group.count, list(group.gpus)) for group in groups] == [(5, [0, 1]), (3, [2]), (2, [])]


def test_without_caches_tensorrt_builds_at_each_load() -> None:
    model = description(
        gpu=True, engine="onnxruntime-tensorrt", tensorrt=TensorRT(engine_cache=False, timing_cache=False)
    )
    assert "cache" not in render(model_config(model, "nvidia"))


def test_limits_are_written_where_they_are_enforced_and_tuning_changes_memory_alone() -> None:
    every = Limits(load_s=2.5, memory_mb=700, cpu_s=0.1, threads=8, open_files=64, temporary_mb=1)
    written = {"load_timeout_ms": "2500", "cpu_time_ms": "100", "max_threads": "8", "max_open_files": "64"}
    for engine, server in (("onnxruntime", "bundled"), ("openvino", "bundled"), ("python", "nvidia")):
        text = render(model_config(description(engine=engine, limits=every), cast("ServerKind", server)))
        values = {key: each.string_value for key, each in parse(text).parameters.items()}
        assert values == values | written | {"memory_mb": "700", "temporary_mb": "1"}
        assert retuned(text, config(8), memory_mb=701) == text.replace('"700"', '"701"')
    nvidia = render(model_config(description(limits=every), "nvidia"))
    assert "memory_mb" not in retuned(nvidia, config(8), memory_mb=701)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_on_openvino_is_configured_as_promised(precision: Any, server: ServerKind, golden: Golden) -> None:
    model = description(engine="openvino", precision=precision, config=config(8, 100, 2, 4))
    text = render(model_config(model, server))
    golden(f"openvino-{precision}.{server}.config.pbtxt", text)
    again = parse(retuned(text, config(4, 100, 3, 2)))
    assert again.parameters["NUM_STREAMS"].string_value == "3"
    assert again.parameters["INFERENCE_NUM_THREADS"].string_value == "6"
    assert retuned(render(again), config(8, 100, 2, 4)) == text


TOKENS = Signature(
    inputs=(tensor("input_ids", -1, -1, datatype="INT64"), tensor("attention_mask", -1, -1, datatype="INT64")),
    outputs=(tensor("features", -1, -1, 384), tensor("label", -1, 2)),
)
PADDED = Padding(pad={"input_ids": 1, "attention_mask": 0}, cut=("features",), buckets=(32, 64, 128))


@pytest.mark.parametrize("server", SERVERS)
def test_a_forest_is_configured_as_promised(server: ServerKind, golden: Golden) -> None:
    """NVIDIA's backend has one input and one output of these names, and knows classes by their position alone."""
    ours = Signature(
        inputs=(tensor("age", -1, 1, datatype="INT64"), tensor("income", -1, 1, datatype="FP64")),
        outputs=(tensor("label", -1, datatype="INT64"), tensor("probabilities", -1, 2)),
    )
    theirs = Signature(inputs=(tensor("input__0", -1, 2),), outputs=(tensor("output__0", -1, 1),))
    answers: Any = {"label": "class", "probabilities": "scores"} if server == "bundled" else {"output__0": "scores"}
    form = TreesForm(features="FP64", answers=answers, classifier=True, threshold=0.25, classes=(-1, 1))
    signature = ours if server == "bundled" else theirs
    model = description(engine="trees", signature=signature, trees=form, config=config(8, 100, 2, 4), warmups=())
    golden(f"trees.{server}.config.pbtxt", render(model_config(model, server)))


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_model_with_buckets_of_lengths_is_configured_as_promised(engine: Any, golden: Golden) -> None:
    at = config(8).model_copy(update={"buckets": (32, 128)})
    model = description(signature=TOKENS, engine=engine, padding=PADDED, config=at, warmups=())
    text = render(model_config(model, "bundled"))
    golden(f"lengths-{engine}.bundled.config.pbtxt", text)
    without = parse(retuned(text, config(8)))
    assert not any(entry.allow_ragged_batch for entry in without.input)
    assert "length_buckets" not in without.parameters
    assert retuned(render(without), at) == text


def test_a_model_whose_padding_is_refused_is_configured_like_any_other() -> None:
    refused = Padding(pad=PADDED.pad, refused="padding changes the answer")
    texts = [
        render(model_config(description(signature=TOKENS, padding=each, warmups=()), "bundled"))
        for each in (refused, None)
    ]
    assert texts[0] == texts[1]


def test_late_requests_let_others_go_first() -> None:
    text = render(model_config(description(), "bundled"))
    batching = parse(retuned(text, config(8, 100, 2, 1), late_after_ms=62.5)).dynamic_batching
    assert batching.default_queue_policy.timeout_action == pb.ModelQueuePolicy.TimeoutAction.Value("DELAY")
    assert batching.default_queue_policy.default_timeout_microseconds == 62_500
    assert not batching.default_queue_policy.allow_timeout_override
    assert not parse(retuned(text, config(8, 100, 2, 1))).dynamic_batching.HasField("default_queue_policy")


def test_pytorch_addresses_tensors_by_their_position() -> None:
    by_position, names = positional(MIXED)
    tensors = (*by_position.inputs, *by_position.outputs)
    assert [spec.name for spec in tensors] == ["INPUT__0", "INPUT__1", "OUTPUT__0", "OUTPUT__1"]
    assert [spec.shape for spec in by_position.inputs] == [spec.shape for spec in MIXED.inputs]
    assert names["input/ids"] == "input/INPUT__1"
    assert names["output/scores"] == "output/OUTPUT__1"


_tensors = st.builds(
    tensor,
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
    st.just(-1),
    st.sampled_from([-1, 1, 3, 1024]),
    datatype=st.sampled_from(["BOOL", "INT8", "UINT64", "FP16", "FP32", "FP64", "BYTES"]),
)
_signatures = st.builds(
    Signature,
    inputs=st.lists(_tensors, min_size=1, max_size=3, unique_by=lambda t: t.name).map(tuple),
    outputs=st.lists(_tensors, min_size=1, max_size=3, unique_by=lambda t: t.name).map(tuple),
)
_servings = st.builds(
    Serving,
    priorities=st.none() | st.just(Priorities(levels=5, default=3)),
    queue=st.builds(
        Queue,
        max_size=st.integers(0, 2**32 - 1),
        timeout_ms=st.floats(0, 86_400_000),
        on_timeout=st.sampled_from(["reject", "delay"]),
        allow_timeout_override=st.booleans(),
    ),
    response_cache=st.booleans(),
    rate_limiter=st.none()
    | st.builds(
        RateLimiter,
        resources=st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.integers(1, 2**31 - 1), max_size=3
        ),
        priority=st.integers(1, 2**31 - 1),
    ),
    host_policy=st.none() | st.just(HostPolicy(cpu_cores="0-3,8")),
    graph_optimization=st.sampled_from(["off", "basic", "all"]),
)
_configs = st.builds(
    ServingConfig,
    max_batch=st.integers(1, 4096),
    queue_delay_us=st.integers(0, 1_000_000),
    instances=st.integers(2, 64),
    threads=st.integers(1, 256),
)


@given(_signatures, _servings, _configs, st.sampled_from(SERVERS))
def test_whatever_the_spec_allows_can_be_written_and_read_back(
    signature: Signature, serving: Serving, at: ServingConfig, server: ServerKind
) -> None:
    model = description(signature=signature, serving=serving, config=at, warmups=())
    written = model_config(model, server)
    assert parse(render(written)) == written
    assert render(parse(render(written))) == render(written)


def test_an_unknown_field_cannot_be_read() -> None:
    with pytest.raises(text_format.ParseError):
        parse('name: "a" odd_field: 3')


@given(_configs, st.sampled_from(SERVERS))
def test_tuning_changes_what_it_varies_and_nothing_else(at: ServingConfig, server: ServerKind) -> None:
    """A package tuned to a configuration is the package made with it."""
    text = render(model_config(description(), server))
    warmups = (
        description().warmups[0],
        WarmupRequest(batch=at.max_batch, files={"image": "3-input-0"}, shapes={"image": (3, 224, 224)}),
    )
    expected = render(model_config(description(config=at, warmups=warmups), server))
    assert retuned(text, at) == expected
    assert retuned(retuned(text, at), config(8)) == text


@pytest.mark.parametrize("server", SERVERS)
def test_tuning_keeps_how_a_model_is_warmed_up_and_which_batches_it_prefers(server: ServerKind) -> None:
    tuned = parse(retuned(render(model_config(everything(), server)), config(64, 0, 2)))
    last = tuned.model_warmup[1]
    assert (last.name, last.batch_size, last.count) == ("zeros-batch-64", 64, 3)
    assert all(tensor.zero_data for tensor in last.inputs.values())
    assert list(tuned.dynamic_batching.preferred_batch_size) == [8, 32]


def test_a_model_that_prefers_a_larger_batch_than_it_takes_is_not_written() -> None:
    with pytest.raises(ValueError, match="has max_batch 8, it prefers batches of 16"):
        model_config(description(serving=Serving(preferred_batch_size=(4, 16))), "bundled")


@pytest.mark.parametrize("server", SERVERS)
def test_a_renamed_model_is_the_same_under_another_name(server: ServerKind) -> None:
    text = render(model_config(everything(), server))
    moved = parse(renamed(text, "digits--next"))
    assert moved.name == "digits--next"
    moved.name = everything().name
    assert render(moved) == text


@pytest.mark.parametrize(
    ("serving", "bundled"),
    [
        (Serving(), 1),
        (Serving(response_cache=True, labels=("a",)), 1),
        (Serving(queue=Queue(on_timeout="delay")), 1),
        (Serving(priorities=Priorities(levels=2, default=1)), 2),
        (Serving(queue=Queue(max_size=1)), 2),
        (Serving(queue=Queue(timeout_ms=0.1)), 2),
        (Serving(late_last=True), 2),
    ],
)
def test_the_bundled_server_needs_two_instances_for_a_queue_with_a_policy(serving: Serving, bundled: int) -> None:
    assert (least_instances(serving, "bundled"), least_instances(serving, "nvidia")) == (bundled, 1)


def test_a_queue_policy_with_too_few_instances_is_not_written() -> None:
    queued = description(serving=Serving(queue=Queue(max_size=5)), config=config(8, 0, 1))
    with pytest.raises(ValueError, match="has 1 instance, its queue policy needs 2"):
        model_config(queued, "bundled")
    assert model_config(queued, "nvidia").instance_group[0].count == 1


def test_what_the_spec_does_not_ask_for_is_not_written() -> None:
    written = model_config(description(warmups=()), "bundled")
    text = render(written)
    absent = (
        "priority_levels",
        "default_queue_policy",
        "response_cache",
        "rate_limiter",
        "host_policy",
        "warmup",
        "label",
    )
    assert [word for word in absent if word in text] == []
    assert written.HasField("dynamic_batching")
    assert list(written.dynamic_batching.preferred_batch_size) == []


@pytest.mark.parametrize(
    ("policy", "name", "flags"),
    [
        (None, "", []),
        (HostPolicy(numa_node=1), "numa_1_cores_all", ["--host-policy=numa_1_cores_all,numa-node=1"]),
        (HostPolicy(cpu_cores="0,2"), "numa_any_cores_0_2", ["--host-policy=numa_any_cores_0_2,cpu-cores=0,2"]),
        (
            HostPolicy(numa_node=0, cpu_cores="0-3"),
            "numa_0_cores_0-3",
            ["--host-policy=numa_0_cores_0-3,numa-node=0", "--host-policy=numa_0_cores_0-3,cpu-cores=0-3"],
        ),
        (HostPolicy(), "numa_any_cores_all", []),
    ],
)
def test_a_host_policy_is_named_alike_in_the_configuration_and_in_the_server_s_flags(
    policy: HostPolicy | None, name: str, flags: list[str]
) -> None:
    serving = Serving(host_policy=policy)
    assert (host_policy_name(serving), host_policy_flags(serving)) == (name, flags)
    assert model_config(description(serving=serving), "nvidia").instance_group[0].host_policy == name


@pytest.mark.parametrize(("name", "value"), [("BYTES", "TYPE_STRING"), ("FP32", "TYPE_FP32"), ("UINT8", "TYPE_UINT8")])
def test_a_datatype_has_the_protobuf_s_number(name: str, value: str) -> None:
    assert f"data_type: {value}\n" in render(parse(f'input {{ name: "x" data_type: {value} }}'))
    assert datatype_value(name) == parse(f"input {{ data_type: {value} }}").input[0].data_type
