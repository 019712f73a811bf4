"""One stage in a pod, or by hand.

    python -m shiplift.pipelines.engines.argo.pod gate --out DIR --slo '{...}' --load_report '{...}' ...

The same rules as engine 1: a finished stage is found by its key in the ledger and not run again; what it gives is
written where the engine looks. What all targets give goes to one stage in one argument: such a record goes into the
artifact store, and its digest into the argument. How a stage ended is the exit code, why is the pod's termination
message, and both stand in `stage_run.json` and `failure.json`, from which the last stage tells the whole story.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from shiplift.pipelines.engines.argo.ending import ending_of
from shiplift.pipelines.engines.argo.layout import CONFIG
from shiplift.pipelines.engines.argo.workflows import CONCLUDED, as_parameter
from shiplift.pipelines.engines.cache_key import key
from shiplift.pipelines.engines.interruption import Interrupted, as_error
from shiplift.pipelines.graph import Each, Stage, load
from shiplift.pipelines.release import RELEASE, ROLLBACK
from shiplift.runtime.base.errors import Cancelled, RecordTooLarge, ShipliftError, UsageError
from shiplift.runtime.base.progress import listening
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record, Sections
from shiplift.runtime.records.release import Ending, Failure, StageRun
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.serving.kubernetes.api import Api
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.ledger import Ledger

MAX_RECORD_BYTES = 96 * 1024  # the kernel takes 128 KiB of one argument, and Argo's escaping needs room
_GATHERED = tuple(stage.gives for stage in RELEASE if isinstance(stage, Each))
_STORED = "$stored"  # the key of a record's artifact, in its place
_MESSAGE = Path("/dev/termination-log")
_MESSAGE_BYTES = 4000
_EXIT_CODES = {Outcome.PASS: 0, Outcome.FAIL: 20, Outcome.INCONCLUSIVE: 21}
_OUTCOMES: dict[Outcome, Any] = {Outcome.FAIL: "refused", Outcome.INCONCLUSIVE: "inconclusive", Outcome.PASS: "ok"}


@dataclass(frozen=True, kw_only=True)
class Call:
    """A stage with its arguments, as read from a command line."""

    stage: Stage
    out: Path
    given: dict[str, Any]
    workflow: str = ""

    @property
    def target(self) -> str:
        """The name of the item it runs for, where it runs once per item."""
        return str(getattr(self.given.get("target"), "name", ""))

    @property
    def ledger(self) -> Ledger | None:
        """Where what it gives is kept; None where it is not the stage of a release."""
        site, request = self.given.get(Site.parameter()), self.given.get(Request.parameter())
        return Ledger(site, request) if site and request else None


def parse(words: Sequence[str]) -> Call:
    """A command line as a call.

    Raises:
        UsageError: there is no such stage, or a record is missing or not one.
        ArtifactCorrupt: a stored record is gone or altered.
    """
    stages = {stage.name: stage for stage in (*RELEASE.flat(), ROLLBACK, RELEASE.on_exit) if stage is not None}
    stage = stages.get(words[0] if words else "")
    if stage is None:
        raise UsageError(f"there is no stage {' '.join(words[:1])!r}", do=f"Stages are: {', '.join(stages)}.")
    pairs = dict(zip((word.removeprefix("--") for word in words[1::2]), words[2::2], strict=False))
    try:
        site = load(Site, json.loads(pairs[Site.parameter()])) if Site.parameter() in pairs else None
        given = {
            name: pairs[name] if kind is str else load(kind, _resolved(json.loads(pairs[name]), site))
            for name, kind in stage.takes.items()
            if kind is not Ending
        }
        # What a stage need not take, but the ledger needs to find its release.
        for kind in (Site, Request):
            if kind.parameter() in pairs:
                given[kind.parameter()] = load(kind, json.loads(pairs[kind.parameter()]))
        return Call(stage=stage, out=Path(pairs["out"]), given=given, workflow=pairs.get("workflow", ""))
    except KeyError as error:
        raise UsageError(f"{stage.name} needs --{error.args[0]}", do="Give each record it takes as JSON.") from error
    except ValueError as error:
        raise UsageError(f"{stage.name}: {' '.join(str(error).split())[:1000]}", do="Mend that record.") from error


def _resolved(value: Any, site: Site | None) -> Any:
    """Decoded JSON with stored records in place of their digests. Argo hands lists over as lists of JSON texts."""
    if isinstance(value, list):
        return [_resolved(json.loads(one) if isinstance(one, str) else one, site) for one in value]
    if site is not None and isinstance(value, dict) and set(value) == {_STORED}:
        return json.loads(ArtifactStore(site.artifacts_uri).read(Artifact.model_validate(value[_STORED])))
    return value


def run(call: Call) -> int:
    """Runs a stage, or finds it done; writes what it gives; gives the exit code."""
    started = time.monotonic()
    measured: list[float] = []
    try:
        with _ended_by_signal(shielded=call.stage.at.shielded), listening(_say) as measured:
            record, cached, name = _found_or_made(call)
        _write(call, record)
    except ShipliftError as error:
        failure = Failure(kind=type(error).__name__, exit_code=error.exit_code, what=error.what, do=error.do)
        outcome: Any = "cancelled" if isinstance(error, Cancelled) else "failed"
        _leave(call, _stage_run(call, started, measured, outcome=outcome, message=str(error)), failure)
        return error.exit_code
    objection = record.objection()
    outcome = _OUTCOMES[objection.outcome] if objection else "ok"
    message = "; ".join(objection.reasons) if objection else record.remark()
    ran = _stage_run(call, started, measured, outcome=outcome, message=message)
    _leave(call, ran.model_copy(update={"cached": cached, "key": name}), None)
    return _EXIT_CODES[objection.outcome] if objection else 0


def _found_or_made(call: Call) -> tuple[Record, bool, str]:
    stage, ledger = call.stage, call.ledger
    arguments = {name: call.given[name] for name in stage.takes if name in call.given}
    if stage is RELEASE.on_exit:
        return _concluded(call, arguments), False, ""
    name = key(stage, arguments) if stage.at.keep != "never" and ledger else ""
    if name and ledger and stage.at.keep == "result":
        record = ledger.get(name, stage.name, stage.gives)
        if record is not None:
            return record, True, name
    record = stage.step(**arguments)
    if name and ledger:
        ledger.put(name, stage.name, record)
    return record, False, name


def _concluded(call: Call, arguments: dict[str, Any]) -> Record:
    """The last stage: how the others went stands in the Workflow."""
    site: Site = call.given[Site.parameter()]
    if not isinstance(site.place, Cluster):
        raise UsageError("only a site on a cluster has Workflows", do="Give --site with a `place` of kind `cluster`.")
    api = Api(site.place.namespace)
    body = api.get("Workflow", call.workflow)
    if body is None:
        raise UsageError(f"there is no Workflow {call.workflow!r}", do="Give --workflow NAME.")
    record = call.stage.step(**arguments, ending=ending_of(body, RELEASE))
    api.merge("Workflow", call.workflow, {"metadata": {"labels": {CONCLUDED: "true"}}})
    return record


def _stage_run(call: Call, started: float, measured: list[float], *, outcome: Any, message: str) -> StageRun:
    return StageRun(
        name=call.stage.name, target=call.target, seconds=round(time.monotonic() - started, 3), outcome=outcome,
        message=message, measured_seconds=round(sum(measured), 3),
    )  # fmt: skip


def _write(call: Call, record: Record) -> None:
    out, site = call.out, call.given.get(Site.parameter())
    parts: dict[str, Record] = {record.parameter(): record}
    if isinstance(record, Sections):
        parts |= {name: getattr(record, name) for name in record.parts()}
    out.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        text = as_parameter(part)
        if isinstance(part, _GATHERED) and site is not None:
            stored = ArtifactStore(site.artifacts_uri).put_bytes(part.model_dump_json().encode())
            text = json.dumps({_STORED: stored.model_dump(mode="json", exclude={"uri"})})
        if len(text.encode()) > MAX_RECORD_BYTES:
            raise RecordTooLarge(
                f"the record {name!r} has {len(text.encode())} bytes, {MAX_RECORD_BYTES} may pass between pods",
                do="Ask for less in the spec: fewer trials, targets or slices.",
            )
        (out / f"{name}.json").write_text(text)


def _leave(call: Call, ran: StageRun, failure: Failure | None) -> None:
    """Writes how it went for the last stage, and why for who looks at the node."""
    call.out.mkdir(parents=True, exist_ok=True)
    (call.out / f"{StageRun.parameter()}.json").write_text(ran.model_dump_json())
    if failure is not None:
        (call.out / f"{Failure.parameter()}.json").write_text(failure.model_dump_json())
    if ran.message:
        print(ran.message, file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):  # by hand there is none
            _MESSAGE.write_bytes(ran.message.encode()[:_MESSAGE_BYTES])


def _say(message: str, done: float | None) -> None:
    print(f"{message} ({done:.0%})" if done is not None else message, flush=True)
    file = os.environ.get("ARGO_PROGRESS_FILE")
    if file and done is not None:
        with contextlib.suppress(OSError):
            Path(file).write_text(f"{round(100 * done)}/100")


@contextlib.contextmanager
def _ended_by_signal(*, shielded: bool) -> Iterator[None]:
    """SIGTERM ends a stage as cancelled, after it has cleaned up; a shielded one is finished instead."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is told once
        error = Cancelled("the pod was told to end", do="It is tried again, unless the release was cancelled.")
        raise Interrupted(error)

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN if shielded else stop)
    try:
        with as_error():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _settle_in(site: Site) -> None:
    """A pod's home is empty: secrets and the catalogue are mounted elsewhere, and found at home."""
    home = Path(site.home)
    home.mkdir(parents=True, exist_ok=True)
    for mounted in (Path(CONFIG) / "ledger" / "secrets.json", Path(CONFIG) / "targets" / "targets.yaml"):
        if mounted.is_file() and not (home / mounted.name).exists():
            (home / mounted.name).symlink_to(mounted)


def main() -> int:
    """Runs the stage that the command line names."""
    try:
        call = parse(sys.argv[1:])
    except ShipliftError as error:  # also a stored record that can't be had
        print(error, file=sys.stderr)
        with contextlib.suppress(OSError):
            _MESSAGE.write_text(str(error))
        return error.exit_code
    _settle_in(call.given[Site.parameter()])
    return run(call)


if __name__ == "__main__":
    raise SystemExit(main())
