"""The golden requests of what serves: a few of each are kept in memory.

The artifact store may be down or hang just when an operator starts, and services must be looked after all the same. So
a caller waits only for a moment, and the fetch goes on in the background.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from shiplift.runtime.base.errors import Temporary
from shiplift.runtime.model.tensors import Arrays, first_of_each_version
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.operator.observed import TargetPods

_KEPT = 64  # packages
_REQUESTS = 8  # of each
_FETCHES = 4  # at a time
_PATIENCE_S = 1.0
_PAUSE_S = 10.0  # between the starts of a failed fetch and the next one


@dataclass(frozen=True, kw_only=True)
class _Fetch:
    began_at: float
    golden: "Future[Arrays]"

    def failed(self) -> bool:
        return self.golden.done() and self.golden.exception() is not None


class GoldenRequests:
    """Golden requests by package; `fetch` gets them from an artifact store at an address."""

    def __init__(
        self, fetch: Callable[[Package, str], Arrays], *, patience_s: float = _PATIENCE_S, pause_s: float = _PAUSE_S
    ) -> None:
        self._fetch, self._patience_s, self._pause_s = fetch, patience_s, pause_s
        self._pool = ThreadPoolExecutor(_FETCHES, thread_name_prefix="golden")
        self._fetches: OrderedDict[str, _Fetch] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, group: TargetPods, *, at_once: bool = False) -> Arrays:
        """The golden requests and answers of a group's package, by name as in its file; `at_once`: without waiting.

        Raises:
            Temporary: they are still being fetched.
            ShipliftError: a fetch failed a moment ago.
        """
        golden = self._begun(group)
        try:
            return golden.result(timeout=0 if at_once else self._patience_s)
        except TimeoutError as error:
            raise Temporary(
                f"the golden requests of {group.name} are still being fetched", do="Check the artifact store."
            ) from error

    def _begun(self, group: TargetPods) -> "Future[Arrays]":
        digest, now = group.package.repository.sha256, time.monotonic()
        with self._lock:
            fetch = self._fetches.get(digest)
            if fetch is None or (fetch.failed() and now - fetch.began_at >= self._pause_s):
                future = self._pool.submit(self._rows, group.package, group.artifacts_uri)
                fetch = self._fetches[digest] = _Fetch(began_at=now, golden=future)
            self._fetches.move_to_end(digest)
            while len(self._fetches) > _KEPT:
                self._fetches.popitem(last=False)
        return fetch.golden

    def _rows(self, package: Package, artifacts_uri: str) -> Arrays:
        golden = first_of_each_version(self._fetch(package, artifacts_uri), _REQUESTS)
        return {name: array.copy() for name, array in golden.items()}
