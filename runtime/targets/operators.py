"""Targets against hardware: which machine this is, whether a target is meant for it, and the site's catalogue.

Figures are worth something on the machine they were measured on alone, so a match is strict: a target without VNNI is
not measured on a processor that has it. The catalogue is a YAML file in the site's home, written by hand or by
`shiplift targets detect`; on a cluster it is a mounted ConfigMap.
"""

import functools
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from runtime.errors import ExportFailed, SpecInvalid
from runtime.onnx_models import cpu_flags
from runtime.records import Precision
from runtime.spec import (
    NEWEST_OPSET,
    Accelerator,
    Fleet,
    Target,
    Toleration,
    Versions,
    capability,
    load_mapping,
    problems,
)
from runtime.storage import write_atomically
from runtime.triton.environment import REQUIREMENTS

FILE = "targets.yaml"
_VNNI = frozenset({"avx512_vnni", "avx_vnni"})
_SMI = ("--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader,nounits")
_MEMORY_SLACK = 0.95  # drivers and ECC keep a part of a GPU's nominal memory
_FEATURE = "feature.node.kubernetes.io/cpu-cpuid."
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """An NVIDIA GPU as its driver tells it."""

    product: str
    capability: tuple[int, int]
    memory_mb: int
    driver: str


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What decides whether a target is this machine: the architecture, the processor's features, its GPUs."""

    architecture: str
    flags: frozenset[str]
    gpus: tuple[Gpu, ...] = ()

    @property
    def capability(self) -> str:
        """The compute capability of its first GPU, as `9.0`; empty: it has none."""
        return _dotted(self.gpus[0].capability) if self.gpus else ""


@functools.cache
def this_machine() -> Machine:
    """The machine this process runs on, looked at once."""
    return Machine(architecture=platform.machine(), flags=cpu_flags(), gpus=tuple(_gpus()))


