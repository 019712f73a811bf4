"""Runs the stages of a pod, one after another, or a stage by hand.

    python -m shiplift.pipelines.engines.argo.pod deploy+gate --out DIR --slo '{...}' --load_report '{...}' ...

The rules are those of engine 1: a finished stage is looked up in the ledger by its cache key and not run again, so a
pod that was lost goes on where it was. A stage's record is passed to the later stages, and written where the engine
looks. The records of all targets reach a single pod in a single argument, so such a record goes into the artifact
store, and its digest into the argument. `admit+export+each-target` goes on with a fan-out if its broker says that the
only item may run here. The first stage that fails or objects ends the pod. Its exit code says how, the
pod's termination message which stage and why, and `stage_runs.json` and `failure.json` say both to the last stage.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any, TextIO

from shiplift.pipelines.engines.argo import shield
from shiplift.pipelines.engines.argo.ending import concluding_patch, ending_of
from shiplift.pipelines.engines.argo.following.lines import finished, progressed, started
from shiplift.pipelines.engines.argo.layout import CONFIG
from shiplift.pipelines.engines.argo.workflows import as_parameter
from shiplift.pipelines.engines.attempt import Attempt, Done, ResultCache, failure_of
from shiplift.pipelines.engines.interruption import Interrupted, interruptible, shielded
from shiplift.pipelines.graph import Each, Stage, load
from shiplift.pipelines.pods import Pod, hands_over
from shiplift.pipelines.release import HANDED_OVER, RELEASE, SINGLE
from shiplift.runtime.base.errors import Cancelled, RecordTooLarge, ShipliftError, Temporary, UsageError
from shiplift.runtime.base.text import printable
from shiplift.runtime.confinement import workplace
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record, Sections
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.release import Ending, StageRun, StageRuns, Taken
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.records.verdict import Verdict
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.kinds import WORKFLOW
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.broker import Broker, brokered, is_brokered
from shiplift.runtime.store.ledger import Ledger

MAX_RECORD_BYTES = 96 * 1024  # the kernel allows 128 KiB per argument, and Argo's escaping needs room
_GATHERED = tuple(stage.gives for stage in RELEASE if isinstance(stage, Each))
_STORED = "$stored"  # in place of a stored record: `{"$stored": ARTIFACT}`
_MESSAGE = Path("/dev/termination-log")
_MESSAGE_BYTES = 4000


@dataclass(frozen=True, kw_only=True)
class Call:
    """Stages and the arguments that come from outside their pod, from a command line.

    `workflow` is the name of the Workflow that the last stage concludes, and on which a shielded stage says how it
    goes. `attempt` identifies the one that this pod is part of, for records that are handed over between pods.
    """

    stages: tuple[Stage, ...]
    out: Path
    arguments: dict[str, Any]
    workflow: str = ""
    attempt: str = ""
    broker: Broker | None = None
    then: Each | None = None

    @property
    def pod(self) -> Pod:
        """Its stages and the fan-out that it may go on with, as a pod."""
        return Pod("", self.stages, self.then)

    @property
    def cache(self) -> ResultCache | None:
        """The ledger of its release, or the pod's broker to it; None if it is not a stage of a release."""
        if self.broker is not None:
            return self.broker
        site, request = self.arguments.get(Site.parameter()), self.arguments.get(Request.parameter())
        return Ledger(site, request) if site and request else None


def parse(words: Sequence[str]) -> Call:
    """Reads a command line.

    Raises:
        UsageError: there is no such stage, or a record is missing or invalid.
        ArtifactCorrupt: a stored record is gone or altered.
    """
    word = words[0] if words else ""
    pod = _pod(word)
    pairs = dict(zip((word.removeprefix("--") for word in words[1::2]), words[2::2], strict=False))
    try:
        site = _site(pairs)
        arguments = {
            name: pairs[name] if kind is str else load(kind, _resolved(json.loads(pairs[name]), site))
            for name, kind in pod.takes.items()
            if kind is not Ending
        }
        # The ledger needs these to identify the release, even if no stage takes them.
        if Request.parameter() in pairs:
            arguments[Request.parameter()] = load(Request, json.loads(pairs[Request.parameter()]))
        arguments |= {Site.parameter(): site} if site else {}
        return Call(
            stages=pod.stages, then=pod.then, out=Path(pairs["out"]), arguments=arguments,
            workflow=pairs.get("workflow", ""), attempt=pairs.get("attempt", ""),
            broker=Broker(site.registry_uri) if site and is_brokered(site.registry_uri) else None,
        )  # fmt: skip
    except KeyError as error:
        raise UsageError(f"{word} needs --{error.args[0]}", do="Pass each record it takes as JSON.") from error
    except ValueError as error:
        raise UsageError(f"{word}: {' '.join(str(error).split())[:1000]}", do="Fix that record.") from error


