"""Both engines leave the same records, however a stage ends: byte by byte, in the registry.

A small release of real records is walked by engine 1, and pod by pod as Argo would, through the same command lines and
parameters. Both are concluded by the real last stage. Clocks stand still.
"""

import itertools
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, Self, cast

import pytest
import tenacity

from shiplift.pipelines import pods
from shiplift.pipelines.engines import attempt
from shiplift.pipelines.engines.argo.ending import ending_of
from shiplift.pipelines.engines.argo.pod import walk
from shiplift.pipelines.engines.argo.pod.call import Call, parse
from shiplift.pipelines.engines.argo.workflows import CONCLUDED, FAILED, SUCCEEDED, as_parameter
from shiplift.pipelines.engines.local import runner
from shiplift.pipelines.graph import FanOut, Pipeline, Placement, Stage
from shiplift.pipelines.pods import Pod
from shiplift.runtime.base import progress
from shiplift.runtime.base.errors import (
    Aborted,
    AwaitingApproval,
    Cancelled,
    DeadlineExceeded,
    NotAdmitted,
    Rejected,
    StorageFull,
    Temporary,
    every_error,
)
from shiplift.runtime.base.progress import measuring
from shiplift.runtime.gates import report
from shiplift.runtime.records.deployment import Endpoint
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.figure import Figure
from shiplift.runtime.records.promotion import Promotion
from shiplift.runtime.records.release import Ending, StageRuns
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Outcome, Packages, Scored, Verdict
from shiplift.runtime.serving.kubernetes.kinds import ResourceKind
from shiplift.runtime.spec.target import Fleet, Target
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.client import Registry
from shiplift.steps.conclude import conclude
from tests.unit.examples import check, package, site
from tests.unit.runtime.store.test_ledger import Runs

NAME = "release-digits-3-0123456789"
REQUEST = Request(model="digits", version=3)
TRIGGER = Trigger(kind="manual", requested_at=1767225500.0)
STARTED, STARTED_S = "2026-01-01T00:00:00Z", 1767225600.0
RETRIED = (Temporary.exit_code, Cancelled.exit_code)  # by a Workflow's retryStrategy
OF_PEOPLE: dict[type[Exception], str] = {
    Aborted: "aborted",
    AwaitingApproval: "waiting",
    Cancelled: "cancelled",
    Rejected: "rejected",
}

Act = Callable[[], Outcome]


class StoppedClock:
    """In place of the module `time`."""

    def time(self) -> float:
        return STARTED_S

    def monotonic(self) -> float:
        return 1000.0