def _gpus() -> Iterator[Gpu]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return
    try:
        said = subprocess.run([program, *_SMI], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    if said.returncode == 0:
        yield from parse_smi(said.stdout)


def parse_smi(text: str) -> Iterator[Gpu]:
    """GPUs from nvidia-smi's CSV; lines that are none are left out."""
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 4 and re.fullmatch(r"[0-9]{1,2}\.[0-9]", parts[1]) and parts[2].isdecimal():
            yield Gpu(product=parts[0], capability=capability(parts[1]), memory_mb=int(parts[2]), driver=parts[3])


# --- does a target mean this machine --------------------------------------------------------------------------------


def unfit_here(target: Target) -> str:
    """Why a target can't run on this machine with the bundled server; empty: it can."""
    if why := mismatch(target, this_machine()):
        return why
    if target.server != "bundled":
        return "it is served by NVIDIA's Triton image, this machine has the bundled server"
    return ""


def mismatch(target: Target, machine: Machine) -> str:
    """Why a machine is not the one a target means; empty: it is."""
    if target.gpu:
        return _gpu_mismatch(target, machine.gpus)
    if target.accelerator == "cpu":
        return ""
    have = accelerator_of(machine)
    return "" if have == target.accelerator else f"it wants {target.accelerator}, this machine is {have}"


def accelerator_of(machine: Machine) -> Accelerator:
    """The most particular accelerator that a processor is."""
    if machine.architecture in ("aarch64", "arm64"):
        return "cpu-arm64"
    if machine.flags & _VNNI:
        return "cpu-vnni"
    return "cpu-avx2" if "avx2" in machine.flags else "cpu"


def _gpu_mismatch(target: Target, gpus: tuple[Gpu, ...]) -> str:
    if not gpus:
        return "it wants an NVIDIA GPU, this machine has none"
    gpu = gpus[0]
    wanted = capability(target.compute_capability)
    if wanted not in ((0, 0), gpu.capability):
        return f"it wants compute capability {target.compute_capability}, {gpu.product} has {_dotted(gpu.capability)}"
    if gpu.memory_mb < target.memory_mb * _MEMORY_SLACK:
        return f"it wants a GPU with {target.memory_mb} MiB, {gpu.product} has {gpu.memory_mb} MiB"
    if older(gpu.driver, target.versions.driver):
        return f"it wants driver {target.versions.driver} or newer, this machine has {gpu.driver}"
    return ""


def older(version: str, wanted: str) -> bool:
    """Whether a version is older than the one wanted, as far as `wanted` is given."""
    have, want = _numbers(version), _numbers(wanted)
    return bool(want) and have[: len(want)] < want


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"


# --- the catalogue --------------------------------------------------------------------------------------------------


def catalogue(home: Path) -> dict[str, Target]:
    """The site's targets by name; the default target is always one of them.

    Raises:
        SpecInvalid: the catalogue can't be read; every wrong field is named.
    """
    file = home / FILE
    entries = load_mapping(file.read_text(), f"the catalogue {FILE}") if file.is_file() else {}
    try:
        listed = Fleet.model_validate(entries).targets
    except ValidationError as error:
        raise SpecInvalid(f"{FILE}: {'; '.join(problems(error))}", do="Mend that field.") from error
    default = Target()
    return {default.name: default} | {target.name: target for target in listed}


def save(home: Path, *found: Target) -> Path:
    """Puts targets into the catalogue; those of the same name are replaced."""
    listed = catalogue(home) | {target.name: target for target in found}
    body = {
        "targets": [target.model_dump(mode="json", exclude_defaults=True) | {"name": n} for n, target in listed.items()]
    }
    write_atomically(home / FILE, yaml.safe_dump(body, sort_keys=False))
    return home / FILE


# --- detection ------------------------------------------------------------------------------------------------------


def detect(machine: Machine) -> tuple[Target, ...]:
    """The targets that a machine is: its processor under the bundled server, and its GPU under NVIDIA's."""
    kind = accelerator_of(machine)
    versions = Versions(onnxruntime=bundled_onnxruntime())
    cpu = Target(name=kind, accelerator=kind, precisions=_cpu_precisions(kind), versions=versions)
    return (cpu, *(_gpu_target(gpu.product, gpu.capability, gpu.memory_mb, gpu.driver) for gpu in machine.gpus[:1]))


def of_nodes(nodes: Iterable[Mapping[str, Any]]) -> tuple[Target, ...]:
    """The targets of a cluster's nodes (as in YAML), one per kind of hardware, with what schedules a pod there.

    Read from the labels of node feature discovery and GPU feature discovery; without them a node is a plain processor.
    """
    found: dict[str, Target] = {}
    for node in nodes:
        if not _schedulable(node):
            continue
        labels = dict(node["metadata"].get("labels") or {})
        tolerations = tuple(_tolerations(node))
        target = _gpu_of_labels(labels) if "nvidia.com/gpu.product" in labels else _cpu_of_labels(labels)
        found.setdefault(target.name, target.model_copy(update={"tolerations": tolerations}))
    return tuple(found.values())


def bundled_onnxruntime() -> str:
    """The version of ONNX Runtime in the bundled server's environment."""
    found = re.search(r"^onnxruntime==(\S+)$", REQUIREMENTS.read_text(), re.MULTILINE)
    return found.group(1) if found else ""


def _cpu_precisions(kind: Accelerator) -> tuple[Precision, ...]:
    return ("fp32", "fp16", "int8") if kind == "cpu-arm64" else ("fp32", "int8")


def _gpu_target(product: str, pair: tuple[int, int], memory_mb: int, driver: str, **placed: Any) -> Target:
    precisions: list[Precision] = ["fp32", "fp16"]
    precisions += ["bf16"] if pair >= (8, 0) else []
    precisions += ["int8"]
    precisions += ["fp8"] if pair >= (8, 9) else []
    return Target(
        name=re.sub(r"[^a-z0-9]+", "-", product.lower()).strip("-")[:63].strip("-"),
        accelerator="nvidia",
        compute_capability=_dotted(pair),
        memory_mb=memory_mb,
        precisions=tuple(precisions),
        server="nvidia",
        versions=Versions(driver=".".join(str(part) for part in _numbers(driver)[:3])),
        **placed,
    )


def _gpu_of_labels(labels: Mapping[str, str]) -> Target:
    """GPU feature discovery: memory in MiB; the driver's version in one label, or in three."""
    of = "nvidia.com/"
    product = labels[f"{of}gpu.product"]
    pair = (int(labels.get(f"{of}gpu.compute.major", 0)), int(labels.get(f"{of}gpu.compute.minor", 0)))
    parts = [labels.get(f"{of}cuda.driver.{part}", "") for part in ("major", "minor", "rev")]
    driver = labels.get(f"{of}cuda.driver-version.full") or ".".join(part for part in parts if part)
    selector = {f"{of}gpu.product": product}
    return _gpu_target(product, pair, int(labels.get(f"{of}gpu.memory", 0)), driver, node_selector=selector)


def _cpu_of_labels(labels: Mapping[str, str]) -> Target:
    arch = labels.get("kubernetes.io/arch", "")
    selector = {"kubernetes.io/arch": arch} if arch else {}
    kind: Accelerator = "cpu-arm64" if arch == "arm64" else "cpu"
    for wanted, flags in (("cpu-vnni", ("AVX512VNNI", "AVXVNNI")), ("cpu-avx2", ("AVX2",))):
        has = next((flag for flag in flags if labels.get(_FEATURE + flag) == "true"), "")
        if kind == "cpu" and has:
            kind, selector = wanted, {**selector, _FEATURE + has: "true"}  # type: ignore[assignment]
    return Target(name=kind, accelerator=kind, precisions=_cpu_precisions(kind), node_selector=selector)


def _schedulable(node: Mapping[str, Any]) -> bool:
    spec = node.get("spec") or {}
    taints = [taint["key"] for taint in spec.get("taints") or [] if taint.get("effect") != "PreferNoSchedule"]
    return not spec.get("unschedulable") and _CONTROL_PLANE not in taints


def _tolerations(node: Mapping[str, Any]) -> Iterator[Toleration]:
    """What the node's own taints need; those Kubernetes sets on a sick node are none of a target's business."""
    for taint in (node.get("spec") or {}).get("taints") or []:
        if not str(taint["key"]).startswith("node.kubernetes.io/"):
            value = taint.get("value", "")
            yield Toleration(
                key=taint["key"], operator="Equal" if value else "Exists", value=value, effect=taint.get("effect", "")
            )


# --- what the target's ONNX Runtime knows ---------------------------------------------------------------------------

# The first release of ONNX Runtime that loads models of each opset of the ONNX domain: from 1.19 on measured, before by
# ONNX Runtime's compatibility table. A release takes a model of a newer opset only by chance.
_OPSETS = ((12, 17), (14, 18), (15, 19), (17, 20), (18, 21), (21, 22), (23, 23), (24, 25), (25, 26))
_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "com.microsoft", "com.microsoft.nchwc"}


