"""The records of a release, looked up by type: `History(ledger, report.stages, givers).last(LoadReport)`.

The ledger stores records by stage and key. A reader names only the type; the pipeline (`Pipeline.givers`) says which
stage returns it.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Protocol, TypeVar

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.deployment import Deployment
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import LoadReport, Tuned
from shiplift.runtime.records.release import StageRun
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.store.artifacts import ArtifactStore

R = TypeVar("R", bound=Record)
_TABLE_BYTES = 200_000  # of a load test that most pages show whole; a longer one is named
_GAVE = ("ok", "refused", "inconclusive")  # the outcomes of stages that returned a record


class Entries(Protocol):
    """Where the records of finished stages are stored: the ledger, or a copy of it."""

    def recall(self, key: str, stage: str, kind: type[R]) -> R | None:
        """The record stored for a stage under a key; None if there is none of this kind."""


class History:
    """The records of one release. Its methods raise what its entries raise."""

    def __init__(self, entries: Entries, stages: Iterable[StageRun], givers: Mapping[str, str]) -> None:
        self._entries = entries
        self._runs = [run for run in stages if run.key]
        self._givers = givers

    def last(self, kind: type[R]) -> R | None:
        """The record of a type; None if the release did not get that far, or if the record is gone.

        If the stage ran once per target, this is the deployed target's record if there is one, otherwise that of the
        target that ended the release, otherwise that of the first target.
        """
        return self._last(kind, self._deployed)

    @property
    def package(self) -> Package | None:
        """The deployed package; if none was deployed, the tuned one; if none was tuned, the first one built."""
        if deployment := self.last(Deployment):
            return deployment.package
        if tuned := self.last(Tuned):
            return tuned.package
        packages = self.last(Packages)
        return next(iter(packages.packages), None) if packages else None

    @cached_property
    def _deployed(self) -> str:
        """The deployed target; not looked up if there is only one."""
        if len({run.target for run in self._runs if run.target}) < 2:
            return ""
        deployment = self._last(Deployment, "")
        return deployment.package.target if deployment else ""

    def _last(self, kind: type[R], target: str) -> R | None:
        stage = self._givers.get(kind.parameter(), "")
        runs = [run for run in self._runs if run.name == stage]
        for name in (target, self._ended):
            runs = [run for run in runs if name and run.target == name] or runs
        if not runs:
            return None
        run = [run for run in runs if run.target == runs[0].target][-1]  # a stage may run twice
        return self._entries.recall(run.key, stage, kind) if run.outcome in _GAVE else None

    @property
    def _ended(self) -> str:
        """The target that ended the release; empty if none did."""
        ended = (run.target for run in self._runs if run.target and run.outcome not in ("ok", "skipped"))
        return next(ended, "")


def server_config(store: ArtifactStore, package: Package) -> str:
    """A package's config.pbtxt.

    Raises:
        ArtifactCorrupt, Temporary: its bytes are missing, altered or unreachable.
    """
    return store.read_from_tree(package.repository, f"{serving_name(package.model)}/config.pbtxt").decode()


def server_config_or_reason(store: ArtifactStore, package: Package | None) -> str:
    """The same for a page: a comment with the reason if it can't be read; empty without a package."""
    try:
        return server_config(store, package) if package else ""
    except ShipliftError as error:
        return f"# {error.what}"


def load_table_or_nothing(store: ArtifactStore, report: LoadReport | None) -> str:
    """The load generator's own table of a release, as CSV; empty if there is none, or if a page can't show it."""
    if report is None or report.table is None or report.table.size_bytes > _TABLE_BYTES:
        return ""
    try:
        return store.read(report.table).decode(errors="replace")
    except ShipliftError:
        return ""
