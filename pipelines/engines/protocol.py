"""The interface of an engine, a place that runs releases: a class with these methods, listed in `table.py`.

Methods raise only subclasses of `ShipliftError`. Besides those they name, any may raise `StackDown` if this machine's
stack is not running, and `ClusterUnreachable`, `ClusterRefused` or `Temporary` if a cluster does not answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from shiplift.pipelines.engines.answers import AbortedRelease, Accepted, Catalogue, Prediction, Status
from shiplift.runtime.composition.checked import Unusable
from shiplift.runtime.events.event import ModelEvent
from shiplift.runtime.events.outbox import Place
from shiplift.runtime.gates.report import Story
from shiplift.runtime.records.asked import AskedAgain
from shiplift.runtime.records.capturing import Captured, DeletedRows, ExportedRows
from shiplift.runtime.records.drift import DriftReport
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.offline import OfflineOrder, OfflineResult
from shiplift.runtime.records.promotion import Promotion
from shiplift.runtime.records.release import Event, ReleaseReport
from shiplift.runtime.records.retirement import Retired
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.spec.pipeline import PipelineSpec
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.history import History


class Releasing(Protocol):
    """Starting releases, following them, and stopping or undoing them."""

    @property
    def attended(self) -> bool:
        """Whether a command that orders a release waits for it by default, and cancels it when interrupted.

        If false, a release runs on its own, and a command follows it only on request.
        """

    def order(self, name: str, spec: str, *, again: bool, allow_older: bool) -> Accepted:
        """Orders a release of a version (`MODEL/VERSION`), or of a model's newest version.

        Raises:
            NotFound: the registry has no such version.
            SpecInvalid: `spec` is not a valid spec.
        """

    def register(self, name: str, files: Mapping[str, bytes], tags: Mapping[str, str]) -> int:
        """Registers the next version of a model, which consists of these files; returns its number.

        Raises:
            NotAdmitted: the registry stores files in a place that can't be written from here.
        """

    def tagged(self, model: str, key: str, value: str) -> int:
        """The newest version of a model whose tag `key` has this value; 0 if there is none."""

    def tag(self, model: str, version: int, key: str, value: str) -> None:
        """Sets the tag `shiplift.KEY` of a version in the registry; a long value is cut.

        Raises:
            NotFound: the registry has no such version.
        """

    def under_way(self, name: str) -> bool:
        """Whether a release is queued or running."""

    def events(self, name: str) -> Iterator[Event | None]:
        """Yields the events of a release until it ends; None means that nothing happened for a moment."""

    def result(self, name: str) -> ReleaseReport:
        """The report of an ended release.

        Raises:
            NotFound, StackDown: the release left no report.
        """

    def cancel(self, model: str, version: int) -> str:
        """Cancels a version's release, and waits for it to clean up; returns its name, or "" if there was none.

        A promotion whose traffic moves is aborted.
        """

    def stop(self, name: str) -> None:
        """Cancels a release by its name, and waits for it to clean up."""

    def abort(self, model: str, reason: str) -> AbortedRelease:
        """Ends the release of a model that has begun. All traffic goes back to the champion, or stays there.

        The release that ended last is not aborted twice: its answer is given again.

        Raises:
            NothingToAbort: no release of the model has begun, or it ended in another way.
        """

    def decide(self, model: str, version: int, *, approve: bool, reason: str) -> Accepted:
        """Approves or rejects a version that waits for approval: its release goes on, from its kept results.

        Raises:
            NothingToDecide: the version does not wait for approval.
            AlreadyDecided: another person decided before.
            PolicyRefused: the site's policy does not let this person decide.
        """

    def rollback(self, model: str) -> Promotion:
        """Makes the previous champion serve again.

        Raises:
            NothingToRollBack, CanaryFailed, ServerFailed, ...: as `steps.rollback.rollback` does.
        """

    def retire(self, model: str, version: int, *, reason: str, force: bool) -> Retired:
        """Takes a model out of service or, with a version other than 0, removes what that version has left. Idempotent.

        Raises:
            StillInUse: it has traffic, dependents or a release under way, and `force` is false; or the version serves.
            NotFound: it does not serve, and was never promoted.
        """


class PastReleases(Protocol):
    """Reading past releases."""

    @property
    def verified(self) -> bool:
        """Whether records of past releases are checked against their signatures."""

    def report(self, model: str, version: int) -> ReleaseReport:
        """The report of a version's newest release; `report` in it is the path of the page on this machine.

        Raises:
            NotFound: the version was never released.
        """

    def reports(self, model: str = "") -> list[ReleaseReport]:
        """The newest report of each released version of a model, or of all models; in no particular order."""

    def history(self, report: ReleaseReport) -> History:
        """The records that a release's stages produced."""

    def story(self, report: ReleaseReport) -> Story:
        """The records of a release, prepared for its report page."""

    def champions(self) -> dict[str, int] | None:
        """The champion of each model (0: none); None if the registry does not answer."""

    def ask(self, model: str, version: int, form: str, rows: Sequence[int], clients: int) -> AskedAgain:
        """Asks rows of a version's newest release again: its original, and a form of it on a private server here.

        Raises:
            NotFound: the version was never released, or its release kept no rows.
            UsageError: the release has no such form, or no such row.
            MissingTool, ServerFailed: the form can't be served on this machine.
        """

    def ask_given(self, model: str, version: int, form: str, inputs: Mapping[str, Any], clients: int) -> AskedAgain:
        """Asks the original of a version one row, a value for each input by name, as its newest release admitted it.

        With a `form`, that form of it is asked as well, on a private server here.

        Raises:
            NotFound: the version was never admitted.
            UsageError: it has no such form, or the row does not fit the model's inputs.
            MissingTool, ServerFailed: the form can't be served on this machine.
        """

    def members(self, pipeline: PipelineSpec) -> dict[str, Package | Unusable]:
        """A pipeline's members as they were promoted, by the pipeline's names for them, or why they can't be used."""

    def store(self) -> ArtifactStore:
        """Where the packages of past releases are stored."""