def _pod(word: str) -> Pod:
    known = {stage.name: stage for stage in (*RELEASE.flat(), *SINGLE, RELEASE.on_exit) if stage is not None}
    names = word.split("+")
    then = next((each for each in RELEASE if isinstance(each, Each) and each.name == names[-1] and names[1:]), None)
    names = names[:-1] if then else names
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"there is no stage {unknown[0]!r}", do=f"Stages are: {', '.join(known)}.")
    return Pod(word, tuple(known[name] for name in names), then)


def _site(pairs: Mapping[str, str]) -> Site | None:
    """The site; with `--broker`, as it is for a pod whose credentials are in another container."""
    if Site.parameter() not in pairs:
        return None
    site = Site.model_validate(json.loads(pairs[Site.parameter()]))
    return brokered(site) if "broker" in pairs else site


def _resolved(value: Any, site: Site | None) -> Any:
    """Decoded JSON with stored records in place of their digests. Argo passes lists as lists of JSON texts."""
    if isinstance(value, list):
        return [_resolved(json.loads(item) if isinstance(item, str) else item, site) for item in value]
    if site is not None and isinstance(value, dict) and set(value) == {_STORED}:
        return json.loads(ArtifactStore(site.artifacts_uri).read(Artifact.model_validate(value[_STORED])))
    return value


@dataclass
class _Walk:
    """A walk through a pod's stages: the records so far, and how each stage went."""

    call: Call
    known: dict[str, Any]
    check: Callable[[], None]
    runs: list[StageRun] = field(default_factory=list)

    @property
    def target(self) -> str:
        """The name of the item that the stages run for; empty for stages that don't run once per item."""
        return str(getattr(self.known.get(Target.parameter()), "name", ""))

    def so_far(self, under_way: str = "") -> StageRuns:
        """How the stages went so far, and the one under way."""
        return StageRuns(runs=tuple(self.runs), under_way=under_way, target=self.target if under_way else "")

    def note(self, under_way: str = "") -> None:
        """Writes how the stages went so far: if the pod is lost, the last stage knows how far it came."""
        self.call.out.mkdir(parents=True, exist_ok=True)
        (self.call.out / f"{StageRuns.parameter()}.json").write_text(self.so_far(under_way).model_dump_json())


def run(call: Call) -> int:
    """Runs the stages until one fails or objects; returns the exit code of the last. A cache hit is not run again.

    SIGTERM cancels a stage, which cleans up first; a shielded stage runs to its end, and its record is written.
    """
    with interruptible(_cancelled) as check, _cooled():
        walk = _Walk(call=call, known=dict(call.arguments), check=check)
        if call.workflow and shield.among(call.stages):
            shield.forget(_api(call), call.workflow)
        return _run_stages(walk, call.stages) or _go_on(walk)


def _run_stages(walk: _Walk, stages: Sequence[Stage]) -> int:
    code = 0
    for stage in stages:
        with shielded() if stage.at.shielded else nullcontext():
            code = _run_stage(walk, stage)
        if code:
            break
    return code


def _go_on(walk: _Walk) -> int:
    """Runs the stages of the fan-out, if the broker says that its only item may run in this pod."""
    each, broker = walk.call.then, walk.call.broker
    if each is None or broker is None or each.only_item(walk.known[each.source]) is None:
        return 0
    walk.check()
    records = broker.go_on()
    if records is None:  # what it would need is not there yet: pods of their own wait for it
        return 0
    kinds = {each.item.parameter(): each.item, **walk.call.pod.met}
    walk.known |= {name: load(kind, records[name]) for name, kind in kinds.items()}
    return _run_stages(walk, each.stages)


