"""The walk over a pod's stages. Records come from other pods, and go to them, as parameters of the Workflow."""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

from shiplift.pipelines.engines.argo import shield
from shiplift.pipelines.engines.argo.ending import concluding_patch, ending_of
from shiplift.pipelines.engines.argo.pod.call import Call, handover
from shiplift.pipelines.engines.argo.pod.messages import explain, tell
from shiplift.pipelines.engines.argo.pod.parameters import write
from shiplift.pipelines.engines.attempt import Done
from shiplift.pipelines.engines.interruption import interruptible, shielded
from shiplift.pipelines.engines.walk import Walk
from shiplift.pipelines.graph import FanOut, Stage, load
from shiplift.pipelines.pods import hands_over
from shiplift.pipelines.release import HANDED_OVER
from shiplift.runtime.base.errors import Aborted, Cancelled, ShipliftError, Temporary, UsageError
from shiplift.runtime.confinement import workplace
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.promotion import Abort
from shiplift.runtime.records.release import Ending, Event, StageRuns, Taken
from shiplift.runtime.records.verdict import Verdict
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.kinds import WORKFLOW
from shiplift.runtime.spec.target import Target


@dataclass(kw_only=True)
class _Walk(Walk):
    """A walk in a pod; `under_way` and `target` are the stage that is running and its target."""

    call: Call
    under_way: str = ""
    target: str = ""

    def enter(self, stage: Stage, target: str) -> None:
        self.under_way, self.target = stage.name, target
        self._write_runs()

    def tell(self, event: Event) -> None:
        tell(event)

    def arguments(self, stage: Stage, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """The step's arguments. The last stage also gets how the other stages went, read from the Workflow."""
        last = stage is self.call.pipeline.on_exit
        known = {**known, Ending.parameter(): self._ending()} if last else known
        arguments = super().arguments(stage, known)
        if self._says_so(stage):
            self._keep(stage, arguments)
            order = shield.begin(self.call.api, self.call.workflow, self.so_far)
            if order and not stage.at.halt(order, arguments):
                raise Aborted(order.sentence, do="`shiplift rerun` releases the version again.")
        return arguments

    def deliver(self, stage: Stage, record: Record) -> None:
        write(self.call.out, record, self.call.site)
        if hands_over(stage, HANDED_OVER) and self.call.attempt and self.cache:
            self.cache.put(handover(self.call.attempt, stage), stage.name, record)
        if stage is self.call.pipeline.on_exit:
            self.call.api.merge(WORKFLOW, self.call.workflow, concluding_patch(_workflow(self.call), record))

    def left(self, stage: Stage, done: Done) -> None:
        """Writes how the stage went and why it failed: for the last stage, and for people who look at the node."""
        self.under_way, self.target = "", ""
        self._write_runs()
        if self._says_so(stage):
            with contextlib.suppress(ShipliftError):  # the stage has ended, even if that can't be reported
                shield.tell(self.call.api, self.call.workflow, self.so_far)
        if done.failure is not None:
            (self.call.out / f"{Failure.parameter()}.json").write_text(done.failure.model_dump_json())
        if done.run.message:
            explain(f"{done.run.name}: {done.run.message}")

    def items(self, fan_out: FanOut) -> Iterator[tuple[str, dict[str, Any]]]:
        """The only item, if the broker says that it may run in this pod. Otherwise the Workflow has pods for them."""
        broker = self.call.broker
        if broker is None or fan_out.only_item(self.known[fan_out.source]) is None:
            return
        self.check()
        records = broker.go_on()
        if records is not None:
            kinds = {fan_out.item.parameter(): fan_out.item, **self.call.pod.met}
            taken = {name: load(kind, records[name]) for name, kind in kinds.items()}
            yield _name(taken[fan_out.item.parameter()]), taken

    # --- what a pod leaves while it runs ---

    @property
    def so_far(self) -> StageRuns:
        """How the stages have gone so far, and the one that is running."""
        return StageRuns(runs=tuple(self.runs), under_way=self.under_way, target=self.target)

    def _write_runs(self) -> None:
        """Writes how far the pod has come, so that the last stage knows even if the pod is lost."""
        self.call.out.mkdir(parents=True, exist_ok=True)
        (self.call.out / f"{StageRuns.parameter()}.json").write_text(self.so_far.model_dump_json())

    def _says_so(self, stage: Stage) -> bool:
        """Whether a stage reports on its Workflow that it begins, and how it went."""
        return stage.at.shielded and bool(self.call.workflow)

    def _keep(self, stage: Stage, arguments: Mapping[str, Any]) -> None:
        """Stores a shielded stage's arguments in the ledger, for the exit handler."""
        if self.cache:
            taken = Taken(texts={name: record.model_dump_json() for name, record in arguments.items()})
            self.cache.put(shield.key(self.call.workflow, stage), stage.name, taken)

    # --- the last stage ---

    def _ending(self) -> Ending:
        taken = self._finish_shielded()
        ending = ending_of(_workflow(self.call), self.call.pipeline)
        return ending.model_copy(update={"verdict": ending.verdict or taken.get(Verdict.parameter())})

    def _finish_shielded(self) -> dict[str, Any]:
        """Halts a shielded stage that was killed when its Workflow was stopped, and runs it again if it has to end.

        Returns the stage's arguments.

        Raises:
            Temporary: a service that the stage needs does not answer.
        """
        half_way = shield.unfinished(_workflow(self.call), self.call.pipeline)
        arguments = self._taken_by(half_way.stage) if half_way else None
        if half_way is None or arguments is None:
            return {}
        order = shield.abort(self.call.api, self.call.workflow, Abort(by="someone", reason="its Workflow was stopped"))
        if not half_way.stage.at.halt(order, arguments):
            return arguments
        tell(Event(stage=half_way.stage.name, kind="started"))
        with shielded():
            done = self.attempt(half_way.stage, lambda: arguments).make()
        tell(Event.finished(done.run))
        if done.failure and done.exit_code == Temporary.exit_code:
            raise Temporary(done.failure.what, do=done.failure.do)
        shield.tell(self.call.api, self.call.workflow, StageRuns(runs=(*half_way.before, done.run)))
        return arguments

    def _taken_by(self, stage: Stage) -> dict[str, Any] | None:
        """A shielded stage's arguments; None if it did not begin, or another version of Shiplift wrote them."""
        key = shield.key(self.call.workflow, stage)
        taken = self.cache.get(key, stage.name, Taken) if self.cache else None
        with contextlib.suppress(KeyError, ValueError):
            return {name: load(kind, taken.texts[name]) for name, kind in stage.takes.items()} if taken else None
        return None


def run(call: Call) -> int:
    """Walks the stages; returns the exit code of the last.

    SIGTERM cancels a stage, which cleans up first; a shielded stage runs to its end, and its record is written.
    """
    with interruptible(_cancelled) as check, _cooled():
        if call.workflow and shield.among(call.stages):
            shield.forget(call.api, call.workflow)
        walk = _Walk(
            call=call,
            known=dict(call.arguments),
            ahead=call.pod.all_stages,
            cache=call.cache,
            check=check,
            scratch=Path(call.site.home) if call.site else None,
        )
        walk.over([*call.stages, *([call.then] if call.then else [])], _name(call.arguments.get(Target.parameter())))
    return walk.last.exit_code if walk.last else 0


def _name(item: Any) -> str:
    """The name of the item that stages run for; empty if they don't run once per item."""
    return str(getattr(item, "name", ""))


@contextmanager
def _cooled() -> Iterator[None]:
    """Closes sandboxes that were started ahead of time but not used."""
    try:
        yield
    finally:
        workplace.cool()


def _cancelled(_number: Signals) -> Cancelled:
    return Cancelled("the pod was terminated", do="The stage is retried, unless the release was cancelled.")


def _workflow(call: Call) -> Object:
    body = call.api.get(WORKFLOW, call.workflow)
    if body is None:
        raise UsageError(f"there is no Workflow {call.workflow!r}", do="Pass --workflow NAME.")
    return body
