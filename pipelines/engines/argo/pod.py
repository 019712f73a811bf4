"""Runs a stage in a pod, or by hand.

    python -m shiplift.pipelines.engines.argo.pod gate --out DIR --slo '{...}' --load_report '{...}' ...

The rules are those of engine 1: a finished stage is looked up in the ledger by its cache key and not run again. Its
record is written where the engine looks. The records of all targets reach a single stage in a single argument, so such
a record goes into the artifact store, and its digest into the argument. The exit code says how the stage ended, the
pod's termination message says why, and `stage_run.json` and `failure.json` say both to the last stage.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

from shiplift.pipelines.engines.argo.ending import ending_of
from shiplift.pipelines.engines.argo.layout import CONFIG
from shiplift.pipelines.engines.argo.workflows import CONCLUDED, as_parameter
from shiplift.pipelines.engines.attempt import Attempt, Done, failure_of
from shiplift.pipelines.engines.interruption import Interrupted, interruptible, shielded
from shiplift.pipelines.graph import Each, Stage, load
from shiplift.pipelines.release import RELEASE, ROLLBACK
from shiplift.runtime.base.errors import Cancelled, RecordTooLarge, UsageError
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record, Sections
from shiplift.runtime.records.release import Ending
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import WORKFLOW
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.ledger import Ledger

MAX_RECORD_BYTES = 96 * 1024  # the kernel allows 128 KiB per argument, and Argo's escaping needs room
_GATHERED = tuple(stage.gives for stage in RELEASE if isinstance(stage, Each))
_STORED = "$stored"  # in place of a stored record: `{"$stored": ARTIFACT}`
_MESSAGE = Path("/dev/termination-log")
_MESSAGE_BYTES = 4000


@dataclass(frozen=True, kw_only=True)
class Call:
    """A stage and its arguments, from a command line."""

    stage: Stage
    out: Path
    arguments: dict[str, Any]
    workflow: str = ""

    @property
    def target(self) -> str:
        """The name of the item, for a stage that runs once per item; else empty."""
        return str(getattr(self.arguments.get("target"), "name", ""))

    @property
    def ledger(self) -> Ledger | None:
        """The ledger of its release; None if it is not a stage of a release."""
        site, request = self.arguments.get(Site.parameter()), self.arguments.get(Request.parameter())
        return Ledger(site, request) if site and request else None


def parse(words: Sequence[str]) -> Call:
    """Reads a command line.

    Raises:
        UsageError: there is no such stage, or a record is missing or invalid.
        ArtifactCorrupt: a stored record is gone or altered.
    """
    stages = {stage.name: stage for stage in (*RELEASE.flat(), ROLLBACK, RELEASE.on_exit) if stage is not None}
    stage = stages.get(words[0] if words else "")
    if stage is None:
        raise UsageError(f"there is no stage {' '.join(words[:1])!r}", do=f"Stages are: {', '.join(stages)}.")
    pairs = dict(zip((word.removeprefix("--") for word in words[1::2]), words[2::2], strict=False))
    try:
        site = load(Site, json.loads(pairs[Site.parameter()])) if Site.parameter() in pairs else None
        arguments = {
            name: pairs[name] if kind is str else load(kind, _resolved(json.loads(pairs[name]), site))
            for name, kind in stage.takes.items()
            if kind is not Ending
        }
        # The ledger needs these to identify the release, even if the stage does not take them.
        for kind in (Site, Request):
            if kind.parameter() in pairs:
                arguments[kind.parameter()] = load(kind, json.loads(pairs[kind.parameter()]))
        return Call(stage=stage, out=Path(pairs["out"]), arguments=arguments, workflow=pairs.get("workflow", ""))
    except KeyError as error:
        raise UsageError(f"{stage.name} needs --{error.args[0]}", do="Pass each record it takes as JSON.") from error
    except ValueError as error:
        raise UsageError(f"{stage.name}: {' '.join(str(error).split())[:1000]}", do="Fix that record.") from error


def _resolved(value: Any, site: Site | None) -> Any:
    """Decoded JSON with stored records in place of their digests. Argo passes lists as lists of JSON texts."""
    if isinstance(value, list):
        return [_resolved(json.loads(item) if isinstance(item, str) else item, site) for item in value]
    if site is not None and isinstance(value, dict) and set(value) == {_STORED}:
        return json.loads(ArtifactStore(site.artifacts_uri).read(Artifact.model_validate(value[_STORED])))
    return value


def run(call: Call) -> int:
    """Runs a stage unless it is a cache hit, writes its record and how it went, and returns the exit code."""
    with _handling_signals(call.stage) as check:
        done = Attempt(
            stage=call.stage,
            arguments=partial(_arguments, call),
            target=call.target,
            cache=call.ledger,
            listener=partial(_on_progress, check),
            deliver=partial(_deliver, call),
        ).run()
    _write_outcome(call, done)
    return done.exit_code


def _arguments(call: Call) -> dict[str, Any]:
    """The step's arguments. The last stage's ending, which says how the other stages went, comes from the Workflow."""
    arguments = {name: call.arguments[name] for name in call.stage.takes if name in call.arguments}
    if call.stage is RELEASE.on_exit:
        arguments[Ending.parameter()] = _ending(call)
    return arguments


def _ending(call: Call) -> Ending:
    body = _api(call).get(WORKFLOW, call.workflow)
    if body is None:
        raise UsageError(f"there is no Workflow {call.workflow!r}", do="Pass --workflow NAME.")
    return ending_of(body, RELEASE)


def _api(call: Call) -> KubernetesClient:
    site: Site = call.arguments[Site.parameter()]
    if not isinstance(site.place, Cluster):
        raise UsageError("only a site on a cluster has Workflows", do="Pass --site with a `place` of kind `cluster`.")
    return KubernetesClient(site.place.namespace)


def _deliver(call: Call, record: Record) -> None:
    _write_record(call, record)
    if call.stage is RELEASE.on_exit:
        _api(call).merge(WORKFLOW, call.workflow, {"metadata": {"labels": {CONCLUDED: "true"}}})


def _write_record(call: Call, record: Record) -> None:
    out, site = call.out, call.arguments.get(Site.parameter())
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
                f"the record {name!r} has {len(text.encode())} bytes; the limit between pods is {MAX_RECORD_BYTES}",
                do="Ask for less in the spec: fewer trials, targets or slices.",
            )
        (out / f"{name}.json").write_text(text)


def _write_outcome(call: Call, done: Done) -> None:
    """Writes how the stage went, for the last stage, and why, for whoever looks at the node."""
    call.out.mkdir(parents=True, exist_ok=True)
    for record in (done.run, done.failure):
        if record is not None:
            (call.out / f"{record.parameter()}.json").write_text(record.model_dump_json())
    if done.run.message:
        _explain(done.run.message)


def _explain(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):  # outside a pod there is no such file
        _MESSAGE.write_bytes(message.encode()[:_MESSAGE_BYTES])


def _on_progress(check: Callable[[], None], message: str, done: float | None) -> None:
    check()
    print(f"{message} ({done:.0%})" if done is not None else message, flush=True)
    file = os.environ.get("ARGO_PROGRESS_FILE")
    if file and done is not None:
        with contextlib.suppress(OSError):
            Path(file).write_text(f"{round(100 * done)}/100")


@contextmanager
def _handling_signals(stage: Stage) -> Iterator[Callable[[], None]]:
    """SIGTERM cancels a stage, which cleans up first; a shielded stage runs to its end, and its record is written."""

    def cancelled(_number: Signals) -> Cancelled:
        return Cancelled("the pod was terminated", do="The stage is retried, unless the release was cancelled.")

    if stage.at.shielded:
        with shielded():
            yield lambda: None
    else:
        with interruptible(cancelled) as check:
            yield check


def _link_mounts(site: Site) -> None:
    """Links the secrets and the catalogue, which are mounted elsewhere, into the pod's home, which starts empty."""
    home = Path(site.home)
    home.mkdir(parents=True, exist_ok=True)
    for mounted in (Path(CONFIG) / "ledger" / "secrets.json", Path(CONFIG) / "targets" / "targets.yaml"):
        if mounted.is_file() and not (home / mounted.name).exists():
            (home / mounted.name).symlink_to(mounted)


def main() -> int:
    """Runs the stage that the command line names."""
    try:
        call = parse(sys.argv[1:])
        _link_mounts(call.arguments[Site.parameter()])
        return run(call)
    except (Interrupted, Exception) as error:  # a wrong command line, an unavailable stored record, a bug
        failure = failure_of(error)
        _explain(failure.message)
        return failure.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
