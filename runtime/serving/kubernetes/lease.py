"""Locks that any pod can hold and none can hold forever: Leases (coordination.k8s.io/v1).

A holder that dies stops renewing its Lease, and the next one takes it over once it is stale. A promotion holds its
model's Lease (`held`). The operator's leader holds one for as long as it acts
(`pipelines.daemons.operator.leadership`).
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from shiplift.runtime.base.errors import ShipliftError, Temporary
from shiplift.runtime.base.progress import progress
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Conflict, Object
from shiplift.runtime.serving.kubernetes.kinds import LEASE

_LASTS_S = 30.0
_POLL_S = 1.0


class Lease:
    """A Lease that this process may hold.

    Every method raises `Temporary` or `ClusterRefused` if the API server does not answer or refuses.
    """

    def __init__(
        self,
        api: KubernetesClient,
        name: str,
        *,
        lasts_s: float,
        displaces: Callable[[Object], bool],
        identity: str = "",
    ) -> None:
        """`displaces` decides from the Lease's spec whether another holder no longer counts.

        `identity` may survive a restart of the process, but two processes never share it; empty: a random one.
        """
        self._api, self._name, self._lasts_s, self._displaces = api, name, lasts_s, displaces
        self._me = identity or uuid.uuid4().hex

    def take(self) -> bool:
        """Takes the Lease if it is free, or renews it; returns whether this process holds it now.

        A replaced Lease carries the resource version that was read. So if two processes take it at the same time, one
        of them gets a conflict.
        """
        lease = self._api.get(LEASE, self._name)
        spec = (lease or {}).get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        if holder not in ("", self._me) and not self._displaces(spec):
            return False
        try:
            if lease is None:
                body = {"apiVersion": LEASE.version, "kind": LEASE.name, "metadata": {"name": self._name}}
                self._api.create({**body, "spec": self._spec(spec)})
            else:
                self._api.replace({**lease, "spec": self._spec(spec)})
        except Conflict:
            return False
        return True

    def renew(self) -> None:
        """Renews the Lease if this process still holds it."""
        self._replace(self._spec)

    def release(self) -> None:
        """Frees the Lease if this process still holds it, so that another one can take it at once."""
        self._replace(lambda _: {"holderIdentity": "", "leaseDurationSeconds": 1})

    def _replace(self, changed: Callable[[Object], Object]) -> None:
        lease = self._api.get(LEASE, self._name)
        if lease is not None and lease["spec"].get("holderIdentity") == self._me:
            with suppress(Conflict):  # another process has taken it since
                self._api.replace({**lease, "spec": changed(lease["spec"])})

    def _spec(self, before: Object) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = before.get("holderIdentity") == self._me
        return {
            "holderIdentity": self._me,
            "leaseDurationSeconds": int(self._lasts_s),
            "acquireTime": (before.get("acquireTime") if mine else None) or now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if mine else 1),
        }


@contextmanager
def held(api: KubernetesClient, name: str, *, wait_s: float = 600) -> Iterator[None]:
    """Holds the Lease `name` for as long as the context lasts; a thread renews it.

    It is renewed four times within its duration, so that one failed request does not lose it.

    Raises:
        Temporary: another holder kept it for more than `wait_s` seconds.
    """
    lease = Lease(api, name, lasts_s=_LASTS_S, displaces=_stale)
    deadline = time.monotonic() + wait_s
    while not lease.take():
        if time.monotonic() > deadline:
            raise Temporary(
                f"another promotion has held {name} for {wait_s:.0f} s", do="Wait until it is done, then try again."
            )
        progress("waiting for another promotion of this model")
        time.sleep(_POLL_S)
    done = threading.Event()
    renewing = threading.Thread(target=_renew, args=(lease, done), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        done.set()
        renewing.join()
        with suppress(ShipliftError):  # if this fails, it goes stale by itself
            lease.release()


def _renew(lease: Lease, done: threading.Event) -> None:
    while not done.wait(_LASTS_S / 4):
        with suppress(ShipliftError):  # the next iteration tries again
            lease.renew()


def _stale(spec: Object) -> bool:
    """Whether a holder has not renewed its Lease in time. Its clock and this one should agree."""
    renewed = datetime.fromisoformat(str(spec.get("renewTime") or "1970-01-01T00:00:00.000000Z"))
    return (datetime.now(UTC) - renewed).total_seconds() > float(spec.get("leaseDurationSeconds") or 0)
