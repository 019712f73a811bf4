"""The activator in a service's routes: it holds the requests of a service that has no ready pod.

The routes then lead to it, with headers that name a request's service and the Services of its groups. So the activator
needs no permissions and keeps no list of services.
"""

from collections.abc import Sequence

from shiplift.runtime.serving.kubernetes.objects.names import Object

ACTIVATOR = "activator"  # its Deployment and Service
HEADLESS = "activator-pods"  # resolves to the addresses of all of its pods
ADMIN = 8085  # where the operator asks how many requests wait
SERVICE_HEADER, BACKENDS_HEADER = "shiplift-service", "shiplift-backends"
PROBE_HEADER = "shiplift-probe"  # on the operator's own requests: the activator answers them itself
ANSWERED_HEADER = "shiplift-activator"  # on those answers: the service that the route named


def to_activator(route: Object, service: str, groups: Sequence[str]) -> Object:
    """A service's route to the activator instead of its groups' Services, to which the activator passes requests on."""
    names = {SERVICE_HEADER: service, BACKENDS_HEADER: ",".join(groups)}
    headers = [{"name": name, "value": value} for name, value in names.items()]
    filters = [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": headers}}]
    rules = [{**rule, "filters": filters, "backendRefs": [_backend(rule)]} for rule in route["spec"]["rules"]]
    return {**route, "spec": {**route["spec"], "rules": rules}}


def leads_to_activator(route: Object) -> bool:
    """Whether a route leads to the activator."""
    backends = [each for rule in route.get("spec", {}).get("rules") or [] for each in rule.get("backendRefs") or []]
    return any(each["name"] == ACTIVATOR for each in backends)


def groups_behind(rule: Object) -> list[str]:
    """The groups whose requests a rule leads to the activator."""
    for each in rule.get("filters") or []:
        for header in (each.get("requestHeaderModifier") or {}).get("set") or []:
            if header["name"] == BACKENDS_HEADER:
                return str(header["value"]).split(",")
    return []


def _backend(rule: Object) -> Object:
    return {"name": ACTIVATOR, "port": rule["backendRefs"][0]["port"], "weight": 100}
