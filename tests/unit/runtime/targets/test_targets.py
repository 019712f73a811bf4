"""Targets against hardware: pure facts in, reasons and targets out; the catalogue is a real file."""

from pathlib import Path
from typing import Any

import pytest

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.spec.document import parse
from shiplift.runtime.spec.target import InstanceGroup, Profile, Target, TensorRT, Toleration, Versions, Wanted
from shiplift.runtime.targets import operators
from shiplift.runtime.targets.catalogue import FILE, catalogue, save
from shiplift.runtime.targets.discovery import detect, of_nodes
from shiplift.runtime.targets.machine import (
    Gpu,
    Hardware,
    accelerator_of,
    at_home,
    mismatch,
    older,
    parse_smi,
    this_machine,
    unfit_here,
)
from shiplift.steps.find_targets import find_targets
from tests.unit.examples import site

VNNI = Hardware(architecture="x86_64", flags=frozenset({"avx2", "avx512_vnni"}))
AVX2 = Hardware(architecture="x86_64", flags=frozenset({"avx2"}))
PLAIN = Hardware(architecture="x86_64", flags=frozenset({"sse2"}))
ARM = Hardware(architecture="aarch64", flags=frozenset({"asimd"}))
A10 = Gpu(product="NVIDIA A10", capability=(8, 6), memory_mb=23028, driver="550.54.15")
H200 = Gpu(product="NVIDIA H200", capability=(9, 0), memory_mb=143771, driver="570.1")


def gpu_target(**changes: Any) -> Target:
    return Target(**{"name": "gpu", "accelerator": "nvidia", "server": "nvidia", **changes})


@pytest.mark.parametrize(
    ("machine", "kind"), [(VNNI, "cpu-vnni"), (AVX2, "cpu-avx2"), (PLAIN, "cpu"), (ARM, "cpu-arm64")]
)
def test_a_machine_is_the_most_particular_accelerator_and_no_other(machine: Hardware, kind: str) -> None:
    assert accelerator_of(machine) == kind
    for other in ("cpu-vnni", "cpu-avx2", "cpu-arm64"):
        why = mismatch(Target(accelerator=other), machine)
        assert (why == "") is (other == kind)
        assert why in ("", f"it needs {other}, this machine is {kind}")
    assert mismatch(Target(), machine) == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"compute_capability": "8.6", "memory_mb": 24000}, ""),
        ({"compute_capability": "9.0"}, "it needs compute capability 9.0, NVIDIA A10 has 8.6"),
        ({"memory_mb": 81920}, "it needs a GPU with 81920 MiB, NVIDIA A10 has 23028 MiB"),
        ({"versions": Versions(driver="550.54")}, ""),
        ({"versions": Versions(driver="560")}, "it needs driver 560 or newer, this machine has 550.54.15"),
    ],
)
def test_a_gpu_must_be_the_one_the_target_means(changes: dict[str, Any], why: str) -> None:
    machine = Hardware(architecture="x86_64", flags=frozenset(), gpus=(A10,))
    assert mismatch(gpu_target(**changes), machine) == why
    assert mismatch(gpu_target(**changes), VNNI) == "it needs an NVIDIA GPU, this machine has none"


def test_a_pod_asks_for_as_many_gpus_as_its_instances_name() -> None:
    several = gpu_target(gpus=(0, 1), instance_groups=(InstanceGroup(gpus=(3,)), InstanceGroup(kind="cpu")))
    assert [target.nodes.gpus for target in (Target(), gpu_target(), several)] == [0, 1, 4]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"gpus": (0,)}, "are for `accelerator: nvidia`"),
        ({"tensorrt": TensorRT(workspace_mb=1)}, "are for `accelerator: nvidia`"),
        ({"instance_groups": (InstanceGroup(),)}, "are for `accelerator: nvidia`"),
        ({"instance_groups": (InstanceGroup(kind="cpu"),)}, "tuning decides the number of instances"),
        ({"accelerator": "nvidia", "server": "nvidia", "gpus": (1, 1)}, r"names a GPU twice: \[1, 1\]"),
        ({"accelerator": "nvidia", "server": "nvidia", "gpus": (16,)}, "less than 16"),
        (
            {"accelerator": "nvidia", "server": "nvidia", "instance_groups": ({"kind": "cpu", "gpus": (0,)},)},
            "`kind: cpu` has no `gpus`",
        ),
    ],
)
def test_settings_of_gpus_that_can_not_be_are_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Target(**fields)


def test_any_matching_node_stands_for_a_target_that_selects_none() -> None:
    here = accelerator_of(this_machine())
    assert at_home(Target())
    assert at_home(Target(accelerator=here))
    assert not at_home(Target(node_selector={"pool": "fast"}))
    assert not at_home(Target(tolerations=(Toleration(key="dedicated"),)))
    assert not at_home(Target(accelerator="cpu-arm64")) or here == "cpu-arm64"
    assert not at_home(Target(server="nvidia"))


