"""An instance of a model whose code runs in a process of its own: what both kinds of such models have in common.

Process: Triton's Python backend, as `python_host/hosted.py` beside `host.py`, `keeper.py`, `wire.py`.
Python: the server's
Packages: numpy
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from .host import Died, Host, ModelFailed, Paused, Raised, TookTooLong  # noqa: TID251 - the same import in Shiplift and in a package
from .keeper import GUILTY, Keeper  # noqa: TID251
from .wire import Arrays  # noqa: TID251

T = TypeVar("T")
_MOST_THREADS = 512


class Refused(ModelFailed):
    """The model's process died of this request before."""


class HostedModel:
    """The process of one instance, kept apart after it has ended.

    `values` are the parameters of the model's configuration, and `settings` those of `worker.py`, but for the limits.
    `memory_mb` is what the process may use where the configuration says nothing. `grace_s` is the host's.
    """

    def __init__(
        self,
        args: Mapping[str, str],
        values: Mapping[str, str],
        code: Path,
        environment: Path,
        settings: Mapping[str, Any],
        *,
        memory_mb: int,
        grace_s: float = 0.0,
    ) -> None:
        if "cpu_cores" in values or "numa_node" in values:
            _pin(values)
        self.keeper = Keeper(args["model_name"], int(args["model_version"]))
        self.host = Host(
            code,
            environment,
            {
                **settings,
                "memory_mb": int(values.get("memory_mb", memory_mb)),
                "load_s": _number(values, "load_timeout_ms", 1000),
                "cpu_s": _number(values, "cpu_time_ms", 1000),
                "max_threads": _number(values, "max_threads") or _MOST_THREADS,
                "open_files": _number(values, "max_open_files"),
                "allow_without": os.environ.get("SHIPLIFT_ALLOW_WITHOUT", "").split(),
            },
            threads=int(values.get("intra_op_threads", "1")),
            keeper=self.keeper,
            grace_s=grace_s,
        )
        with contextlib.suppress(Paused):  # Triton's own process ended with the model's: later requests start it
            self.host.start()

    def close(self) -> None:
        """Ends the process: the model is unloaded."""
        self.host.close()
        self.keeper.forget()

    def answers(
        self, requests: Sequence[Arrays], ask: Callable[[Sequence[Arrays]], Sequence[T]]
    ) -> list[T | ModelFailed]:
        """An answer to each request, or why there is none; `ask` answers several at once, or raises `ModelFailed`.

        After the process has died, each request that it may have died of is asked alone. Then it is known which.
        """
        found: list[T | ModelFailed] = [Refused(_REFUSED)] * len(requests)
        records = [self.keeper.crashes_of(inputs) for inputs in requests]
        suspects = [[at] for at, crashes in enumerate(records) if 0 < crashes < GUILTY]
        together = [at for at, crashes in enumerate(records) if not crashes]
        for places in (*suspects, together):
            if places:
                for at, answer in zip(places, self._asked([requests[at] for at in places], ask)):
                    found[at] = answer
        return found

    def _asked(
        self, requests: Sequence[Arrays], ask: Callable[[Sequence[Arrays]], Sequence[T]]
    ) -> list[T | ModelFailed]:
        try:
            answers = list(ask(requests))
        except ModelFailed as error:
            if len(requests) > 1 and isinstance(error, Raised):  # one request is to blame, so each is asked alone
                return list(chain.from_iterable(self._asked([request], ask) for request in requests))
            if isinstance(error, (Died, TookTooLong)):
                self.keeper.suspect(requests)
            return [error] * len(requests)
        for request in requests:
            self.keeper.acquit(request)
        return list(answers)


_REFUSED = "the model's worker died each time it ran this request: it is refused for an hour"


def _number(values: Mapping[str, str], name: str, per: int = 1) -> float | None:
    """A parameter in units of `per`; None if it is not set."""
    return int(values[name]) / per if name in values else None


def _pin(values: Mapping[str, str]) -> None:
    """Pins this process, and so the one that it hosts, to the cores that the configuration names."""
    texts = [values.get("cpu_cores", "")]
    if "numa_node" in values:
        texts.append(Path(f"/sys/devices/system/node/node{values['numa_node']}/cpulist").read_text().strip())
    parts = [part.partition("-") for part in ",".join(filter(None, texts)).split(",")]
    cores = set(chain.from_iterable(range(int(first), int(last or first) + 1) for first, _, last in parts))
    os.sched_setaffinity(0, cores & os.sched_getaffinity(0) or os.sched_getaffinity(0))
