"""Compares the objects that should exist with those that do.

A live object is right if it covers the wanted one. If the API server spells a value differently, it never does. Then it
is right for as long as it is the version that our own write of the same object produced.
"""

import hashlib
import json
from typing import Any

from shiplift.runtime.serving.kubernetes.objects.names import Object
from shiplift.runtime.serving.operator.evidence import Applied, Key
from shiplift.runtime.serving.operator.observed import Observed

_ROUTES = ("HTTPRoute", "GRPCRoute")


def key_of(body: Object) -> Key:
    """An object's kind and name."""
    return body["kind"], body["metadata"]["name"]


def is_right(wanted: Object, observed: Observed) -> bool:
    """Whether an object exists as wanted, and is not being deleted."""
    live = observed.live.get(key_of(wanted))
    if live is None or "deletionTimestamp" in live["metadata"] or strangers(wanted, live):
        return False
    applied = observed.evidence.applied.get(key_of(wanted))
    if covers(live, wanted):
        if len(_copies(live)) != len(_copies(wanted)):
            return False  # a shadow is over: no requests may be copied any more, whoever wrote that
        # Covering is not enough for a route: an added filter may lead its requests elsewhere.
        return wanted["kind"] not in _ROUTES or applied is None or applied.version == _version(live)
    if applied is None or applied.version != _version(live):
        return False
    return applied == remember(wanted, live) and covers(live["metadata"], wanted["metadata"])


def _copies(body: Object) -> list[Object]:
    """What a route copies requests to; empty for other objects."""
    rules = (body.get("spec") or {}).get("rules") or [] if body["kind"] in _ROUTES else []
    filters = [each for rule in rules for each in rule.get("filters") or []]
    return [each for each in filters if each.get("type") == "RequestMirror"]


def remember(wanted: Object, live: Object) -> Applied:
    """A note that applying the object `wanted` produced the object `live`."""
    digest = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
    return Applied(digest=digest, version=_version(live))


def _version(live: Object) -> str:
    meta = live["metadata"]
    return str(meta.get("generation") or meta.get("resourceVersion", ""))


def covers(live: Any, wanted: Any) -> bool:
    """Whether a live value has everything that a wanted one has; lists must agree item by item."""
    if live == wanted:
        return True  # most of every object: whole subtrees are compared at once
    if _is_empty(wanted):
        return _is_empty(live) or isinstance(live, dict)
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(covers(live.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list):
        same = isinstance(live, list) and len(live) == len(wanted)
        return same and all(covers(*pair) for pair in zip(live, wanted, strict=True))
    return False


def _is_empty(value: Any) -> bool:
    return value is None or (not value and isinstance(value, dict | list | str))


def strangers(wanted: Object, live: Object) -> Object:
    """A merge patch that removes what another writer added and applying does not remove.

    That concerns additions to a Service's selector, which would then match no pod, and the hosts of a route that should
    have none. Server-side apply removes only fields that the same manager once set.
    """
    if wanted["kind"] in _ROUTES:
        extra = live.get("spec", {}).get("hostnames") and "hostnames" not in wanted["spec"]
        return {"spec": {"hostnames": None}} if extra else {}
    if wanted["kind"] != "Service":
        return {}
    selector = wanted["spec"].get("selector") or {}
    added = set(live.get("spec", {}).get("selector") or {}) - set(selector)
    return {"spec": {"selector": dict.fromkeys(sorted(added))}} if added else {}
