"""Retires a model on this machine: ends its releases that are under way, and takes it out of production.

A release that a sweep or a webhook queued again in between is ended, too: from the first tag on, none is queued again.
"""

from pathlib import Path

from shiplift.pipelines.engines.answers import still_releasing
from shiplift.pipelines.engines.local import aborting
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.runtime.records.promotion import Abort
from shiplift.runtime.records.retirement import Retired, Retiring
from shiplift.runtime.records.site import Site
from shiplift.steps.retire import retire


def retired(site: Site, model: str, retiring: Retiring) -> Retired:
    """Retires a model, or a version that does not serve; idempotent.

    Raises:
        StillInUse: a release is under way and the order has no `force`, or what `steps.retire.retire` says.
        NotFound, Temporary: as `steps.retire.retire`.
    """
    home = Path(site.home)
    under_way = _under_way(home, model, retiring)
    if under_way and not retiring.force:
        raise still_releasing(model, under_way)
    _end(home, model, retiring)
    answer = retire(site, model, retiring)
    _end(home, model, retiring)
    return answer


def _under_way(home: Path, model: str, retiring: Retiring) -> list[str]:
    """The releases under way that were ordered before the model was retired."""
    releases = Releases(home)
    orders = [(name, releases.order(name)) for name in releases.pending()]
    return [
        name
        for name, order in orders
        if order.request.model == model
        and (not retiring.version or order.request.version == retiring.version)
        and order.trigger.requested_at <= retiring.retirement.at
    ]


def _end(home: Path, model: str, retiring: Retiring) -> None:
    why = f"the model is {retiring.retirement.sentence}"
    for name in _under_way(home, model, retiring):
        aborting.end(home, name, Abort(by=retiring.retirement.by, reason=why, at=retiring.retirement.at))
