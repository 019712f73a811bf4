"""Retires a model on this machine: ends its releases that are under way, and takes it out of production.

A release that a sweep or a webhook queued again in between is ended, too: from the first tag on, none is queued again.
The order is on disk until it has been carried out. If its command is killed after the first record was marked, the
dispatcher's sweep finishes it; before that, nothing has happened, and the order is forgotten.
"""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shiplift.pipelines.engines.answers import still_releasing
from shiplift.pipelines.engines.local import aborting
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.runtime.base.errors import NotFound, ShipliftError, StillInUse
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.records.promotion import Abort
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.retirement import Retired, RetirementOrder, Retiring
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.machine.served import served_version
from shiplift.runtime.store.ledger import Ledger
from shiplift.steps.retire import retire


def retired(site: Site, model: str, retiring: Retiring) -> Retired:
    """Retires a model, or a version that does not serve; idempotent.

    Raises:
        StillInUse: a release is under way and the order has no `force`, or what `steps.retire.retire` says.
        NotFound, Temporary: as `steps.retire.retire`.
    """
    order = RetirementOrder(model=model, retiring=retiring)
    file = _orders(site) / f"{serving_name(model)}.json"
    with _locked(file, wait=True):
        write_atomically(file, order.model_dump_json())
        try:
            answer = _carried_out(site, order)
        except (StillInUse, NotFound):  # nothing has begun
            file.unlink(missing_ok=True)
            raise
        file.unlink(missing_ok=True)
        return answer


def finish(site: Site, tell: Callable[[str], object]) -> None:
    """Finishes what killed commands began to retire."""
    for file in sorted(_orders(site).glob("*.json")):
        with _locked(file, wait=False) as free:
            if not (free and file.is_file()):
                continue
            try:
                _finish(site, RetirementOrder.model_validate_json(file.read_text()), tell)
            except (StillInUse, NotFound, ValueError):  # the last: another version of Shiplift wrote it
                file.unlink()
            except ShipliftError as error:
                tell(f"{file.stem} is half retired, and can't be retired wholly: {error}")
            else:
                file.unlink()


def _finish(site: Site, order: RetirementOrder, tell: Callable[[str], object]) -> None:
    if _begun(site, order):
        forced = order.retiring.model_copy(update={"force": True})  # it was allowed when it began
        answer = _carried_out(site, order.model_copy(update={"retiring": forced}))
        tell(f"{answer.sentence}: its command had been killed before it was done")


def _carried_out(site: Site, order: RetirementOrder) -> Retired:
    home, model, retiring = Path(site.home), order.model, order.retiring
    under_way = _under_way(home, model, retiring)
    if under_way and not retiring.force:
        raise still_releasing(model, under_way)
    _end(home, model, retiring)
    answer = retire(site, model, retiring)
    _end(home, model, retiring)
    return answer


def _begun(site: Site, order: RetirementOrder) -> bool:
    """Whether a record was marked: that of the version, or of the one that serves, or all if none serves any more."""
    version = order.retiring.version or served_version(Path(site.home), order.model)
    if not version:
        return True
    recorded = Ledger(site, Request(model=order.model, version=version)).recorded_promotion()
    return recorded is not None and recorded.retired is not None


def _orders(site: Site) -> Path:
    return Path(site.home) / "production" / "retiring"


@contextmanager
def _locked(file: Path, *, wait: bool) -> Iterator[bool]:
    """Keeps others from an order; without `wait`, false is given if another process has it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


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
