"""Loads what production serves, each model for itself: one that is slow or fails costs the others nothing.

A model that fails is tried again after pauses, each twice as long as the one before. They outlast the server: after a
restart the models that loaded last time come first, and one in its pause waits for its end.

A model whose process in Triton's Python backend has ended (`hosts`) is loaded again after the pause of its crash.

A model that serves has passed its release, so one that fails only its warm-up is tried next without it.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

from google.protobuf.text_format import ParseError
from pydantic import TypeAdapter, ValidationError
from tritonclient.grpc import model_config_pb2

from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.records.base import Record
from shiplift.runtime.serving.machine.pauses import pause_s
from shiplift.runtime.serving.triton.config import parse
from shiplift.runtime.serving.triton.loads import LOADING, READY, ModelLoads
from shiplift.runtime.serving.triton.repository_key import key_of

_POLL_S = 0.02
_WARM_UP_FAILED = "failed to run warmup sample"  # as Triton says it, whatever the backend


class Attempts(Record):
    """The failures of a model's loading, in a row: how many, since when, why the last one, and when to try again.

    Times are in seconds since the epoch. `seconds` is how long the last load took. A load that has begun counts as a
    failure without a reason until it ends: then a model during whose load the server died has its pause, too.
    """

    failures: int = 0
    since: float = 0.0
    next_at: float = 0.0
    why: str = ""
    seconds: float = 0.0

    def begun(self, now: float) -> "Attempts":
        """The attempts when another one begins."""
        failures, since = self.failures + 1, self.since or now
        return Attempts(failures=failures, since=since, next_at=now + pause_s(failures), seconds=self.seconds)

    def ended(self, seconds: float, why: str, now: float) -> "Attempts":
        """The attempts after the one that had begun, which took `seconds` and failed because of `why`, or did not."""
        if not why:
            return Attempts(seconds=seconds)
        return self.model_copy(update={"next_at": now + pause_s(self.failures), "why": why, "seconds": seconds})


_ATTEMPTS = TypeAdapter(dict[str, Attempts])


def attempts(production: Path) -> dict[str, Attempts]:
    """The attempts to load each model, by its name in the server; `production` is the folder of a home's production."""
    try:
        return _ATTEMPTS.validate_json(_file(production).read_bytes())
    except (FileNotFoundError, ValidationError):
        return {}


class Loader:
    """Loads the models of production's repository into its server at `address`."""

    def __init__(self, repository: Path, address: str, *, clock: Callable[[], float] = time.time) -> None:
        self._repository, self._clock = repository, clock
        self._loads = ModelLoads(address, key_of(repository))

    def look(self, *, but: frozenset[str] = frozenset(), again: Collection[str] = ()) -> frozenset[str]:
        """Begins to load what is due, except `but`. Returns the models that don't take requests now.

        Those of `again` are loaded although Triton calls them ready. Nothing begins while a promotion or a rollback is
        under way, because that loads models itself.

        Raises:
            Temporary: the server does not answer.
        """
        states = self._loads.states()
        known = self._note()
        ready = {name for name, state in known.items() if state.failures and states.get(name) == {READY}}
        ready -= set(again)
        if ready:  # a promotion loaded them
            known |= dict.fromkeys(ready, Attempts())
            self._save(known)
        missing = [name for name in self._installed() if READY not in states.get(name, ()) or name in again]
        due = [name for name in missing if LOADING not in states.get(name, ()) and name not in but]
        if due and not _moves(self._repository.parent / "locks"):
            self._begin({name: known.get(name, Attempts()) for name in due}, known, again)
        return frozenset(missing)

    def states(self) -> dict[str, set[str]]:
        """The states of each model's versions in the server.

        Raises:
            Temporary: the server does not answer.
        """
        return self._loads.states()

    def _begin(self, due: dict[str, Attempts], known: dict[str, Attempts], again: Collection[str]) -> None:
        now = self._clock()
        names = sorted(
            (name for name, state in due.items() if state.next_at <= now), key=lambda name: _order(due[name])
        )
        if names:
            self._save(known | {name: due[name].begun(now) for name in names})
        for name in names:
            if name in again:
                touch(self._repository / name)
            cold = _WARM_UP_FAILED in due[name].why
            self._loads.begin(name, _without_warm_up(self._repository / name) if cold else None)

    def wait(self, seconds: float) -> None:
        """Waits until the loads that were begun have ended, at most for `seconds`."""
        deadline = time.monotonic() + seconds
        while self._loads.any_under_way and time.monotonic() < deadline:
            self._note()
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Closes the connection; the server goes on loading."""
        self._loads.close()

    def _note(self) -> dict[str, Attempts]:
        """Notes how loads ended; returns the attempts so far."""
        known = attempts(self._repository.parent)
        if ended := self._loads.ended():
            now = self._clock()
            known |= {model: known.get(model, Attempts()).ended(*end, now) for model, end in ended.items()}
            self._save(known)
        return known

    def _save(self, known: dict[str, Attempts]) -> None:
        installed = self._installed()
        kept = {model: state for model, state in known.items() if model in installed}
        write_atomically(_file(self._repository.parent), _ATTEMPTS.dump_json(kept))

    def _installed(self) -> list[str]:
        return sorted(config.parent.name for config in self._repository.glob("*/config.pbtxt"))


def touch(folder: Path) -> None:
    """Makes Triton load a model again, which it does only if one of its files is newer."""
    for file in folder.glob("*/model.*"):
        with contextlib.suppress(FileNotFoundError):
            os.utime(file)


def _without_warm_up(folder: Path) -> model_config_pb2.ModelConfig | None:
    """A model's configuration but for its warm-up; None if it can't be read: then Triton says what is wrong."""
    try:
        config = parse((folder / "config.pbtxt").read_text())
    except (OSError, ValueError, ParseError):
        return None
    config.ClearField("model_warmup")
    return config


def _order(state: Attempts) -> tuple[int, float]:
    return state.failures, state.seconds


def _moves(locks: Path) -> bool:
    """Whether a promotion or a rollback of any model is under way."""
    for file in locks.glob("*"):
        with file.open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def _file(production: Path) -> Path:
    return production / "loading.json"