class Serving(Protocol):
    """Production, logs, status and targets."""

    def infer(self, model: str, file: Path, *, version: int | None, sequence: bool) -> Prediction:
        """Sends a file to production as one request; with `sequence`, its samples one by one as a sequence.

        Without a `version`, the promoted one answers.

        Raises:
            DataInvalid: the file's arrays don't match the model's inputs.
            NotFound: the model, or that version of it, is not served.
            ServerFailed: Triton refuses the request.
        """

    def score(self, order: OfflineOrder) -> Iterator[Event | OfflineResult | None]:
        """Scores a dataset apart from production: yields what happens, and at last the result.

        None means that nothing happened for a moment. What was scored stays when it ends early, and the same order
        goes on from there.

        Raises:
            NotFound, NotAdmitted: there is no such version, or it was not promoted.
            DataInvalid, UsageError: the model does not take the dataset, or refused a row.
            OutputTaken: the output has something else, or another command writes there.
            PartsFailed: parts could not be scored.
        """

    def discover(self, model: str) -> ServedModel:
        """Where a model answers for a client on this machine, and what it takes.

        Raises:
            NotFound: the model is not served, or it can't be reached from here.
        """

    def discover_all(self) -> list[ServedModel]:
        """Where each model answers that a client on this machine can reach."""

    def captured(self, model: str) -> Captured:
        """What is kept of a model's requests and answers.

        Raises:
            NotFound: nothing is captured, and nothing is kept.
        """

    def export_captured(self, model: str, file: Path) -> ExportedRows:
        """Writes the captured rows of a model to a Parquet file.

        Raises:
            NotFound: nothing is kept.
            StorageFull: no space is left.
        """

    def delete_captured(self, model: str, value: str) -> DeletedRows:
        """Deletes the captured rows whose `capture.key` has this value.

        Raises:
            NotFound: nothing is kept.
            UsageError: the model's spec names no key.
            StorageFull: no space is left; no row was deleted.
        """

    def data_drift(self, model: str, *, now: bool) -> DriftReport:
        """How a model's captured requests and answers differ from its validation data: the last report, or a new one.

        Raises:
            NotFound: its drift is not measured.
        """

    def logs(self, name: str, *, lines: int, follow: bool) -> Iterator[str]:
        """Yields the last lines of a log and, with `follow`, new lines.

        An empty name stands for the process that starts releases.

        Raises:
            NotFound: there is no such log.
        """

    def model_events(self, model: str, *, newest: int, follow: bool) -> Iterator[ModelEvent]:
        """What happened to a model, or to all, in order: the newest and, with `follow`, what happens next."""

    def told(self) -> tuple[Place, ...]:
        """How far each target of events is; empty if this place tells none."""

    def status(self, model: str | None) -> Status:
        """The status of everything, or of a model.

        Raises:
            NotFound: the registry does not know the model.
        """

    def targets(self) -> Catalogue:
        """The targets that a spec can name.

        Raises:
            SpecInvalid: the catalogue is not valid.
        """

    def detect(self, name: str) -> Catalogue:
        """Adds the detected targets to the catalogue of this home, and returns them.

        Raises:
            UsageError: a name is given, but several targets are detected.
        """


class Engine(Releasing, PastReleases, Serving, Protocol):
    """The whole interface."""