def test_what_nvidias_image_serves_does_not_run_beside_the_bundled_server() -> None:
    assert "NVIDIA's Triton image" in unfit_here(Target(server="nvidia"))
    assert unfit_here(Target()) == ""


@pytest.mark.parametrize(
    ("version", "other", "is_older"),
    [("1.2.3", "1.2", False), ("1.2", "1.3", True), ("1.10", "1.9", False), ("1.0", "", False), ("", "1", True)],
)
def test_versions_compare_as_numbers_and_as_far_as_given(version: str, other: str, is_older: bool) -> None:
    assert older(version, other) is is_older


def test_gpus_are_read_from_nvidia_smi() -> None:
    output = "NVIDIA H200, 9.0, 143771, 570.1\nFailed to initialize NVML\nOdd, x, 1, 2\n"
    assert list(parse_smi(output)) == [H200]
    assert list(parse_smi("")) == []


def test_a_machine_is_detected_as_its_processor_and_its_gpu() -> None:
    cpu, gpu = detect(Hardware(architecture="x86_64", flags=VNNI.flags, gpus=(H200,)))
    assert (cpu.name, cpu.accelerator, cpu.precisions, cpu.server) == (
        "cpu-vnni",
        "cpu-vnni",
        ("fp32", "int8"),
        "bundled",
    )
    assert cpu.versions.onnxruntime == operators.bundled_onnxruntime() != ""
    assert (gpu.name, gpu.compute_capability, gpu.memory_mb, gpu.server) == ("nvidia-h200", "9.0", 143771, "nvidia")
    assert gpu.precisions == ("fp32", "fp16", "bf16", "int8", "fp8")
    assert detect(ARM)[0].precisions == ("fp32", "fp16", "int8")
    older_gpu = detect(Hardware(architecture="x86_64", flags=frozenset(), gpus=(A10,)))[1]
    assert older_gpu.precisions == ("fp32", "fp16", "bf16", "int8")


@pytest.mark.parametrize(
    ("flags", "name", "features"),
    [
        ({"avx512_bf16"}, "cpu-vnni-bf16", ("AVX512BF16",)),
        ({"avx512_bf16", "amx_bf16", "amx_int8"}, "cpu-vnni-amx", ("AMXBF16", "AMXINT8", "AVX512BF16")),
    ],
)
def test_a_processor_that_computes_in_bf16_is_a_target_of_its_own(
    flags: set[str], name: str, features: tuple[str, ...]
) -> None:
    machine = Hardware(architecture="x86_64", flags=VNNI.flags | flags)
    (cpu,) = detect(machine)
    assert (cpu.name, cpu.cpu_features, cpu.precisions) == (name, features, ("fp32", "bf16", "int8"))
    assert mismatch(cpu, machine) == ""
    assert mismatch(cpu, VNNI) == f"it needs a CPU with {', '.join(features)}, which this machine lacks"
    assert mismatch(Target(accelerator="cpu-vnni"), machine) == ""


def test_nodes_that_compute_in_bf16_are_selected_by_their_labels() -> None:
    labels = {"kubernetes.io/arch": "amd64", f"{NFD}AVX512VNNI": "true"}
    amx = labels | {f"{NFD}{feature}": "true" for feature in ("AMXBF16", "AMXINT8", "AVX512BF16")}
    plain, faster = of_nodes([node(labels), node(amx)])
    assert (plain.name, plain.precisions, plain.node_selector) == ("cpu-vnni", ("fp32", "int8"), labels)
    assert (faster.name, faster.node_selector) == ("cpu-vnni-amx", amx)
    assert faster.precisions == ("fp32", "bf16", "int8")


def test_what_was_detected_means_the_machine_it_was_detected_on() -> None:
    for machine in (VNNI, AVX2, PLAIN, ARM, Hardware(architecture="x86_64", flags=frozenset(), gpus=(A10,))):
        assert [mismatch(target, machine) for target in detect(machine)] == [""] * len(detect(machine))


# --- nodes ---


def node(labels: dict[str, str], taints: tuple[dict[str, str], ...] = (), **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n", "labels": labels}, "spec": {"taints": list(taints), **spec}}


NFD = "feature.node.kubernetes.io/cpu-cpuid."
GFD = {
    "kubernetes.io/arch": "amd64",
    "nvidia.com/gpu.product": "NVIDIA-A10",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "6",
    "nvidia.com/gpu.memory": "23028",
    "nvidia.com/cuda.driver.major": "550",
    "nvidia.com/cuda.driver.minor": "54",
    "nvidia.com/cuda.driver.rev": "15",
}


def test_nodes_become_one_target_per_kind_of_hardware() -> None:
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    sick = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}
    targets = {
        target.name: target
        for target in of_nodes(
            [
                node({"kubernetes.io/arch": "amd64", f"{NFD}AVX2": "true", f"{NFD}AVX512VNNI": "true"}),
                node({"kubernetes.io/arch": "amd64", f"{NFD}AVX2": "true", f"{NFD}AVX512VNNI": "true"}),
                node({"kubernetes.io/arch": "amd64", f"{NFD}AVX2": "true"}),
                node({"kubernetes.io/arch": "arm64"}),
                node({"kubernetes.io/arch": "amd64"}),
                node(GFD, (taint, sick)),
            ]
        )
    }
    assert set(targets) == {"cpu-vnni", "cpu-avx2", "cpu-arm64", "cpu", "nvidia-a10"}
    assert targets["cpu-vnni"].node_selector == {"kubernetes.io/arch": "amd64", f"{NFD}AVX512VNNI": "true"}
    gpu = targets["nvidia-a10"]
    assert (gpu.compute_capability, gpu.memory_mb, gpu.versions.driver) == ("8.6", 23028, "550.54.15")
    assert gpu.node_selector == {"nvidia.com/gpu.product": "NVIDIA-A10"}
    assert gpu.tolerations == (Toleration(key="nvidia.com/gpu", value="present", effect="NoSchedule"),)


