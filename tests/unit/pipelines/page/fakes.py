"""An engine for the page's tests, and a client of the page. Only the state readers are faked: the page is real."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.testclient import TestClient

from shiplift.pipelines.engines.answers import (
    AbortedRelease,
    Accepted,
    Incident,
    ModelStatus,
    ModelVersions,
    StackProcess,
    StackStatus,
    Status,
    UnderWay,
    VersionStatus,
)
from shiplift.pipelines.page.app import create_app
from shiplift.pipelines.page.asking import AnswerCache
from shiplift.pipelines.page.doors import Access
from shiplift.runtime.base.errors import NotFound, NothingToRollBack, ShipliftError
from shiplift.runtime.events.event import ModelEvent, model_event
from shiplift.runtime.events.kinds import EventKind
from shiplift.runtime.records.asked import AskedAgain, RowAsked
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.deployment import Endpoint
from shiplift.runtime.records.promotion import Promotion
from shiplift.runtime.records.release import Event, ReleaseReport, StageRun
from shiplift.runtime.records.retirement import Retired, Retirement
from shiplift.runtime.records.verdict import Check, Outcome
from tests.unit.examples import check

HOST = "127.0.0.1:8007"
LOCAL = Access(host="127.0.0.1")


def report(model: str = "digits", version: int = 1, **changes: Any) -> ReleaseReport:
    checks: tuple[Check, ...] = (
        check(name="p99", measured=2.0 + version, limit=10.0, unit="ms"),
        check(name="accuracy", measured=0.9 + version / 100, limit=0.9, unit="accuracy"),
    )
    fields: dict[str, Any] = {
        "model": model,
        "version": version,
        "verdict": Outcome.PASS,
        "alias": "champion",
        "endpoint": None,
        "stages": (StageRun(name="export", seconds=1.5), StageRun(name="tune", target="local-cpu", seconds=8)),
        "checks": checks,
        "release": f"{model}-{version}-0123456789",
        "reason": "",
        "exit_code": 0,
        "seconds": 12.0,
        "since_request_seconds": 13.0,
        "overhead_seconds": 1.0,
        "trigger": "webhook",
    }
    return ReleaseReport(**fields | changes)


@dataclass
class FakeHistory:
    """The records of a release, by their type."""

    records: tuple[Record, ...] = ()
    package: Any = None

    def last(self, kind: type[Record]) -> Record | None:
        return next((each for each in self.records if isinstance(each, kind)), None)


@dataclass
class FakeEngine:
    """An engine whose answers a test sets. `error` is what every question raises."""

    models: dict[str, int] = field(default_factory=lambda: {"digits": 3})
    under_way_now: tuple[UnderWay, ...] = ()
    recorded: list[ReleaseReport] = field(default_factory=lambda: [report(version=version) for version in (1, 2)])
    records: tuple[Record, ...] = ()
    told: list[Event | None] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    finding: str = ""
    outcome: str = "promoted"
    reason: str = ""
    release: str = ""
    mlflow: bool = True
    incidents: tuple[Incident, ...] = ()
    error: ShipliftError | None = None
    done: list[str] = field(default_factory=list)
    served: list[Any] = field(default_factory=list)
    verified: bool = True
    differs: str = ""
    tags: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)

    def status(self, model: str | None) -> Status:
        if self.error:
            raise self.error
        return self._model(model) if model else self._stack()

    def _stack(self) -> StackStatus:
        models = tuple(
            ModelStatus(model=name, champion=latest - 1, challenger=0, previous=0, latest=latest, finding=self.finding)
            for name, latest in self.models.items()
        )
        parts = tuple(
            StackProcess(name=name, running=self.mlflow or name != "mlflow", pid=1, memory_mb=1, address="")
            for name in ("mlflow", "triton")
        )
        return StackStatus(
            home="home",
            running=True,
            parts=parts,
            models=models if self.mlflow else (),
            releasing=self.under_way_now,
            incidents=self.incidents,
        )

    def _model(self, name: str) -> ModelVersions:
        if name not in self.models:
            raise NotFound(f"the registry has no model {name!r}", do="See `shiplift status`.")
        latest = self.models[name]
        running = {each.version: each for each in self.under_way_now if each.model == name}
        versions = tuple(
            VersionStatus(
                version=version,
                aliases=("champion",) if version == latest - 1 else (),
                outcome=self.outcome,
                verdict="pass",
                reason=self.reason,
                release=self.release,
                under_way=running.get(version),
            )
            for version in range(latest, 0, -1)
        )
        where = Endpoint(http="http://127.0.0.1:1/v2/models/x", grpc="127.0.0.1:2")
        return ModelVersions(
            model=name, serving_name=name, endpoint=where, finding=self.finding, verified_at=1.0, versions=versions
        )

    def report(self, model: str, version: int) -> ReleaseReport:
        for each in self.recorded:
            if (each.model, each.version) == (model, version):
                return each
        raise NotFound(f"version {version} of {model!r} was never released", do="Release it.")

    def reports(self, model: str = "") -> list[ReleaseReport]:
        return [each for each in self.recorded if model in ("", each.model)]

    def history(self, _: ReleaseReport) -> FakeHistory:
        return FakeHistory(self.records)

    def events(self, _: str) -> Iterator[Event | None]:
        yield from self.told

    def logs(self, _: str, *, lines: int, follow: bool) -> Iterator[str]:
        assert not follow
        yield from self.lines[-lines:]

    def under_way(self, name: str) -> bool:
        return any(each.release == name for each in self.under_way_now)

    def order(self, name: str, spec: str, *, again: bool, allow_older: bool) -> Accepted:
        self.done.append(f"order {name} again={again}")
        return Accepted(name=f"{name}-release", created=True, queued=True)

    def ask(self, model: str, version: int, form: str, rows: Sequence[int], clients: int) -> AskedAgain:
        return self._asked(model, version, form, f"rows {list(rows)}", clients)

    def ask_given(self, model: str, version: int, form: str, inputs: Mapping[str, Any], clients: int) -> AskedAgain:
        return self._asked(model, version, form, json.dumps(inputs), clients)

    def _asked(self, model: str, version: int, form: str, row: str, clients: int) -> AskedAgain:
        assert clients == 1
        self.done.append(f"ask {model}/{version} {form}: {row}")
        if self.error:
            raise self.error
        answered = RowAsked(
            row=0,
            origin="given",
            inputs=row,
            recorded="",
            original='{"y": "<b>1</b>"}',
            served='{"y": 2}',
            difference=self.differs,
        )
        return AskedAgain(model=model, version=version, form=form, judge="mlflow.pyfunc", rows=(answered,))

    def cancel(self, model: str, version: int) -> str:
        self.done.append(f"cancel {model}/{version}")
        return f"{model}-{version}-x"

    def abort(self, model: str, reason: str) -> AbortedRelease:
        self.done.append(f"abort {model}: {reason}")
        return AbortedRelease(model=model, version=3, release="x", champion=2, message="aborted")

    def decide(self, model: str, version: int, *, approve: bool, reason: str) -> Accepted:
        self.done.append(f"decide {model}/{version} {approve}: {reason}")
        return Accepted(name=f"{model}-{version}-x", created=False, queued=True)

    def rollback(self, model: str) -> Promotion:
        raise NothingToRollBack(f"{model!r} has no <previous> champion", do="Release another version.")

    def retire(self, model: str, version: int, *, reason: str, force: bool) -> Retired:
        self.done.append(f"retire {model} {version} {force}: {reason}")
        return Retired(model=model, retirement=Retirement(by="ana", reason=reason))

    def model_events(self, model: str, *, newest: int, follow: bool) -> Iterator[ModelEvent]:
        assert (newest, follow) == (10, False)
        yield model_event(EventKind.RETIRED, model, 1, at=1e9, text="<b>replaced</b>")

    def tag(self, model: str, version: int, key: str, value: str) -> None:
        if self.error:
            raise self.error
        self.tags.append((f"{model}/{version}", key, json.loads(value)))

    def discover_all(self) -> list[Any]:
        return self.served


def browser(
    engine: FakeEngine,
    access: Access = LOCAL,
    *,
    host: str = HOST,
    transport: httpx.AsyncBaseTransport | None = None,
) -> TestClient:
    """A client of the page, which asks again for every request."""
    app = create_app(engine, access, asking=AnswerCache(fresh_s=0, patience_s=60, slow_s=60), transport=transport)  # type: ignore[arg-type]
    return TestClient(app, base_url=f"http://{host}", raise_server_exceptions=False, follow_redirects=False)