class StoppedDate(datetime):
    """In place of `datetime`."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls.fromtimestamp(STARTED_S, tz)


class Registered(Runs):
    """A registry that keeps what it is told; `fault` is called before it is touched for the stage `judge`."""

    def __init__(self) -> None:
        super().__init__()
        self.tagged: list[Any] = []
        self.fault: dict[str, Callable[[], object]] = {}

    def pipelines(self) -> list[Any]:
        return []

    def read_text(self, run_id: str, path: str) -> str | None:
        if "records/judge-" in path:
            self.fault.get("lookup", lambda: None)()
        return super().read_text(run_id, path)

    def write_text(self, run_id: str, path: str, body: str) -> None:
        if "records/judge-" in path:
            self.fault.get("keeping", lambda: None)()
        super().write_text(run_id, path, body)

    def alias(self, name: str, alias: str) -> int:
        return 0

    def tag(self, name: str, version: int, **tags: str) -> None:
        self.tagged.append((name, version, tags))

    def link(self, run_id: str, path: str) -> str:
        return f"http://mlflow/{run_id}/{path}"

    def metrics(self, run_id: str, figures: Sequence[Figure], *, model_id: str = "", at_ms: int = 0) -> None:
        self.tagged.append((run_id, figures, model_id, at_ms))

    def describe(self, name: str, version: int, description: str) -> None:
        self.tagged.append((name, version, description))

    def left(self) -> dict[str, Any]:
        """Everything that a release left."""
        return {"tagged": self.tagged, **{path: body for (_, path), body in self.texts.items()}}


def release_that(act: Act, **at: Any) -> Pipeline:
    """Three stages; the second one acts."""

    def measure(request: Request) -> Scored:
        with measuring():
            return Scored(version=request.version, target="cpu")

    def judge(scored: Scored) -> Verdict:
        return Verdict.of((check(act(), reason="it was {{slow}}"),))

    def promote(verdict: Verdict) -> Promotion:
        endpoint = Endpoint(http="http://127.0.0.1:1", grpc="127.0.0.1:2")
        return Promotion(model="digits", version=3, alias="champion", endpoint=endpoint, package=package())

    return Pipeline(
        "small",
        inputs=(Site, Request, Trigger),
        stages=(
            Stage(measure),
            Stage(judge, Placement(**{"retries": 2} | at)),
            Stage(promote, Placement(keep="never", shielded=True)),
        ),
        on_exit=Stage(conclude, Placement(keep="never")),
    )


class Engines:
    """Both, each with a registry of its own, and one home, which is emptied in between."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = site(home)
        self.registries = {"local": Registered(), "argo": Registered()}
        self.message = ""  # what the Workflow's first node says at the end
        self._home = home
        self._monkeypatch = monkeypatch

    def _begin(self, engine: str) -> Ledger:
        registry = cast("Registry", self.registries[engine])
        for folder in ("records", "releases", "out"):
            shutil.rmtree(self._home / folder, ignore_errors=True)
        for module in ("shiplift.steps.conclude", "shiplift.pipelines.engines.argo.pod.call"):
            self._monkeypatch.setattr(f"{module}.Ledger", lambda *arguments, **_: Ledger(*arguments, registry=registry))
        return Ledger(self.site, REQUEST, registry=registry)

    def local(self, pipeline: Pipeline) -> Ending:
        """A walk of engine 1."""
        ledger = self._begin("local")
        return runner.run(pipeline, self.site, REQUEST, TRIGGER, release=NAME, cache=ledger)[0]

    def argo(self, pipeline: Pipeline) -> Ending:
        """A Workflow: a pod for each attempt at each stage, and at last the one that concludes."""
        self._begin("argo")
        self._pipeline = pipeline
        self._nodes: list[dict[str, Any]] = []
        parameters = {record.parameter(): as_parameter(record) for record in (self.site, REQUEST, TRIGGER)}
        all(self._walked(node, parameters) for node in pods.of(pipeline))
        labels: list[Any] = []
        workflows = Workflows(self._workflow(), labels.append)
        self._monkeypatch.setattr(Call, "api", property(lambda _: workflows))
        assert pipeline.on_exit is not None
        assert self._succeeded(Pod(pipeline.on_exit.name, (pipeline.on_exit,)), parameters)
        (patch,) = labels
        assert patch["metadata"] == {"labels": {CONCLUDED: "true"}}
        self.message = patch.get("status", {}).get("nodes", {}).get(NAME, {}).get("message", "")
        return ending_of(workflows.body, pipeline)

    def _walked(self, node: Pod | FanOut, parameters: dict[str, str]) -> bool:
        if isinstance(node, Pod):
            return self._succeeded(node, parameters)
        results = []
        for item in json.loads(parameters[node.source])[node.attribute]:
            inside = parameters | {node.item.parameter(): json.dumps(item)}
            if not all(self._succeeded(pod, inside) for pod in pods.inside(node)):
                return False
            results.append(inside[node.gives.parameter()])
        parameters[node.gives.parameter()] = json.dumps(results)  # as Argo joins them
        return True

    def _succeeded(self, pod: Pod, parameters: dict[str, str]) -> bool:
        for _ in range(1 + max(stage.at.retries for stage in pod.stages)):
            code, outputs = self._pod(pod, parameters)
            if code not in RETRIED:
                break
        parameters |= outputs
        return code == 0

    def _pod(self, group: Pod, parameters: dict[str, str]) -> tuple[int, dict[str, str]]:
        shutil.rmtree(self._home / "records", ignore_errors=True)  # a pod's home is its own, and empty
        out = self._home / "out" / str(len(self._nodes))
        names = {"site", "request", *group.takes} - {Ending.parameter()}
        words = itertools.chain(*((f"--{name}", parameters[name]) for name in names))
        of = ["--workflow", NAME] if Ending.parameter() in group.takes else []
        code = walk.run(parse([group.words, "--out", str(out), *of, *words], self._pipeline))
        names_out = [*group.leaves, StageRuns.parameter(), Failure.parameter()]
        outputs = {name: file.read_text() for name in names_out if (file := out / f"{name}.json").is_file()}
        self._nodes.append(
            {
                "id": str(len(self._nodes)),
                "type": "Pod",
                "templateName": group.name.replace("_", "-"),
                "phase": FAILED if code else SUCCEEDED,
                "message": f"Error (exit code {code})" if code else "",
                "startedAt": f"2026-01-01T00:00:{len(self._nodes):02}Z",
                "inputs": {"parameters": [{"name": name, "value": parameters[name]} for name in names]},
                "outputs": {
                    "exitCode": str(code),
                    "parameters": [{"name": name, "value": outputs.get(name, "")} for name in names_out],
                },
            }
        )
        return code, outputs

    def _workflow(self) -> dict[str, Any]:
        return {
            "metadata": {"name": NAME, "creationTimestamp": STARTED},
            "spec": {},
            "status": {
                "phase": "Running",
                "nodes": {NAME: {"type": "DAG"}} | {node["id"]: node for node in self._nodes},
            },
        }