@contextmanager
def _cooled() -> Iterator[None]:
    """Closes sandboxes that were started ahead of time and not used."""
    try:
        yield
    finally:
        workplace.cool()


def _cancelled(_number: Signals) -> Cancelled:
    return Cancelled("the pod was terminated", do="The stage is retried, unless the release was cancelled.")


def _run_stage(walk: _Walk, stage: Stage) -> int:
    walk.note(under_way=stage.name)
    _print(started(stage.name, walk.target))
    attempt = Attempt(
        stage=stage,
        arguments=partial(_arguments, walk, stage),
        target=walk.target,
        cache=walk.call.cache,
        listener=partial(_on_progress, walk.check, stage),
        deliver=partial(_deliver, walk.call, stage),
    )
    done = attempt.recall() if stage.at.keep == "result" else None
    if done is None:
        _warm_next(walk, stage)
        done = attempt.make()
    walk.runs.append(done.run)
    if done.record is not None:
        walk.known |= parts_of(done.record)
    walk.note()
    if _says_so(walk.call, stage):
        with contextlib.suppress(ShipliftError):  # it has happened all the same
            shield.tell(_api(walk.call), walk.call.workflow, walk.so_far())
    _tell(walk.call, done)
    return done.exit_code


def _says_so(call: Call, stage: Stage) -> bool:
    """Whether a stage says on its Workflow that it begins and how it went."""
    return stage.at.shielded and bool(call.workflow)


def _warm_next(walk: _Walk, stage: Stage) -> None:
    """Starts the pod's next sandbox while `stage` runs: after a miss, later stages will most likely run too."""
    stages = walk.call.pod.all_stages
    entry = next((later.at.warm for later in stages[stages.index(stage) + 1 :] if later.at.warm), None)
    site = walk.known.get(Site.parameter())
    if entry and stage.at.keep == "result" and isinstance(site, Site):
        workplace.warm(entry, Path(site.home), site.sandbox)


def _arguments(walk: _Walk, stage: Stage) -> dict[str, Any]:
    """The step's arguments. The last stage's ending, which says how the other stages went, comes from the Workflow."""
    arguments = {name: walk.known[name] for name in stage.takes if name in walk.known}
    if stage is RELEASE.on_exit:
        taken = _finish_shielded(walk)
        ending = ending_of(_workflow(walk.call), RELEASE)
        arguments[Ending.parameter()] = ending.model_copy(
            update={"verdict": ending.verdict or taken.get(Verdict.parameter())}
        )
    if _says_so(walk.call, stage):
        _keep(walk.call, stage, arguments)
        shield.begin(_api(walk.call), walk.call.workflow, walk.so_far(stage.name))
    return arguments


def _keep(call: Call, stage: Stage, arguments: Mapping[str, Any]) -> None:
    """Writes what a shielded stage takes into the ledger, for the exit handler."""
    if call.cache:
        taken = Taken(texts={name: record.model_dump_json() for name, record in arguments.items()})
        call.cache.put(shield.key(call.workflow, stage), stage.name, taken)


def _finish_shielded(walk: _Walk) -> dict[str, Any]:
    """Runs a shielded stage that was killed when its Workflow was stopped, to its end; returns what it took.

    Raises:
        Temporary: what it needs does not answer.
    """
    call, half_way = walk.call, shield.unfinished(_workflow(walk.call), RELEASE)
    if half_way is None or call.cache is None:
        return {}
    stage = half_way.stage
    taken = call.cache.get(shield.key(call.workflow, stage), stage.name, Taken)
    if taken is None:
        return {}
    arguments = {name: load(kind, taken.texts[name]) for name, kind in stage.takes.items()}
    _print(started(stage.name))
    done = Attempt(
        stage=stage,
        arguments=lambda: arguments,
        listener=partial(_on_progress, walk.check, stage),
    ).make()
    _print(finished(done.run), file=sys.stderr if done.exit_code else sys.stdout)
    if done.failure and done.exit_code == Temporary.exit_code:
        raise Temporary(done.failure.what, do=done.failure.do)
    shield.tell(_api(call), call.workflow, StageRuns(runs=(*half_way.before, done.run)))
    return arguments


