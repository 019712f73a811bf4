"""Leader election: of several processes, only the holder of a Lease (coordination.k8s.io/v1) acts, while it renews it.

As in Kubernetes' own controllers, a Lease lasts 15 s, its holder stops acting 10 s after its last renewal, and every
process looks at it every 2 s. The 5 s between the two are the margin: the old holder has stopped before a new one
begins. A Lease is stale if it has not changed for 15 s by the watcher's own clock, so differing clocks do no harm. If
the holder's pod is known to be gone, others take over without waiting.
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
    """A Lease that one process at a time holds. Call `renew` every `RENEW_S` seconds, then read `holds`."""

    def __init__(
        self,
        api: KubernetesClient,
        name: str,
        *,
        identity: str = "",
        is_gone: Callable[[str], bool] = lambda _: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`identity` survives a restart of the process, but two processes never share it; if empty, it is random.

        `is_gone` says whether a holder has certainly stopped.
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
            Temporary, ClusterRefused: the API server does not answer.
        """
        asked = self._clock()  # before the request: others start counting later, when they see the renewal
        self._until = asked + _ACTS_S if self._lease.take() else 0.0

    def release(self) -> None:
        """Lets another process take the Lease at once."""
        self._until = 0.0
        with suppress(ShipliftError):  # if this fails, the Lease goes stale by itself
            self._lease.release()

    def _displaces(self, spec: Object) -> bool:
        return self._is_stale(spec) or self._is_gone(str(spec.get("holderIdentity")))

    def _is_stale(self, spec: Object) -> bool:
        seen = spec.get("holderIdentity"), spec.get("renewTime")
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
        return self._clock() - self._seen_at > float(spec.get("leaseDurationSeconds") or LASTS_S)


def identity_of(pod: str, uid: str) -> str:
    """The identity of a pod's container that can lead. It stays the same when the container restarts."""
    return f"{pod}_{uid}" if pod and uid else ""


def pod_is_gone(api: KubernetesClient, identity: str) -> bool:
    """Whether an identity's pod no longer exists or has ended; False if the identity is not a pod's.

    A pod that is being deleted is still running, and so may be a pod on a node that does not respond.

    Raises:
        Temporary, ClusterRefused: the API server does not answer.
    """
    name, _, uid = identity.partition("_")
    if not uid:
        return False
    pod = api.get(POD, name)
    if pod is None or pod["metadata"].get("uid") != uid:
        return True
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
