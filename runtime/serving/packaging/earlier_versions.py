"""The earlier versions that are served beside a new one, as `serving.version_policy` asks.

Under Triton's own `latest` and `all`, a server serves every version in a model's folder, and the highest one answers
requests that name no version. After a rollback, that would be the version that was rolled back. So a package contains
the earlier versions, and its configuration names them: what is served is what was released. They come from the
champion's package as they were promoted, each with its own golden requests.

All versions of a model share one configuration in Triton, so a version that needs a different one can't be kept.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from shiplift.runtime.base.errors import ArtifactCorrupt
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.model.python.layers import FOLDER
from shiplift.runtime.model.tensors import EARLIER, MEMBER, Arrays, dump_npz, load_npz, under
from shiplift.runtime.precision import tensorrt_plans
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.model import PythonEnvironment
from shiplift.runtime.records.serving import EarlierVersion, EarlierVersions
from shiplift.runtime.serving.triton.config import LIMITS, TUNED, parse, render
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.spec.serving_settings import Latest, VersionPolicy
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore

_OF_THE_SPEC = (
    "request_timeout_ms",
    "cpu_cores",
    "numa_node",
    "graph_optimization",
    "inter_op_thread_count",
    *LIMITS.values(),
)
_PADDING = "length_"  # begins the names of the parameters that pad requests
_ENGINE_CACHE = "trt_engine_cache_path"
_OTHER_ENVIRONMENT = "its Python code runs in another environment"


@dataclass(frozen=True, kw_only=True)
class Incumbent:
    """A promoted package, and the folder it was fetched to."""

    package: Package
    tree: Path

    @property
    def versions(self) -> list[EarlierVersion]:
        """Every version in it, the highest first."""
        own = EarlierVersion(version=self.package.version, precision=self.package.precision)
        return sorted((own, *self.package.earlier.versions), key=lambda each: -each.version)


@dataclass(frozen=True, kw_only=True)
class Successor:
    """A new package before its earlier versions are added: its folder, and what they must have in common with it."""

    tree: Path
    version: int
    target: Target
    environment: PythonEnvironment | None
    endings: tuple[str, ...]


class _Unfit(Exception):
    """Why no earlier version can be kept."""


def add_earlier(successor: Successor, incumbent: Incumbent | None, policy: VersionPolicy) -> EarlierVersions:
    """Adds the earlier versions that a policy keeps to a new package; returns them.

    They come from the champion's package. None is kept if that package and the new one can't share a configuration. A
    version with a higher number is not kept either: it would answer the requests that name no version. The record says
    why a version was left out.
    """
    most = policy.latest - 1 if isinstance(policy, Latest) else None
    if incumbent is None or most == 0:
        return EarlierVersions()
    name = serving_name(incumbent.package.model)
    folders = [(incumbent.tree / (name + ending), successor.tree / (name + ending)) for ending in successor.endings]
    all_unfit = _why_all_are_unfit(incumbent.package, successor, folders)
    kept: list[EarlierVersion] = []
    refused: dict[str, list[int]] = {}
    for each in incumbent.versions:
        if each.version == successor.version:
            continue
        reason = _if_higher(each.version, successor) or all_unfit or _if_planned(each.version, folders, successor)
        if reason:
            refused.setdefault(reason, []).append(each.version)
        else:
            kept.insert(0, each)
        if len(kept) == most:
            break
    if kept:
        versions = [each.version for each in kept]
        for before, now in folders:
            _add(before, now, versions)
        _add_golden(incumbent, successor.tree, versions)
    return EarlierVersions(versions=tuple(kept), refused="; ".join(map(_refusal, refused.values(), refused)))


def _why_all_are_unfit(before: Package, successor: Successor, folders: Sequence[tuple[Path, Path]]) -> str:
    """Why no version of the champion's package can be kept; empty if some may be."""
    try:
        _require_same_kind(before, successor)
        _require_same_layers(*(package.parent for package in folders[0]))
        for old, new in folders:
            _require_same_config(old, new)
    except _Unfit as unfit:
        return str(unfit)
    return ""


def _if_higher(version: int, successor: Successor) -> str:
    higher = version > successor.version
    return "its number is higher, so it would answer requests that name no version" if higher else ""


def _if_planned(version: int, folders: Sequence[tuple[Path, Path]], successor: Successor) -> str:
    """Why a TensorRT plan of a version, if it has one, no longer fits the target or takes other shapes."""
    return next(filter(None, (_if_plan(version, before, now, successor) for before, now in folders)), "")


def _if_plan(version: int, before: Path, now: Path, successor: Successor) -> str:
    stamp = tensorrt_plans.read_stamp(before / str(version))
    if stamp is None:
        return ""
    target, new = successor.target, tensorrt_plans.read_stamp(now / str(successor.version))
    versions = {"tensorrt": target.versions.tensorrt, "compute_capability": target.compute_capability}
    other = new is None or new.profiles != stamp.profiles
    return tensorrt_plans.mismatch(stamp, **versions) or ("its plan was built for other shapes" if other else "")


def _refusal(versions: list[int], reason: str) -> str:
    named = ", ".join(map(str, sorted(versions)))
    return f"version{'s' * (len(versions) > 1)} {named} can't be served beside it: {reason}"


def require_as_promoted(store: ArtifactStore, package: Package, promoted: Sequence[Package]) -> None:
    """Checks that the earlier versions in a package have the same files as in one of the `promoted` packages.

    The process that packages a version handles its author's files, so it is not trusted with the files of others.

    Raises:
        ArtifactCorrupt: a version has other files, or is in none of the promoted packages.
    """
    if not package.earlier.versions:
        return
    own, known = _files(store, package), [_files(store, each) for each in promoted]
    for version in package.versions[:-1]:
        if not any(own[version] == files.get(version) for files in known):
            raise ArtifactCorrupt(
                f"the package's files of version {version} are not the ones that were promoted",
                do=f"Run `shiplift rerun {package.model}/{package.version}`, and look for what changed them.",
            )


