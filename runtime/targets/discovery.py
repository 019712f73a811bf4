"""Discovery of targets, from this machine or from a cluster's nodes."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.records.precision import AllowedPrecision
from shiplift.runtime.spec.target import Accelerator, CpuFeature, Target, Toleration, Versions
from shiplift.runtime.targets.machine import Hardware, accelerator_of, dotted, features_of, numbers
from shiplift.runtime.targets.operators import bundled_onnxruntime

_FEATURE = "feature.node.kubernetes.io/cpu-cpuid."
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


def detect(machine: Hardware) -> tuple[Target, ...]:
    """The targets of a machine: its CPU with the bundled server, and its GPU with NVIDIA's."""
    kind = accelerator_of(machine)
    versions = Versions(onnxruntime=bundled_onnxruntime())
    cpu = _cpu_target(kind, features_of(machine), versions=versions)
    return (cpu, *(_gpu_target(gpu.product, gpu.capability, gpu.memory_mb, gpu.driver) for gpu in machine.gpus[:1]))


def of_nodes(nodes: Iterable[Mapping[str, Any]]) -> tuple[Target, ...]:
    """The targets of a cluster's nodes (as in YAML), one per kind of hardware, with node selectors and tolerations.

    They come from the labels of node feature discovery and GPU feature discovery; a node without them is a plain CPU.
    """
    targets: dict[str, Target] = {}
    for node in nodes:
        if not _schedulable(node):
            continue
        labels = dict(node["metadata"].get("labels") or {})
        tolerations = tuple(_tolerations(node))
        target = _gpu_of_labels(labels) if "nvidia.com/gpu.product" in labels else _cpu_of_labels(labels)
        targets.setdefault(target.name, target.model_copy(update={"tolerations": tolerations}))
    return tuple(targets.values())


def named(targets: tuple[Target, ...], name: str) -> tuple[Target, ...]:
    """The detected targets; with a name by the user, the only one is renamed. An empty name changes nothing.

    Raises:
        UsageError: there is one name for several targets.
    """
    if name and len(targets) != 1:
        raise UsageError(
            f"{len(targets)} targets were found ({', '.join(target.name for target in targets)}), one name was given",
            do="Leave `--name` out.",
        )
    return tuple(Target.model_validate(target.model_dump() | {"name": name or target.name}) for target in targets)


def _cpu_target(kind: Accelerator, features: tuple[CpuFeature, ...], **more: Any) -> Target:
    """A CPU's target, named after the feature that makes it faster than others of its kind."""
    suffix = "-amx" if "AMXBF16" in features else "-bf16" if "AVX512BF16" in features else ""
    precisions: tuple[AllowedPrecision, ...] = ("fp32", "bf16", "int8") if suffix else ("fp32", "int8")
    if kind == "cpu-arm64":
        precisions = ("fp32", "fp16", "int8")
    return Target(name=f"{kind}{suffix}", accelerator=kind, cpu_features=features, precisions=precisions, **more)


def _gpu_target(product: str, pair: tuple[int, int], memory_mb: int, driver: str, **placement: Any) -> Target:
    precisions: list[AllowedPrecision] = ["fp32", "fp16"]
    precisions += ["bf16"] if pair >= (8, 0) else []
    precisions += ["int8"]
    precisions += ["fp8"] if pair >= (8, 9) else []
    return Target(
        name=re.sub(r"[^a-z0-9]+", "-", product.lower()).strip("-")[:63].strip("-"),
        accelerator="nvidia",
        compute_capability=dotted(pair),
        memory_mb=memory_mb,
        precisions=tuple(precisions),
        server="nvidia",
        versions=Versions(driver=".".join(str(part) for part in numbers(driver)[:3])),
        **placement,
    )


def _gpu_of_labels(labels: Mapping[str, str]) -> Target:
    """Reads GPU feature discovery's labels: memory in MiB; the driver's version in one label, or in three."""
    prefix = "nvidia.com/"
    product = labels[f"{prefix}gpu.product"]
    pair = (int(labels.get(f"{prefix}gpu.compute.major", 0)), int(labels.get(f"{prefix}gpu.compute.minor", 0)))
    parts = [labels.get(f"{prefix}cuda.driver.{part}", "") for part in ("major", "minor", "rev")]
    driver = labels.get(f"{prefix}cuda.driver-version.full") or ".".join(part for part in parts if part)
    selector = {f"{prefix}gpu.product": product}
    return _gpu_target(product, pair, int(labels.get(f"{prefix}gpu.memory", 0)), driver, node_selector=selector)


def _cpu_of_labels(labels: Mapping[str, str]) -> Target:
    arch = labels.get("kubernetes.io/arch", "")
    selector = {"kubernetes.io/arch": arch} if arch else {}
    kind: Accelerator = "cpu-arm64" if arch == "arm64" else "cpu"
    for accelerator, flags in (("cpu-vnni", ("AVX512VNNI", "AVXVNNI")), ("cpu-avx2", ("AVX2",))):
        feature = next((flag for flag in flags if labels.get(_FEATURE + flag) == "true"), "")
        if kind == "cpu" and feature:
            kind, selector = accelerator, {**selector, _FEATURE + feature: "true"}  # type: ignore[assignment]
    features = tuple(feature for feature in get_args(CpuFeature) if labels.get(_FEATURE + feature) == "true")
    return _cpu_target(kind, features, node_selector=selector | {_FEATURE + feature: "true" for feature in features})


def _schedulable(node: Mapping[str, Any]) -> bool:
    spec = node.get("spec") or {}
    taints = [taint["key"] for taint in spec.get("taints") or [] if taint.get("effect") != "PreferNoSchedule"]
    return not spec.get("unschedulable") and _CONTROL_PLANE not in taints


def _tolerations(node: Mapping[str, Any]) -> Iterator[Toleration]:
    """Tolerations of the node's own taints, without those that Kubernetes sets on an unhealthy node."""
    for taint in (node.get("spec") or {}).get("taints") or []:
        if not str(taint["key"]).startswith("node.kubernetes.io/"):
            value = taint.get("value", "")
            yield Toleration(
                key=taint["key"], operator="Equal" if value else "Exists", value=value, effect=taint.get("effect", "")
            )
