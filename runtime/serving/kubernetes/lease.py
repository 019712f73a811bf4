"""A lock that any pod can hold and none can hold forever: a Lease per model (coordination.k8s.io/v1).

Its holder renews it from a thread. A holder that dies stops renewing, and the next one takes it over once it is stale.
"""

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from shiplift.runtime.base.errors import ShipliftError, Temporary
from shiplift.runtime.base.progress import progress
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Conflict, Object
from shiplift.runtime.serving.kubernetes.kinds import LEASE

_DURATION_S = 30
_POLL_S = 1.0


@contextmanager
def held(api: KubernetesClient, name: str, *, wait_s: float = 600) -> Iterator[None]:
    """Holds the Lease `name` for as long as the context lasts.

    Raises:
        Temporary: another holder kept it for more than `wait_s` seconds.
    """
    me = uuid.uuid4().hex
    deadline = time.monotonic() + wait_s
    while not _take(api, name, me):
        if time.monotonic() > deadline:
            raise Temporary(
                f"another promotion has held {name} for {wait_s:.0f} s", do="Wait until it is done, then try again."
            )
        progress("waiting for another promotion of this model")
        time.sleep(_POLL_S)
    done = threading.Event()
    renewing = threading.Thread(target=_renew, args=(api, name, me, done), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        done.set()
        renewing.join()
        with suppress(Conflict, ShipliftError):  # otherwise it goes stale by itself
            _release(api, name, me)


def _take(api: KubernetesClient, name: str, me: str) -> bool:
    lease = api.get(LEASE, name)
    try:
        if lease is None:
            api.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **_body(name, me)})
            return True
        spec = lease.get("spec", {})
        if spec.get("holderIdentity") not in ("", None, me) and not _stale(spec):
            return False
        api.replace({**lease, "spec": _body(name, me)["spec"]})
    except Conflict:
        return False
    return True


def _renew(api: KubernetesClient, name: str, me: str, done: threading.Event) -> None:
    while not done.wait(_DURATION_S / 4):
        with suppress(ShipliftError, Conflict):  # the next iteration tries again
            lease = api.get(LEASE, name)
            if lease is not None and lease["spec"].get("holderIdentity") == me:
                api.replace({**lease, "spec": _body(name, me)["spec"]})


def _release(api: KubernetesClient, name: str, me: str) -> None:
    lease = api.get(LEASE, name)
    if lease is not None and lease["spec"].get("holderIdentity") == me:
        api.replace({**lease, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}})


def _body(name: str, me: str) -> Object:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": me, "leaseDurationSeconds": _DURATION_S, "renewTime": now}
    return {"metadata": {"name": name}, "spec": spec}


def _stale(spec: Object) -> bool:
    renewed = datetime.fromisoformat(str(spec.get("renewTime") or "1970-01-01T00:00:00.000000Z"))
    return (datetime.now(UTC) - renewed).total_seconds() > float(spec.get("leaseDurationSeconds") or 0)
