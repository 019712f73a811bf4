"""The engine for this machine: the stack of a home folder, and its releases."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shiplift.pipelines.engines.answers import (
    AbortedRelease,
    Accepted,
    Catalogue,
    CatalogueEntry,
    Prediction,
    Status,
    require_approver,
)
from shiplift.pipelines.engines.local import aborting, captured, drifting, logs, past, stack, status
from shiplift.pipelines.engines.local.models import every_model, invocations_of
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.runtime.base.errors import NotFound, NothingToAbort, ShipliftError, StackDown
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.composition.checked import Unusable
from shiplift.runtime.events.emit import emit
from shiplift.runtime.events.event import ModelEvent, model_event
from shiplift.runtime.events.kinds import EventKind
from shiplift.runtime.events.outbox import Outbox, Place
from shiplift.runtime.gates.report import Story
from shiplift.runtime.gates.story import story_of
from shiplift.runtime.records.asked import AskedAgain
from shiplift.runtime.records.baking import Baking
from shiplift.runtime.records.capturing import Captured, DeletedRows, ExportedRows
from shiplift.runtime.records.decision import Decision
from shiplift.runtime.records.drift import DriftReport
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.offline import OfflineOrder, OfflineResult
from shiplift.runtime.records.promotion import Abort, Promotion
from shiplift.runtime.records.release import Event, ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.retirement import Retired, Retirement, Retiring
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.abort import this_user
from shiplift.runtime.serving.bundles.decoders import members_of
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.machine import baking
from shiplift.runtime.serving.machine.served import served, served_version
from shiplift.runtime.spec.document import parse
from shiplift.runtime.spec.pipeline import PipelineSpec
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.history import History, server_config_or_reason
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.members import Promoted
from shiplift.runtime.store.registry.rest import PATIENT_S, RestRegistry, newest_tagged
from shiplift.runtime.store.registry.terms import CHAMPION, VersionInfo, check_name, model_and_version, request_of
from shiplift.runtime.targets import catalogue, discovery, machine

_POLL_S = 0.05
_FOLLOW_S = 0.5


@dataclass(frozen=True)
class LocalEngine:
    """The stack of a home, running or not. Methods that need it to run raise `StackDown`."""

    home: Path
    attended: bool = field(default=True, init=False)
    verified: bool = field(default=True, init=False)

    @property
    def releases(self) -> Releases:
        """The releases of the home."""
        return Releases(self.home)

    @property
    def site(self) -> Site:
        """The site of the home, even if its stack is not running.

        Raises:
            StackDown: the home never had a stack.
        """
        saved = stack.read(self.home)
        if saved is None:
            raise StackDown(f"no stack was started in {self.home}", do="Run `shiplift up`.")
        return stack.site(self.home, saved)

    # --- releasing ---

    def order(self, name: str, spec: str, *, again: bool, allow_older: bool) -> Accepted:
        """Orders a release of a version, or of a model's newest version.

        Raises:
            NotFound: the registry has no such version.
            SpecInvalid: `spec` is not a valid spec.
        """
        parse(spec)
        running = stack.require(self.home)
        model, version = model_and_version(name)
        registry = RestRegistry(running.registry_uri)
        info = registry.newest_of(model) if version is None else registry.version(model, version)
        if info is None:
            raise NotFound(f"the registry has no version {version} of {model!r}", do="See `shiplift status`.")
        trigger = Trigger(kind="manual", requested_at=time.time(), allow_older=allow_older)
        return self.releases.accept(request_of(info, spec), trigger, again=again)

    def accept(self, request: Request, trigger: Trigger) -> Accepted:
        """Releases a version with a spec that a push changed, even if the same release ran before.

        Raises:
            StackDown: the stack is not running.
        """
        stack.require(self.home)
        return self.releases.accept(request, trigger, again=True)

    def newest(self, model: str) -> VersionInfo:
        """A model's newest version in the registry.

        Raises:
            NotFound: the model has no version.
            StackDown: the stack is not running.
        """
        return RestRegistry(stack.require(self.home).registry_uri).newest_of(model)

    def register(self, name: str, files: Mapping[str, bytes], tags: Mapping[str, str]) -> int:
        """Registers the next version of a model from files."""
        site = stack.site(self.home, stack.require(self.home))
        rest = RestRegistry(site.registry_uri, timeout_s=PATIENT_S)
        return rest.register(check_name(name), files, tags).version

    def tagged(self, model: str, key: str, value: str) -> int:
        """The newest version of a model whose tag `key` has this value; 0 if there is none."""
        site = stack.site(self.home, stack.require(self.home))
        return newest_tagged(RestRegistry(site.registry_uri, timeout_s=PATIENT_S), check_name(model), key, value)

    def tag(self, model: str, version: int, key: str, value: str) -> None:
        """Sets a tag of a version in the registry."""
        RestRegistry(stack.require(self.home).registry_uri).tag(check_name(model), version, **{key: value})

    def under_way(self, name: str) -> bool:
        """Whether a release is queued or running."""
        return self.releases.active(name)

    def events(self, name: str) -> Iterator[Event | None]:
        """Yields the events of a release until it ends.

        Raises:
            StackDown: the dispatcher is gone, so the release would never end.
        """
        offset = 0
        while True:
            ended = not self.releases.active(name)
            events, offset = self.releases.events(name, offset)
            yield from events
            if ended:
                return
            if not events and not self._dispatching():
                raise StackDown("the dispatcher is not running, so the release waits", do="Run `shiplift up`.")
            yield None
            time.sleep(_POLL_S)

    def result(self, name: str) -> ReleaseReport:
        """The report of an ended release.

        Raises:
            StackDown: the release left no result.
        """
        report = self.releases.result(name)
        if report is None:
            raise StackDown(f"release {name} has no result", do="See `shiplift logs`.")
        return report

    def cancel(self, model: str, version: int) -> str:
        """Cancels a version's release, and waits for it to clean up; returns its name, or "" if there was none."""
        name = next(filter(self.under_way, self.releases.of(model, version)), "")
        if name:
            self.stop(name)
        return name

    def stop(self, name: str) -> None:
        """Interrupts a release's process and waits until it has cleaned up; takes a queued release off the queue.

        Raises:
            Temporary: the release did not end in time.
        """
        if self.releases.worker(name):
            self.releases.notes(name).cancel()  # the dispatcher kills the process if it ignores the signal
        aborting.end(self.home, name, Abort(by=this_user(), reason="cancelled", at=time.time()))

    def abort(self, model: str, reason: str) -> AbortedRelease:
        """Ends the release of a model that has begun; all traffic goes back to the champion.

        While no release is under way and a version bakes, that is rolled back.
        """
        stack.require(self.home)
        order = Abort(by=this_user(), reason=reason, at=time.time())
        known = baking.under_way(self.home, check_name(model))
        try:
            return aborting.abort(self.home, model, order)
        except NothingToAbort:
            if known is None:
                raise
        promotion = self._rolled_back(model, known, order.sentence)
        return AbortedRelease(
            model=model,
            version=known.version,
            release=next(iter(self.releases.of(model, known.version)), ""),
            champion=promotion.version,
            message=order.sentence,
        )

    def decide(self, model: str, version: int, *, approve: bool, reason: str) -> Accepted:
        """Approves or rejects a version that waits for approval: its release goes on, from its kept results."""
        site = stack.site(self.home, stack.require(self.home))
        decision = Decision(approved=approve, by=this_user(), reason=reason, at=time.time())
        require_approver(site, decision)
        return self.releases.decide(check_name(model), version, decision)

    def rollback(self, model: str) -> Promotion:
        """Makes the previous champion serve again; the bake of the version that serves now ends."""
        known = baking.under_way(self.home, model)
        return self._rolled_back(model, known, f"rolled back by {this_user()} while it baked" if known else "")

    def _rolled_back(self, model: str, known: Baking | None, why: str) -> Promotion:
        from shiplift.runtime.serving.rolling_back import roll_back  # noqa: PLC0415 - Triton's client: 0.2 s

        promotion = roll_back(stack.site(self.home, stack.require(self.home)), model, known, why)
        if known:
            ended = {"state": "ended", "reason": why}
            baking.change(self.home, known, lambda now: now.model_copy(update=ended) if now.active else now)
        text = f"instead of version {promotion.previous}" if promotion.previous else ""
        emit(self.home, model_event(EventKind.ROLLED_BACK, model, promotion.version, at=time.time(), text=text))
        return promotion

    def retire(self, model: str, version: int, *, reason: str, force: bool) -> Retired:
        """Takes a model out of service, or removes what a version has left."""
        from shiplift.pipelines.engines.local.retiring import retired  # noqa: PLC0415 - Triton's client: 0.2 s

        site = stack.site(self.home, stack.require(self.home))
        retirement = Retirement(by=this_user(), reason=reason, at=time.time())
        answer = retired(site, check_name(model), Retiring(retirement=retirement, version=version, force=force))
        first = answer.retirement
        told = model_event(EventKind.RETIRED, model, version, at=first.at, text=first.sentence, key=str(first.at))
        emit(self.home, told)
        return answer

    def _dispatching(self) -> bool:
        saved = stack.read(self.home)
        return saved is not None and saved.runs("dispatcher")

    # --- events ---

    def model_events(self, model: str, *, newest: int, follow: bool) -> Iterator[ModelEvent]:
        """What happened to models, from the outbox."""
        outbox = Outbox(self.home)
        last = max((number for number, _ in outbox.events(newest=1)), default=0)
        found = [(number, event) for number, event in outbox.events(model=model, newest=newest) if number <= last]
        yield from (event for _, event in found)
        while follow:
            time.sleep(_FOLLOW_S)
            new = outbox.events(after=last, model=model)
            yield from (event for _, event in new)
            last = max((number for number, _ in new), default=last)

    def told(self) -> tuple[Place, ...]:
        """How far the targets of events are."""
        return tuple(Outbox(self.home).places())

    # --- past releases ---

    def report(self, model: str, version: int) -> ReleaseReport:
        """The report of a version's newest release, from this home, else from the registry."""
        return past.report_of(self.home, model, version)

    def reports(self, model: str = "") -> list[ReleaseReport]:
        """The newest report of each released version."""
        return past.reports_of(self.home, model)

    def history(self, report: ReleaseReport) -> History:
        """The records that a release's stages produced."""
        from shiplift.pipelines.release import RELEASE  # noqa: PLC0415 - every step, and what each loads

        ledger = Ledger(self.site, Request(model=report.model, version=report.version))
        return History(ledger, report.stages, RELEASE.givers)

    def story(self, report: ReleaseReport) -> Story:
        """The records of a release, prepared for its report page."""
        from shiplift.runtime.families import table  # noqa: PLC0415 - every family, and what each loads

        history = self.history(report)
        return story_of(history, table.export_summary, config=server_config_or_reason(self.store(), history.package))

    def champions(self) -> dict[str, int] | None:
        """The champion of each model, which is what production serves (0: none); None without the registry's answer."""
        try:
            registry = RestRegistry(self.site.registry_uri, timeout_s=PATIENT_S)
            models = registry.models()
            return {model: served_version(self.home, model) or aliases.get(CHAMPION, 0) for model, _, aliases in models}
        except ShipliftError:
            return None

    def ask(self, model: str, version: int, form: str, rows: Sequence[int], clients: int) -> AskedAgain:
        """Asks rows of a version's newest release again, on a private server."""
        from shiplift.pipelines.engines.asking import ask_again  # noqa: PLC0415 - Triton's client: 0.2 s

        history = self.history(self.report(model, version))
        return ask_again(
            stack.site(self.home, stack.require(self.home)), history, f"{model}/{version}", form, rows, clients
        )

    def ask_given(self, model: str, version: int, form: str, inputs: Mapping[str, Any], clients: int) -> AskedAgain:
        """Asks the original of a version a row, as its newest release admitted it, and a form of it."""
        from shiplift.pipelines.engines.asking import ask_given_again  # noqa: PLC0415 - Triton's client: 0.2 s

        history = self.history(self.report(model, version))
        site = stack.site(self.home, stack.require(self.home))
        return ask_given_again(site, history, f"{model}/{version}", form, inputs, clients)

    def members(self, pipeline: PipelineSpec) -> dict[str, Package | Unusable]:
        """A pipeline's members as they were promoted; their records are genuine, and their files are stored."""
        site = stack.site(self.home, stack.require(self.home))
        promoted = Promoted(
            registry=RestRegistry(site.registry_uri, timeout_s=PATIENT_S),
            champion=lambda model: served_version(self.home, model),
            promotion=lambda info: Ledger(site, Request(model=info.name, version=info.version)).promotion(),
            store=self.store(),
        )
        return members_of(pipeline, promoted.find, self.store())

    def store(self) -> ArtifactStore:
        """Where the packages of past releases are stored."""
        return ArtifactStore(self.site.artifacts_uri)

    # --- serving ---

    def infer(self, model: str, file: Path, *, version: int | None = None, sequence: bool = False) -> Prediction:
        """Sends the content of a file to production as one request."""
        from shiplift.pipelines.engines.inference import ask  # noqa: PLC0415 - 0.2 s
        from shiplift.runtime.serving.triton.client import TritonClient  # noqa: PLC0415
        from shiplift.runtime.serving.triton.repository_key import key_of  # noqa: PLC0415

        running = stack.require(self.home)
        key = key_of(self.home / "production" / "models")
        with TritonClient(f"{stack.HOST}:{running.grpc_port}", repository_key=key) as client:
            if not client.ready(serving_name(check_name(model))):
                raise NotFound(f"production does not serve {model!r}", do="See `shiplift status`.")
            return ask(client, model, file, version=version, sequence=sequence)

    def score(self, order: OfflineOrder) -> Iterator[Event | OfflineResult | None]:
        """Scores a dataset on this machine, beside production."""
        from shiplift.pipelines.engines.local.scoring import score  # noqa: PLC0415 - Arrow: 0.3 s

        yield from score(stack.site(self.home, stack.require(self.home)), order)

    def discover(self, model: str) -> ServedModel:
        """Where a model answers on this machine, and what it takes."""
        from shiplift.runtime.serving.triton.client import TritonClient  # noqa: PLC0415 - 0.2 s

        running = stack.require(self.home)
        where, name = status.endpoints(running), serving_name(check_name(model))
        with TritonClient(where.grpc) as client:
            if not client.ready(name):
                raise NotFound(f"production does not serve {model!r}", do="See `shiplift status`.")
            signature = client.signature(name)
        known = served(self.home, model)
        return ServedModel(
            model=model,
            name=name,
            version=known.package.version if known else 0,
            grpc=where.grpc,
            http=where.http,
            signature=signature,
            scoring=known.package.scoring if known else None,
            invocations=invocations_of(running, model),
        )

    def discover_all(self) -> list[ServedModel]:
        """Where each model in production answers, and what it takes, according to the packages that were promoted."""
        return every_model(self.home, stack.require(self.home))

    def captured(self, model: str) -> Captured:
        """What is kept of a model's requests and answers."""
        return captured.summary(self.home, check_name(model))

    def export_captured(self, model: str, file: Path) -> ExportedRows:
        """Writes the captured rows of a model to a Parquet file."""
        return captured.write(self.home, check_name(model), file)

    def delete_captured(self, model: str, value: str) -> DeletedRows:
        """Deletes the captured rows whose `capture.key` has this value."""
        return captured.delete(self.home, check_name(model), value)

    def data_drift(self, model: str, *, now: bool) -> DriftReport:
        """How a model's captured requests and answers differ from its validation data: the last report or a new one."""
        return drifting.report_of(self.home, check_name(model), now=now)

    def logs(self, name: str, *, lines: int, follow: bool) -> Iterator[str]:
        """The log of a component of the stack, or of a release."""
        return logs.log_lines(self.home, name, lines=lines, follow=follow)

    def status(self, model: str | None) -> Status:
        """The status of the stack, or of a model's versions."""
        return status.of_model(self.home, model) if model else status.of_stack(self.home)

    def targets(self) -> Catalogue:
        """The catalogue of this home."""
        return _listed(self.home / catalogue.FILE, *catalogue.catalogue(self.home).values())

    def detect(self, name: str) -> Catalogue:
        """Adds the targets detected on this machine to the catalogue, and returns them."""
        targets = discovery.named(discovery.detect(machine.this_machine()), name)
        return _listed(catalogue.save(self.home, *targets), *targets)


def _listed(file: Path, *targets: Target) -> Catalogue:
    return Catalogue(
        file=str(file), entries=tuple(CatalogueEntry(target=t, unfit=machine.unfit_here(t)) for t in targets)
    )
