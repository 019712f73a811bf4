"""Which of several processes acts: the holder of a Lease, for as long as it renews it (coordination.k8s.io/v1).

As in Kubernetes' own controllers, a Lease lasts 15 s, its holder stops acting 10 s after its last
renewal, and everybody looks every 2 s. A Lease counts as stale once it has not changed for as long as it lasts by the
watcher's own clock, so clocks that differ do no harm. A holder whose pod is known to be gone is not waited for.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.kinds import POD
from shiplift.runtime.serving.kubernetes.lease import Lease

LASTS_S, _ACTS_S, RENEW_S = 15.0, 10.0, 2.0


class Leadership:
    """A Lease held by one process at a time: `holds` after each `renew`, to be called every `RENEW_S` seconds."""

    def __init__(
        self,
        api: KubernetesClient,
        name: str,
        *,
        identity: str = "",
        is_gone: Callable[[str], bool] = lambda _: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`identity` outlives a restart of the process, but no two processes have it at once; empty: a random one.

        `is_gone` says whether a holder certainly runs no more.
        """
        self._lease = Lease(api, name, lasts_s=LASTS_S, displaces=self._displaces, identity=identity)
        self._is_gone, self._clock = is_gone, clock
        self._until = 0.0
        self._seen: tuple[object, object] = ("", "")  # holder and time of renewal
        self._seen_at = 0.0

    @property
    def holds(self) -> bool:
        """Whether no other process can hold it now."""
        return self._clock() < self._until

    def renew(self) -> None:
        """Takes the Lease if it is free, or renews it.

        Raises:
            Temporary, ClusterRefused: the API server can't say.
        """
        asked = self._clock()
        self._until = asked + _ACTS_S if self._lease.take() else 0.0

    def release(self) -> None:
        """Lets another process take it at once."""
        self._until = 0.0
        with suppress(ShipliftError):  # otherwise it goes stale by itself
            self._lease.release()

    def _displaces(self, spec: Object) -> bool:
        return self._is_stale(spec) or self._is_gone(str(spec.get("holderIdentity")))

    def _is_stale(self, spec: Object) -> bool:
        seen = spec.get("holderIdentity"), spec.get("renewTime")
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
        return self._clock() - self._seen_at > float(spec.get("leaseDurationSeconds") or LASTS_S)


def identity_of(pod: str, uid: str) -> str:
    """The identity of the one container of a pod that leads; it keeps it when it is restarted."""
    return f"{pod}_{uid}" if pod and uid else ""


def pod_is_gone(api: KubernetesClient, identity: str) -> bool:
    """Whether the pod of an identity no longer exists or has ended; False for whatever is no pod's identity.

    A pod that is being deleted still runs, and so may one on a node that does not answer.

    Raises:
        Temporary, ClusterRefused: the API server can't say.
    """
    name, _, uid = identity.partition("_")
    if not uid:
        return False
    pod = api.get(POD, name)
    if pod is None or pod["metadata"].get("uid") != uid:
        return True
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