@dataclass(frozen=True, kw_only=True)
class Known:
    """The newest of everything that a version of ONNX Runtime loads: opsets by domain, and the format of the file."""

    opset: int
    ml_opset: int
    ir: int


def require_operators(model: Path, target: Target) -> None:
    """Checks a graph against the ONNX Runtime that the target runs, before anything is built for it.

    Raises:
        ExportFailed: it has an operator, an opset, or a file format that this version does not know.
    """
    import onnx  # noqa: PLC0415 - 0.1 s

    loaded = onnx.load(model, load_external_data=False)
    own = {function.domain for function in loaded.functions}
    for node in loaded.graph.node:
        if node.domain not in _DOMAINS | own:
            raise ExportFailed(
                f"operator {node.domain}::{node.op_type} is in no ONNX Runtime that target {target.name} could run",
                do="Export the model with standard operators.",
            )
    version = target.versions.onnxruntime or (bundled_onnxruntime() if target.server == "bundled" else "")
    known = known_to(version)
    if known is None:
        return
    runs = f"target {target.name} runs ONNX Runtime {version}, which knows"
    for entry in loaded.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version > known.opset:
            raise ExportFailed(
                f"the model has opset {entry.version}; {runs} opsets up to {known.opset}",
                do=f"Set `export.opset: {min(known.opset, NEWEST_OPSET)}`, or serve it with a newer ONNX Runtime.",
            )
        if entry.domain == "ai.onnx.ml" and entry.version > known.ml_opset:
            raise ExportFailed(
                f"the model has opset {entry.version} of ai.onnx.ml; {runs} those up to {known.ml_opset}",
                do="Convert the model with an older opset and log it as ONNX, or serve it with a newer ONNX Runtime.",
            )
    if loaded.ir_version > known.ir:
        raise ExportFailed(
            f"the model's file has IR version {loaded.ir_version}; {runs} those up to {known.ir}",
            do="Save it with an older `ir_version`, or serve it with a newer ONNX Runtime.",
        )


def known_to(version: str) -> Known | None:
    """What a version of ONNX Runtime loads, by the release of ONNX that it is built with; None: nobody can say."""
    import onnx  # noqa: PLC0415

    numbers = _numbers(version)
    if len(numbers) < 2 or numbers[0] != 1:
        return None
    opset = max((opset for minor, opset in _OPSETS if minor <= numbers[1]), default=0)
    rows = [row for row in onnx.helper.VERSION_TABLE if row[2] <= opset]
    if not rows:
        return None
    return Known(opset=opset, ml_opset=max(row[3] for row in rows), ir=max(row[1] for row in rows))
