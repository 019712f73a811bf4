"""Releases for programs: starting one, waiting for it, its report, and a list that notebooks show as a table."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from rich.table import Table

from shiplift.pipelines.api.engines import engine_of
from shiplift.pipelines.api.showing import html_table, rich_table
from shiplift.pipelines.choices import EngineName
from shiplift.pipelines.engines.answers import Status
from shiplift.pipelines.engines.protocol import Engine
from shiplift.runtime.base.errors import NotFound, Temporary, UsageError, by_exit_code
from shiplift.runtime.records.release import Event, ReleaseReport
from shiplift.runtime.store.registry.terms import model_and_version


class Release:
    """A release that was ordered. `name` is its own, `model` and `version` are what it releases.

    It goes on by itself: a program that ends, or that stops waiting, does not end it.
    """

    def __init__(self, engine: Engine, name: str, model: str, version: int | None) -> None:
        self._engine = engine
        self.name, self.model, self.version = name, model, version

    @property
    def under_way(self) -> bool:
        """Whether it is queued or running."""
        return self._engine.under_way(self.name)

    def events(self) -> Iterator[Event]:
        """What happens in it, from its beginning to its end: stages that start, make progress and finish."""
        return (event for event in self._engine.events(self.name) if event)

    def wait(self, timeout_s: float | None = None) -> ReleaseReport:
        """Waits for its end, and returns its report. The version serves then.

        Raises:
            Refused, Inconclusive, NotAdmitted, ...: it was not promoted. The class is that of the command's exit code.
            Temporary: it has not ended after `timeout_s` seconds, and goes on.
        """
        began = time.monotonic()
        for _ in self._engine.events(self.name):
            if timeout_s is not None and time.monotonic() - began > timeout_s:
                raise Temporary(
                    f"the release {self.name} has not ended after {timeout_s:g} s",
                    do="Call `wait()` again, with more time; `cancel()` ends the release.",
                )
        report = self.report()
        if report.outcome != "promoted":
            raise by_exit_code(report.exit_code)(
                f"{report.model}/{report.version} was not promoted ({report.outcome}): {report.reason}",
                do=_what_to_do(report),
            )
        return report

    def report(self) -> ReleaseReport:
        """How it ended: verdict, checks, stages, and the path of its page.

        Raises:
            NotFound, StackDown: it has not ended, or left no report.
        """
        if self.under_way:
            raise NotFound(f"the release {self.name} has not ended", do="Call `wait()` first.")
        return self._engine.result(self.name)

    def cancel(self) -> None:
        """Cancels it, and waits for its clean-up. Does nothing if it has ended."""
        if self.under_way:
            self._engine.stop(self.name)

    def __repr__(self) -> str:
        version = f"/{self.version}" if self.version else ""
        return f"<Release {self.name} of {self.model}{version}>"


class Releases(Sequence[ReleaseReport]):
    """Reports of ended releases, the newest version of each model first. Notebooks and rich show them as a table."""

    def __init__(self, reports: Sequence[ReleaseReport]) -> None:
        self._reports = tuple(sorted(reports, key=lambda report: (report.model, -report.version)))

    @overload
    def __getitem__(self, index: int) -> ReleaseReport: ...
    @overload
    def __getitem__(self, index: slice) -> "Releases": ...
    def __getitem__(self, index: int | slice) -> "ReleaseReport | Releases":
        return Releases(self._reports[index]) if isinstance(index, slice) else self._reports[index]

    def __len__(self) -> int:
        return len(self._reports)

    def __rich__(self) -> Table:
        return rich_table(self._reports)

    def _repr_html_(self) -> str:
        return html_table(self._reports)

    def __repr__(self) -> str:
        lines = (f"{report.model}/{report.version}: {report.outcome}" for report in self._reports)
        return f"<{len(self)} releases: {', '.join(lines)}>" if self._reports else "<no releases>"


def release(
    model: str,
    *,
    wait: bool = True,
    spec: Path | str | None = None,
    again: bool = False,
    allow_older: bool = False,
    engine: EngineName | None = None,
    namespace: str | None = None,
    home: Path | str | None = None,
) -> Release:
    """Releases a version: `models:/digits/3`, `digits/3`, or of `digits` the newest. One that is there is followed.

    With `wait`, returns when the version serves; without, at once. `spec` is the path of a release spec instead of the
    one that was logged with the version. `again` repeats a release that has ended, `allow_older` promotes a version
    older than the champion. `engine`, `namespace` and `home` mean the same as for the command.

    Raises:
        NotFound: the registry has no such version.
        SpecInvalid: the spec is not valid.
        Refused, Inconclusive, NotAdmitted, ...: with `wait`, it was not promoted.
        StackDown, ClusterUnreachable, Temporary: the stack or the cluster could not be asked.
    """
    name, version = model_and_version(model)
    chosen = engine_of(engine, namespace, home)
    wanted = name if version is None else f"{name}/{version}"
    accepted = chosen.order(wanted, _text(spec), again=again, allow_older=allow_older)
    ordered = Release(chosen, accepted.name, name, version)
    if wait:
        ordered.wait()
    return ordered


def releases(
    model: str | None = None,
    *,
    engine: EngineName | None = None,
    namespace: str | None = None,
    home: Path | str | None = None,
) -> Releases:
    """The newest ended release of each version of a model, or of all models.

    Raises:
        StackDown, ClusterUnreachable, Temporary: the stack or the cluster could not be asked.
    """
    name = model_and_version(model)[0] if model else ""
    return Releases(engine_of(engine, namespace, home).reports(name))


def status(
    model: str | None = None,
    *,
    engine: EngineName | None = None,
    namespace: str | None = None,
    home: Path | str | None = None,
) -> Status:
    """What `shiplift status` shows, as a record: `.model_dump()` makes it a dictionary.

    Raises:
        NotFound: the registry does not know the model.
        StackDown, ClusterUnreachable, Temporary: the stack or the cluster could not be asked.
    """
    name = model_and_version(model)[0] if model else None
    return engine_of(engine, namespace, home).status(name)


def _what_to_do(report: ReleaseReport) -> str:
    see = f"See `shiplift report {report.model}/{report.version} --open`, or `.report().checks`."
    return " ".join([*(f"What to do about {do}" for do in report.what_to_do), see])


def _text(spec: Path | str | None) -> str:
    if spec is None:
        return ""
    try:
        return Path(spec).read_text()
    except (OSError, ValueError) as error:
        raise UsageError(f"{str(spec)[:200]} can't be read: {error}", do="Give the path of a YAML file.") from error