class Workflows:
    """The cluster's API, as far as the last stage asks it."""

    def __init__(self, body: dict[str, Any], patch: Callable[[Any], object]) -> None:
        self.body = body
        self._patch = patch

    def get(self, kind: ResourceKind, name: str) -> dict[str, Any] | None:
        return self.body if (kind.name, name) == ("Workflow", NAME) else None

    def merge(self, kind: ResourceKind, name: str, patch: Any) -> None:
        self._patch(patch)


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engines]:
    for module in (attempt, runner, progress):
        monkeypatch.setattr(module, "time", StoppedClock())
    monkeypatch.setattr("shiplift.steps.conclude.time", StoppedClock())
    monkeypatch.setattr(report, "datetime", StoppedDate)  # the page says when it was written
    monkeypatch.setattr(runner, "_WAIT_S", tenacity.wait_none())
    yield Engines(tmp_path, monkeypatch)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def raising(error: Exception) -> Act:
    def act() -> Outcome:
        raise error

    return act


ERRORS: list[Exception] = [kind("it broke: 3 of {{2}}", do="Fix it.") for kind in every_error()]
BUGS: list[Exception] = [
    ZeroDivisionError("division by zero"),
    KeyError("two\nlines"),
    RuntimeError("long " * 1000),
    MemoryError(),
]


# Those that an engine asks for by name, and one of the others; every other one is the latter's twin.
APART = (Temporary, StorageFull, Cancelled, DeadlineExceeded, NotAdmitted, ZeroDivisionError, RuntimeError)


@pytest.mark.parametrize(
    "error",
    [pytest.param(e, marks=() if type(e) in APART else pytest.mark.slow, id=type(e).__name__) for e in ERRORS + BUGS],
)
def test_every_error_leaves_the_same_records_on_both_engines(engines: Engines, error: Exception) -> None:
    ending = same(engines, release_that(raising(error)))
    assert [run.name for run in ending.stages] == ["measure", "judge"]
    assert ending.failure == Failure.of(error)
    assert ending.stages[-1].message == ending.failure.message
    assert ending.stages[-1].outcome == OF_PEOPLE.get(type(error), "failed")
    assert ending.stages[-1].key


def same(engines: Engines, pipeline: Pipeline) -> Ending:
    """Walks it on both engines; gives the ending, which is the same, as all that they left."""
    local, argo = engines.local(pipeline), engines.argo(pipeline)
    assert argo.model_dump_json() == local.model_dump_json()
    left = engines.registries["local"].left()
    assert f"shiplift/releases/{NAME}/release.json" in left
    assert engines.registries["argo"].left() == left
    return local


