"""What people may do on the page: a line in `ACTIONS` is a button, a page that asks for the reason, and an audit entry.

Entries are tags of the version in the registry, one for each action.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shiplift.pipelines.engines.answers import VersionStatus
from shiplift.pipelines.engines.protocol import Engine
from shiplift.runtime.base.errors import AwaitingApproval
from shiplift.runtime.base.text import printable

TAG = "action_"  # with the time: no action hides an earlier one
_REASON = 500  # characters


@dataclass(frozen=True, kw_only=True)
class Action:
    """Something to do with a version. `label` is on its button, `asks` is the sentence that people confirm.

    `fits` says for which versions it makes sense. `run` does it for a reason, and says what it did; it raises
    what the engine does.
    `grave`: it takes something away from those who use the model.
    """

    label: str
    asks: str
    fits: Callable[[VersionStatus], bool]
    run: Callable[[Engine, str, int, str], str]
    grave: bool = False


def _release(engine: Engine, model: str, version: int, _: str) -> str:
    accepted = engine.order(f"{model}/{version}", "", again=False, allow_older=False)
    return f"release {accepted.name} {'begins' if accepted.queued else 'was already there'}"


def _rerun(engine: Engine, model: str, version: int, _: str) -> str:
    return f"release {engine.order(f'{model}/{version}', '', again=True, allow_older=False).name} begins again"


def _cancel(engine: Engine, model: str, version: int, _: str) -> str:
    stopped = engine.cancel(model, version)
    return f"cancelled {stopped}" if stopped else "no release of that version was running"


def _decide(engine: Engine, model: str, version: int, reason: str, *, approve: bool) -> str:
    accepted = engine.decide(model, version, approve=approve, reason=reason)
    return f"{'approved' if approve else 'rejected'}: release {accepted.name} goes on"


def _abort(engine: Engine, model: str, _: int, reason: str) -> str:
    aborted = engine.abort(model, reason)
    serves = f"version {aborted.champion} serves" if aborted.champion else "the model is not served, as before"
    return f"version {aborted.version} was {aborted.message}; {serves}"


def _rollback(engine: Engine, model: str, _: int, __: str) -> str:
    promotion = engine.rollback(model)
    return f"version {promotion.version} is the champion again (before: {promotion.previous})"


def _retire(engine: Engine, model: str, _: int, reason: str) -> str:
    return engine.retire(model, 0, reason=reason, force=False).sentence


def _released(version: VersionStatus) -> bool:
    return bool(version.release)


def _waits(version: VersionStatus) -> bool:
    return version.under_way is None and version.outcome == AwaitingApproval.title


ACTIONS: dict[str, Action] = {
    "release": Action(
        label="Release",
        asks="Release this version: it is proved, measured and judged, and serves if it passes.",
        fits=lambda version: version.under_way is None and not _released(version),
        run=_release,
    ),
    "rerun": Action(
        label="Release again",
        asks="Run this version's release again. Stages with unchanged inputs come from the cache.",
        fits=lambda version: version.under_way is None and _released(version),
        run=_rerun,
    ),
    "approve": Action(
        label="Approve",
        asks="Promote this version, which waits for approval.",
        fits=_waits,
        run=partial(_decide, approve=True),
    ),
    "reject": Action(
        label="Reject",
        asks="End the release of this version, which waits for approval. The champion serves on.",
        fits=_waits,
        run=partial(_decide, approve=False),
        grave=True,
    ),
    "abort": Action(
        label="Abort the release",
        asks="End this version's release at once. All traffic goes back to the champion, or stays there.",
        fits=lambda version: version.under_way is not None and not version.under_way.place,
        run=_abort,
        grave=True,
    ),
    "cancel": Action(
        label="Cancel the release",
        asks="Cancel this version's release. Nothing half-deployed is left behind.",
        fits=lambda version: version.under_way is not None,
        run=_cancel,
        grave=True,
    ),
    "rollback": Action(
        label="Roll back",
        asks="Make the previous champion serve again, instead of this version.",
        fits=lambda version: "champion" in version.aliases,
        run=_rollback,
        grave=True,
    ),
    "retire": Action(
        label="Retire the model",
        asks="Take the model out of service, for good: only a new release brings it back. Refused while it is in use.",
        fits=lambda version: "champion" in version.aliases,
        run=_retire,
        grave=True,
    ),
}


def fitting(version: VersionStatus) -> dict[str, Action]:
    """The actions that make sense for a version, by name."""
    return {name: action for name, action in ACTIONS.items() if action.fits(version)}


def do(engine: Engine, name: str, model: str, version: int, *, reason: str, who: str) -> str:
    """Does it, and returns what it did. The registry is told before, so nothing happens that it can't be told.

    Raises what the engine raises. The entry then says that, too.
    """
    key = f"{TAG}{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}_{time.time_ns() % 10**9:09}"
    why = printable(reason, limit=_REASON)
    entry = {"action": name, "reason": why, "who": who, "at": round(time.time(), 3)}

    def tell(outcome: str) -> None:
        engine.tag(model, version, key, json.dumps(entry | {"outcome": printable(outcome, limit=_REASON)}))

    tell("begun")
    try:
        outcome = ACTIONS[name].run(engine, model, version, why)
    except Exception as error:
        tell(f"failed: {error}")
        raise
    tell(outcome)
    return outcome
