"""What the deletion of a `TritonService` by hand means: the model is retired, or its service is declared again.

Without a word from whoever deletes it, a deletion is a mistake: production has to outlive `kubectl delete -f`. The word
is an annotation. There is no finalizer: an operator that is away must never keep a namespace from being deleted. So the
operator notes the order in a ConfigMap when it sees the deletion; one that nobody saw is a mistake, too.
"""

import json
import time
from typing import Any

from shiplift.runtime.base.names import dns_name
from shiplift.runtime.base.text import printable
from shiplift.runtime.records.retirement import Retirement
from shiplift.runtime.serving.kubernetes.objects.names import LABEL
from shiplift.runtime.serving.operator.conditions import KubernetesEvent

RETIRE = f"{LABEL}retire"  # an annotation: why the model is retired when its service is deleted
WITHDRAWN = f"{LABEL}withdrawn"  # an annotation: Shiplift itself deletes the service
ORDERS = "shiplift-retiring"  # a ConfigMap: the orders to retire a model, by the name of its service
_REASON = 500  # characters


def by_hand(body: dict[str, Any]) -> bool:
    """Whether someone else than Shiplift deleted a service."""
    return WITHDRAWN not in (body["metadata"].get("annotations") or {})


def order_of(body: dict[str, Any]) -> Retirement | None:
    """The order to retire a model, if its deleted service has one."""
    reason = (body["metadata"].get("annotations") or {}).get(RETIRE)
    if reason is None:
        return None
    return Retirement(by="someone with kubectl", reason=printable(str(reason), limit=_REASON), at=time.time())


def event_of(body: dict[str, Any], order: Retirement | None) -> KubernetesEvent:
    """What the operator tells about a deletion."""
    model = printable(str((body.get("spec") or {}).get("model", body["metadata"]["name"])), limit=256)
    if order:
        return KubernetesEvent(reason="Retiring", message=f"{model} is {order.sentence}")
    name = body["metadata"]["name"]
    message = (
        f"the service was deleted, and is declared again while {model} has a champion. To take the model out of "
        f"service: `shiplift retire {model}`, or `kubectl annotate tritonservice {name} {RETIRE}=REASON` before it is "
        "deleted"
    )
    return KubernetesEvent(reason="DeletedByHand", message=message, warning=True)


def orders(config_map: dict[str, Any] | None) -> dict[str, Retirement]:
    """The orders in a ConfigMap, by the name of the service; what can't be read is none."""
    found: dict[str, Retirement] = {}
    for name, text in ((config_map or {}).get("data") or {}).items():
        try:
            found[name] = Retirement.model_validate(json.loads(text))
        except ValueError:
            continue
    return found


def order_for(model: str, noted: dict[str, Retirement]) -> Retirement | None:
    """The order to retire a model."""
    return noted.get(dns_name(model))