def test_nodes_that_take_no_pods_are_no_targets() -> None:
    control = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    assert of_nodes([node({}, (control,)), node({}, unschedulable=True)]) == ()
    assert [target.name for target in of_nodes([{"metadata": {"name": "bare"}}])] == ["cpu"]


# --- the catalogue ---


def test_a_catalogue_begins_with_the_default_target(tmp_path: Path) -> None:
    assert catalogue(tmp_path) == {"local-cpu": Target()}


def test_saved_targets_come_back_and_replace_their_namesakes(tmp_path: Path) -> None:
    first, second = (
        gpu_target(memory_mb=1),
        gpu_target(memory_mb=2, profiles={"x": Profile(min=(1,), opt=(2,), max=(4,))}),
    )
    save(tmp_path, first)
    save(tmp_path, second, Target(name="other"))
    assert catalogue(tmp_path) == {"local-cpu": Target(), "gpu": second, "other": Target(name="other")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("targets: [{name: a, accelerator: tpu}]", "accelerator"),
        ("- a", "is a list"),
        ("targets: [", "not YAML"),
        ("target: []", "there is no such field"),
    ],
)
def test_a_wrong_catalogue_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(SpecInvalid, match=message):
        catalogue(tmp_path)


def test_of_several_targets_it_is_told_at_once_which_serve(tmp_path: Path) -> None:
    two = find_targets(site(tmp_path), Wanted(targets=(Target(name="fast"), Target(name="spare"))))
    told = "of fast, spare the first that can run serves on one machine; on a cluster each does, on its own nodes"
    assert two.remark() == told
    assert find_targets(site(tmp_path), Wanted()).remark() == ""


def test_a_spec_names_targets_of_the_catalogue(tmp_path: Path) -> None:
    save(tmp_path, gpu_target(memory_mb=7))
    selection = Wanted(targets=parse("targets: [gpu, {name: mine}]").targets)
    assert find_targets(site(tmp_path), selection).targets == (gpu_target(memory_mb=7), Target(name="mine"))
    with pytest.raises(SpecInvalid, match="the catalogue has no 'tpu'; it has local-cpu, gpu"):
        find_targets(site(tmp_path), Wanted(targets=("tpu",)))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("targets: [Upper]", "targets.0"),
        ("targets: [a, a]", "two targets have the same name"),
        ("targets: [a, {name: a}]", "two targets have the same name"),
        ("targets: [{accelerator: nvidia}]", "a GPU needs `server: nvidia`"),
        ("targets: [{compute_capability: '9.0'}]", "are for `accelerator: nvidia`"),
        ("targets: [{server: nvidia, engine: tensorrt}]", "are for `accelerator: nvidia`"),
        ("targets: [{engine: pytorch, precisions: [fp32]}]", "`engine: pytorch` needs `server: nvidia`"),
        ("targets: [{server: nvidia, engine: pytorch}]", "and `precisions: [fp32]`"),
        ("targets: [{accelerator: nvidia, server: nvidia, compute_capability: '8.6', precisions: [fp8]}]", "fp8 needs"),
        (
            "targets: [{accelerator: nvidia, server: nvidia, compute_capability: ninety}]",
            "targets.0.compute_capability",
        ),
        ("targets: [{versions: {onnxruntime: latest}}]", "targets.0.versions.onnxruntime"),
        ("targets: [{profiles: {x: {min: [1], opt: [1, 2], max: [4]}}}]", "different ranks"),
        ("targets: [{profiles: {x: {min: [2], opt: [1], max: [4]}}}]", "must rise"),
    ],
)
def test_a_target_that_cannot_be_is_refused(text: str, named: str) -> None:
    with pytest.raises(SpecInvalid, match="targets") as error:
        parse(text)
    assert named in error.value.what


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("targets: [{server: nvidia, engine: pytorch, precisions: [fp32]}]", "set `export.torchscript: true`"),
        ("export: {torchscript: true, outputs: [a]}", "keeps all of the model's outputs"),
    ],
)
def test_what_pytorch_serves_is_exported_for_it_and_whole(text: str, message: str) -> None:
    with pytest.raises(SpecInvalid, match=message):
        parse(text)
