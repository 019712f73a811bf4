"""What a user can ask of a place that runs releases. An engine is a class with these methods and a line in `table.py`.

Every method raises errors of ours; beside those named, `StackDown` where this machine's stack does not run, and
`ClusterUnreachable`, `ClusterRefused` or `Temporary` where a cluster does not answer.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from shiplift.pipelines.engines.answers import Accepted, Answer, Catalogue, Status
from shiplift.runtime.gates.report import Story
from shiplift.runtime.records.release import Event, ReleaseReport
from shiplift.runtime.records.serving import Promotion
from shiplift.runtime.store.history import History


class Releasing(Protocol):
    """Orders, and what becomes of them."""

    @property
    def attended(self) -> bool:
        """Whether a release is the business of who ordered it: it is waited for unless they say otherwise, and

        interrupting the wait cancels it. Else it goes on by itself, and is watched by who asks for that.
        """

    def order(self, name: str, spec: str, *, again: bool, allow_older: bool) -> Accepted:
        """Orders a release of a version (`MODEL/VERSION`), or of a model's newest one.

        Raises:
            NotFound: the registry has no such version.
            SpecInvalid: the spec given by hand is wrong.
        """

    def under_way(self, name: str) -> bool:
        """Whether a release is queued or running."""

    def events(self, name: str) -> Iterator[Event | None]:
        """What happens in a release until it has ended; None is a pause."""

    def result(self, name: str) -> ReleaseReport:
        """How an ended release ended.

        Raises:
            NotFound, StackDown: nothing says how.
        """

    def cancel(self, model: str, version: int) -> str:
        """Stops a version's release under way, and waits for it to clean up; gives its name, empty: there was none."""

    def stop(self, name: str) -> None:
        """The same for a release by its name."""

    def rollback(self, model: str) -> Promotion:
        """Makes the previous champion serve again.

        Raises:
            NothingToRollBack, CanaryFailed, ServerFailed, ...: as the step says.
        """


class Remembering(Protocol):
    """Past releases."""

    @property
    def verified(self) -> bool:
        """Whether records of past releases are checked against their signatures."""

    def report(self, model: str, version: int) -> ReleaseReport:
        """How a version's newest release ended; its `report` is the path of the page on this machine.

        Raises:
            NotFound: it was never released.
        """

    def reports(self, model: str = "") -> list[ReleaseReport]:
        """The newest report of each version that was released, of one model or of all; in no order."""

    def history(self, report: ReleaseReport) -> History:
        """The records that a release's stages gave."""

    def story(self, report: ReleaseReport) -> Story:
        """The same for a page."""

    def champions(self) -> dict[str, int] | None:
        """Each model's champion (0: none); None where the registry can't be asked."""


class Serving(Protocol):
    """What serves, and how it stands."""

    def infer(self, model: str, file: Path, *, sequence: bool) -> Answer:
        """Sends one request made from a file to production; with `sequence` its samples in turn, as one sequence.

        Raises:
            DataInvalid: the file's arrays are not the model's inputs.
            NotFound: the model is not served.
            ServerFailed: Triton refuses the request.
        """

    def logs(self, name: str, *, lines: int, follow: bool) -> Iterator[str]:
        """The last lines of a log, and then, if asked, new ones as they come. An empty name: what starts releases.

        Raises:
            NotFound: there is no such log.
        """

    def status(self, model: str | None) -> Status:
        """How it all stands, or one model.

        Raises:
            NotFound: the registry does not know the model.
        """

    def targets(self) -> Catalogue:
        """The places that a spec may name.

        Raises:
            SpecInvalid: the catalogue is wrong.
        """

    def detect(self, name: str) -> Catalogue:
        """Writes the targets found here into the catalogue of this home, and gives those.

        Raises:
            UsageError: one name for several targets.
        """


class Engine(Releasing, Remembering, Serving, Protocol):
    """All of it."""
