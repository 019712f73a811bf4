"""Ends releases on a cluster, on a person's order.

The order is first written on the Workflow, where its pods and its exit handler find it. While a promotion moves
traffic, the `TritonService` is set back as well: the operator follows within seconds, whatever the release's pod does.
A Workflow that moves no traffic is stopped.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from shiplift.pipelines.engines.answers import AbortedRelease, aborted_release, already_aborted
from shiplift.pipelines.engines.argo import shield
from shiplift.pipelines.engines.argo.following.events import workflow
from shiplift.pipelines.engines.argo.releases import ArgoReleases
from shiplift.pipelines.engines.argo.workflows import Run
from shiplift.runtime.base.errors import Temporary
from shiplift.runtime.records.promotion import Abort, Moving, Promotion
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Conflict
from shiplift.runtime.serving.operator import declared

_POLL_S = 0.5
_ABORT_S = 300


class Aborting:
    """Ends releases whose Workflows `releases` has, and whose models `serving`'s namespace serves."""

    def __init__(self, releases: ArgoReleases, api: KubernetesClient, serving: KubernetesClient) -> None:
        self._releases, self._api, self._serving = releases, api, serving

    def abort(self, model: str, order: Abort) -> AbortedRelease:
        """Aborts the release of a model that has begun. Returns once the champion has all the traffic.

        Raises:
            NothingToAbort: none has begun, or it ended in another way.
            Temporary: the cluster did not follow in time.
        """
        runs = [run for run in self._releases.runs(model=model) if run.request and run.request.model == model]
        begun = [run for run in runs if run.active and run.first_pod_at]
        if not begun:
            ended = [run for run in runs if not run.active]
            newest = max(ended, key=lambda run: run.finished_at, default=None)
            report = self._releases.result(newest.name) if newest else None
            waiting = any(run.active for run in runs)
            return already_aborted(report, model, self._champion(model), waiting=waiting)
        run = min(begun, key=lambda run: run.first_pod_at)
        order = shield.abort(self._api, run.name, order)
        self.end(run, order)
        if self._ended(run):
            return aborted_release(self._releases.result(run.name), model, self._champion(model))
        assert run.request is not None  # noqa: S101 - chosen so
        return AbortedRelease(
            model=model,
            version=run.request.version,
            release=run.name,
            champion=self._champion(model),
            message=order.sentence,
        )

    def end(self, run: Run, order: Abort) -> None:
        """Ends a release: gives the traffic of its promotion back, or stops its Workflow, and waits until that is done.

        Raises:
            Temporary: it took too long.
        """
        deadline, stopped = time.monotonic() + _ABORT_S, False
        while time.monotonic() < deadline:
            moved = self._moved(run)
            known = declared.abort(self._serving, run.request.model, order) if run.request and moved else None
            if self._ended(run) or (known and known.abort and self._is_back(run, known)):
                return
            if not (stopped or moved or shield.moves(workflow(self._api, run.name))):
                self._releases.cancel(run.name)
                stopped = True
            time.sleep(_POLL_S)
        raise Temporary(f"release {run.name} did not end within {_ABORT_S} s", do="Run the same command again.")

    def moves(self, run: Run) -> bool:
        """Whether a release is in its promotion."""
        return self._moved(run) is not None or shield.moves(workflow(self._api, run.name))

    def _moved(self, run: Run) -> Moving | None:
        """The promotion of a release, if its service notes it."""
        if run.request is None or run.trigger is None:
            return None
        service = declared.find(self._serving, run.request.model)
        known = service.promotion if service else None
        return known if known and known.is_of(run.request.version, run.trigger.requested_at) else None

    def _is_back(self, run: Run, promotion: Moving) -> bool:
        """Whether what served before has all the traffic again. After a first version, its release's end says so."""
        service = declared.find(self._serving, run.request.model) if run.request else None
        return bool(promotion.before and service and service.serves_only(promotion.before))

    def _ended(self, run: Run) -> bool:
        return not self._releases.get(run.name).active

    def _champion(self, model: str) -> int:
        service = declared.find(self._serving, model)
        return service.version if service else 0


def bake_aborted(
    serving: KubernetesClient, service: declared.Declared, order: Abort, rollback: Callable[[], Promotion]
) -> AbortedRelease:
    """Rolls back a version that bakes, on a person's order.

    The operator gives the traffic back as soon as the order is noted on the service; the registry follows with the
    rollback, which tags who ordered it.

    Raises:
        Temporary: the cluster or the registry does not respond.
    """
    baking = service.baking
    assert baking is not None  # noqa: S101 - it bakes
    with suppress(Conflict):  # the rollback does the same, a little later
        declared.baked(serving, baking.model_copy(update={"state": "alarmed", "reason": order.sentence}))
    promotion = rollback()
    with suppress(Conflict):
        declared.baked(serving, baking.model_copy(update={"state": "ended", "reason": order.sentence}))
    return AbortedRelease(
        model=baking.model,
        version=baking.version,
        release="",
        champion=promotion.version,
        message=order.sentence,
    )