def _files(store: ArtifactStore, package: Package) -> dict[int, dict[str, str]]:
    """The digests of the files of each version that a package serves, by path."""
    name, files = serving_name(package.model), store.manifest(package.repository)
    prefixes = {
        version: tuple(f"{name}{ending}/{version}/" for ending in package.endings) for version in package.versions
    }
    return {
        version: {path: sha256 for path, sha256 in files.items() if path.startswith(prefixes[version])}
        for version in package.versions
    }


def _require_same_kind(before: Package, now: Successor) -> None:
    if before.member_models:
        raise _Unfit("it is a pipeline")
    if (before.target, before.server) != (now.target.name, now.target.server):
        raise _Unfit(
            f"it was made for target {before.target} and server {before.server}, this one for {now.target.name} and "
            f"{now.target.server}"
        )
    if before.python_environment != now.environment:
        raise _Unfit(_OTHER_ENVIRONMENT)
    if before.endings != now.endings:
        raise _Unfit("only one of the two is also served as `MODEL--tensors`")


def _require_same_layers(before: Path, now: Path) -> None:
    """Requires that both packages bring the same environments, if any, for their Python code.

    Raises:
        _Unfit: they don't.
    """
    old, new = ({file.name for file in (tree / FOLDER).glob("*")} for tree in (before, now))
    if old != new:
        raise _Unfit(_OTHER_ENVIRONMENT)


def _require_same_config(before: Path, now: Path) -> None:
    """Requires that one configuration can serve the models of both folders; settings of the spec and tuning may differ.

    Raises:
        _Unfit: it can't.
    """
    old, new = (parse((folder / "config.pbtxt").read_text()) for folder in (before, now))
    if old.backend != new.backend:
        raise _Unfit(f"it runs in the backend {old.backend}, this one in {new.backend}")
    if _tensors(old) != _tensors(new) or bool(old.max_batch_size) != bool(new.max_batch_size):
        raise _Unfit("its inputs or outputs are not the same")
    if _labels(before, old) != _labels(now, new):
        raise _Unfit("its labels are not the same")
    if any(name.startswith(_PADDING) for name in chain(old.parameters, new.parameters)):
        raise _Unfit("requests are padded to common lengths (`serving.lengths`), as proven for one version alone")
    if _states(old) != _states(new):
        raise _Unfit("its states are not the same")
    fields = ("model_transaction_policy", "default_model_filename")
    if name := next((name for name in fields if getattr(old, name) != getattr(new, name)), ""):
        raise _Unfit(f"its {name} is not the same")
    _require_same_accelerators(old, new)
    if names := _differing(old, new):
        raise _Unfit(f"its backend needs other parameters ({', '.join(names)})")


def _tensors(config: pb.ModelConfig) -> list[Any]:
    """The inputs and outputs, without the name of the file of labels, which contains the version."""
    copy = pb.ModelConfig.FromString(config.SerializeToString())
    for output in copy.output:
        output.label_filename = ""
    return [*copy.input, *copy.output]


def _labels(folder: Path, config: pb.ModelConfig) -> list[str]:
    names = [Path(output.label_filename).name for output in config.output if output.label_filename]
    return [(folder / name).read_text() for name in names]


def _states(config: pb.ModelConfig) -> list[Any]:
    """The states and controls of a model's sequences, without the limits and delays that the spec and tuning set."""
    batching = config.sequence_batching
    return [config.HasField("sequence_batching"), *batching.state, *batching.control_input]


def _require_same_accelerators(old: pb.ModelConfig, new: pb.ModelConfig) -> None:
    accelerators = [config.optimization.execution_accelerators for config in (old, new)]
    entries = chain.from_iterable(each.gpu_execution_accelerator for each in accelerators)
    if any(_ENGINE_CACHE in entry.parameters for entry in entries):
        raise _Unfit("TensorRT's cache of engines is for one version: set `engine_cache: false` in `tensorrt`")
    if accelerators[0] != accelerators[1]:
        raise _Unfit("its accelerators are not the same")


def _differing(old: pb.ModelConfig, new: pb.ModelConfig) -> list[str]:
    """The names of the parameters that differ, without those of the spec and of tuning."""
    before, after = ({name: each.string_value for name, each in config.parameters.items()} for config in (old, new))
    return sorted(name for name in {*before, *after} - {*_OF_THE_SPEC, *TUNED} if before.get(name) != after.get(name))


def _add(before: Path, now: Path, versions: list[int]) -> None:
    """Adds the folders of versions to a model's folder, and names them in its configuration."""
    config = parse((now / "config.pbtxt").read_text())
    for version in versions:
        shutil.copytree(before / str(version), now / str(version))
    config.version_policy.specific.versions[:0] = versions
    (now / "config.pbtxt").write_text(render(config))


def _add_golden(incumbent: Incumbent, tree: Path, versions: list[int]) -> None:
    before = load_npz(incumbent.tree / GOLDEN)
    golden: Arrays = load_npz(tree / GOLDEN)
    for version in versions:
        prefix = f"{EARLIER}{version}/"
        own = under(prefix, before) if version != incumbent.package.version else _own(before)
        golden |= {prefix + name: array for name, array in own.items()}
    (tree / GOLDEN).write_bytes(dump_npz(golden))


def _own(golden: Arrays) -> Arrays:
    """The golden requests of a package's own version."""
    return {name: array for name, array in golden.items() if not name.startswith((EARLIER, MEMBER))}