@pytest.mark.parametrize("error", BUGS, ids=lambda error: type(error).__name__)
def test_a_bug_is_an_internal_error_with_its_traceback_in_the_log(
    engines: Engines, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    ending = same(engines, release_that(raising(error)))
    assert ending.failure is not None
    assert (ending.failure.kind, ending.failure.exit_code) == (type(error).__name__, 70)
    assert len(ending.failure.what) <= 1000
    assert capsys.readouterr().err.count("Traceback (most recent call last)") == 2


def test_a_step_that_gives_nothing_is_a_bug(engines: Engines) -> None:
    pipeline = release_that(lambda: Outcome.PASS)
    measure, _, promote = pipeline.flat()

    def nothing(scored: Scored) -> Verdict:
        return cast("Verdict", None)

    nothing.__name__ = "judge"
    stages = (measure, Stage(nothing), promote)
    broken = Pipeline("small", inputs=pipeline.inputs, stages=stages, on_exit=pipeline.on_exit)
    ending = same(engines, broken)
    assert ending.failure is not None
    assert (ending.failure.kind, ending.failure.exit_code) == ("TypeError", 70)
    assert "returned None, but declares Verdict" in ending.failure.what


@pytest.mark.parametrize(
    ("outcome", "word"), [(Outcome.PASS, "ok"), (Outcome.FAIL, "refused"), (Outcome.INCONCLUSIVE, "inconclusive")]
)
def test_every_verdict_leaves_the_same_records_made_or_found(engines: Engines, outcome: Outcome, word: str) -> None:
    pipeline = release_that(lambda: outcome)
    for cached in (False, True):
        ending = same(engines, pipeline)
        judged = ending.stages[1]
        assert (judged.outcome, judged.cached) == (word, cached)
        assert judged.message == ("" if outcome is Outcome.PASS else "p99: it was {{slow}}")
        assert (ending.failure, len(ending.stages)) == (None, 3 if outcome is Outcome.PASS else 2)
        assert engines.message == ("" if outcome is Outcome.PASS else f"{word}: p99: it was {{{{slow}}}}")


@pytest.mark.parametrize("error", [Temporary("away", do="Wait."), StorageFull("full", do="Make room."), OSError("odd")])
@pytest.mark.parametrize("moment", ["lookup", "keeping"])
def test_a_registry_that_fails_leaves_the_same_records(engines: Engines, moment: str, error: Exception) -> None:
    for registry in engines.registries.values():
        registry.fault[moment] = raising(error)
    ending = same(engines, release_that(lambda: Outcome.PASS))
    assert ending.failure == Failure.of(error)
    assert [(run.name, run.outcome) for run in ending.stages] == [("measure", "ok"), ("judge", "failed")]


@pytest.mark.slow
def test_a_step_that_hangs_leaves_the_same_records(engines: Engines) -> None:
    ending = same(engines, release_that(hang, deadline_s=1))
    assert ending.failure is not None
    assert (ending.failure.kind, ending.failure.what) == (DeadlineExceeded.__name__, "stage judge took over 1 s")


def hang() -> Outcome:
    threading.Event().wait(60)
    return Outcome.PASS


def test_a_temporary_error_that_passes_leaves_no_trace(engines: Engines) -> None:
    """Engine 1 tries again within a stage and Argo with another pod: only the last attempt is recorded."""
    ups = itertools.cycle([False, False, True])

    def act() -> Outcome:
        if not next(ups):
            raise Temporary("away", do="Wait.")
        return Outcome.PASS

    ending = same(engines, release_that(act))
    assert (ending.failure, ending.stages[1].outcome) == (None, "ok")


def test_a_signal_differs_in_its_words_alone(engines: Engines) -> None:
    """They can't be the same: engine 1 is stopped by a person, a pod by a cluster, which tries the stage again."""

    def act() -> Outcome:
        os.kill(os.getpid(), signal.SIGTERM)
        return hang()

    endings = [walk(release_that(act)) for walk in (engines.local, engines.argo)]
    failures = [ending.failure for ending in endings if ending.failure]
    assert [failure.what for failure in failures] == ["stopped by SIGTERM", "the pod was terminated"]
    blank = {"what": "", "do": ""}
    assert failures[0].model_copy(update=blank) == failures[1].model_copy(update=blank)
    runs = [[run.model_copy(update={"message": ""}) for run in ending.stages] for ending in endings]
    assert runs[0] == runs[1]
    assert runs[0][-1].outcome == "cancelled"


# --- several stages in a pod, and fan-outs ---


def deploying(spec: list[str]) -> Pipeline:
    """An effect, a stage that uses it, and one that judges, in a pod of their own; `spec` notes what is called."""

    def serve(request: Request) -> Endpoint:
        spec.append("serve")
        return Endpoint(http="http://127.0.0.1:1", grpc="127.0.0.1:2")

    def measure(endpoint: Endpoint) -> Scored:
        spec.append("measure")
        return Scored(version=3, target="cpu")

    def judge(scored: Scored) -> Verdict:
        spec.append("judge")
        return Verdict.of((check(),))

    together = Placement(pod="deliver")
    stages = (
        Stage(serve, replace(together, keep="effect")),
        Stage(measure, replace(together, uses=serve)),
        Stage(judge, together),
    )
    conclusion = Stage(conclude, Placement(keep="never"))
    return Pipeline("small", inputs=(Site, Request, Trigger), stages=stages, on_exit=conclusion)


@pytest.mark.parametrize(
    ("lost", "again"),
    [("", []), ("judge", ["judge"]), ("measure", ["serve", "measure"]), ("serve", ["serve"])],
)
def test_an_effect_is_set_up_again_for_the_same_stages(engines: Engines, lost: str, again: list[str]) -> None:
    called: list[str] = []
    pipeline = deploying(called)
    first = same(engines, pipeline)
    assert called == ["serve", "measure", "judge"] * 2
    called.clear()
    for registry in engines.registries.values():
        registry.texts = {at: text for at, text in registry.texts.items() if not lost or f"/{lost}-" not in at[1]}
    second = same(engines, pipeline)
    assert called == again * 2
    assert [run.name for run in second.stages if not run.cached] == again
    assert [run.name for run in second.stages] == [run.name for run in first.stages] == ["serve", "measure", "judge"]


def touring(act: Act) -> Pipeline:
    """A fan-out over targets, each in a pod of its own, and a stage that takes what they gave."""

    def find(request: Request) -> Fleet:
        return Fleet(targets=(Target(name="a"), Target(name="b")))

    def build(target: Target) -> Packages:
        return Packages(target=target.name, packages=(), checks=())

    def score(target: Target, packages: Packages) -> Scored:
        if target.name == "b":
            act()
        return Scored(version=3, target=packages.target)

    def judge(scored: tuple[Scored, ...]) -> Verdict:
        return Verdict.of((check(reason=" and ".join(each.target for each in scored)),))

    inside = Placement(pod="optimize", on_target=True)
    each = FanOut(Target, "fleet", "targets", (Stage(build, inside), Stage(score, inside)))
    conclusion = Stage(conclude, Placement(keep="never"))
    return Pipeline(
        "small", inputs=(Site, Request, Trigger), stages=(Stage(find), each, Stage(judge)), on_exit=conclusion
    )


def test_a_fan_out_leaves_the_same_records(engines: Engines) -> None:
    pipeline = touring(lambda: Outcome.PASS)
    for cached in (False, True):
        ending = same(engines, pipeline)
        assert [(run.name, run.target) for run in ending.stages] == [
            ("find", ""),
            ("build", "a"),
            ("build", "b"),
            ("score", "a"),
            ("score", "b"),
            ("judge", ""),
        ]
        assert {run.cached for run in ending.stages} == {cached}
        assert ending.verdict == Verdict.of((check(reason="a and b"),))


def test_a_fan_out_ends_with_the_first_item_that_fails(engines: Engines) -> None:
    ending = same(engines, touring(raising(NotAdmitted("unsafe", do="Fix it."))))
    assert ending.failure == Failure.of(NotAdmitted("unsafe", do="Fix it."))
    of_b = [(run.name, run.outcome) for run in ending.stages if run.target == "b"]
    assert of_b == [("build", "ok"), ("score", "failed")]