def _workflow(call: Call) -> Object:
    body = _api(call).get(WORKFLOW, call.workflow)
    if body is None:
        raise UsageError(f"there is no Workflow {call.workflow!r}", do="Pass --workflow NAME.")
    return body


def _api(call: Call) -> KubernetesClient:
    site: Site = call.arguments[Site.parameter()]
    if not isinstance(site.place, Cluster):
        raise UsageError("only a site on a cluster has Workflows", do="Pass --site with a `place` of kind `cluster`.")
    return KubernetesClient(site.place.namespace)


def _deliver(call: Call, stage: Stage, record: Record) -> None:
    _write_record(call, record)
    if hands_over(stage, HANDED_OVER) and call.attempt and call.cache:
        call.cache.put(handover(call.attempt, stage), stage.name, record)
    if stage is RELEASE.on_exit:
        _api(call).merge(WORKFLOW, call.workflow, concluding_patch(_workflow(call), record))


def handover(attempt: str, stage: Stage) -> str:
    """The key, in the ledger, of a record that a pod hands over to another one of the same Workflow."""
    return hashlib.sha256(f"{stage.name} of {attempt}".encode()).hexdigest()


def parts_of(record: Record) -> dict[str, Record]:
    """A record and its sections, by parameter name."""
    sections = record.parts() if isinstance(record, Sections) else ()
    return {record.parameter(): record} | {name: getattr(record, name) for name in sections}


def _write_record(call: Call, record: Record) -> None:
    out, site = call.out, call.arguments.get(Site.parameter())
    out.mkdir(parents=True, exist_ok=True)
    for name, part in parts_of(record).items():
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


def _tell(call: Call, done: Done) -> None:
    """Prints how a stage went, and writes why it failed: for the last stage, and for whoever looks at the node."""
    _print(finished(done.run), file=sys.stderr if done.exit_code else sys.stdout)
    if done.failure is not None:
        (call.out / f"{Failure.parameter()}.json").write_text(done.failure.model_dump_json())
    if done.run.message:
        _explain(f"{done.run.name}: {done.run.message}")


def _explain(message: str) -> None:
    with contextlib.suppress(OSError):  # outside a pod there is no such file
        _MESSAGE.write_bytes(printable(message, lines=True).encode()[:_MESSAGE_BYTES])


def _print(line: str, file: TextIO | None = None) -> None:
    print(printable(line), file=file, flush=True)


def _on_progress(check: Callable[[], None], stage: Stage, message: str, done: float | None) -> None:
    check()
    _print(progressed(stage.name, message, done))
    file = os.environ.get("ARGO_PROGRESS_FILE")
    if file and done is not None:
        with contextlib.suppress(OSError):
            Path(file).write_text(f"{round(100 * done)}/100")


def link_mounts(site: Site) -> None:
    """Links the secrets and the catalogue, which are mounted elsewhere, into the pod's home, which starts empty."""
    home = Path(site.home)
    home.mkdir(parents=True, exist_ok=True)
    for mounted in (Path(CONFIG) / "ledger" / "secrets.json", Path(CONFIG) / "targets" / "targets.yaml"):
        if mounted.is_file() and not (home / mounted.name).exists():
            (home / mounted.name).symlink_to(mounted)


@contextmanager
def _broker_of(call: Call) -> Iterator[None]:
    """Waits for the pod's broker, if it has one, and ends it after the stages."""
    if call.broker is None:
        yield
        return
    try:
        call.broker.wait()
        yield
    finally:
        call.broker.end()


def main() -> int:
    """Runs the stages that the command line names."""
    try:
        call = parse(sys.argv[1:])
        link_mounts(call.arguments[Site.parameter()])
        with _broker_of(call):
            return run(call)
    except (Interrupted, Exception) as error:  # a wrong command line, an unavailable stored record, a bug
        failure = failure_of(error)
        _print(failure.message, file=sys.stderr)
        _explain(failure.message)
        return failure.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
