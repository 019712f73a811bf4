"""How a model's traffic is split: by the weights of Gateway API routes, or without a gateway, by a Service's selector.

Setting weights does not mean that the data plane follows. So a share counts as reached once the answers to requests
through the front are split accordingly.
"""

import time

from tritonclient.utils import InferenceServerException

from shiplift.runtime.base.errors import CanaryFailed, Temporary
from shiplift.runtime.base.names import dns_name
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.serving import Package
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import GATEWAY, GRPC_ROUTE, SERVICE
from shiplift.runtime.serving.kubernetes.objects.front import front_of_gateway, front_switched, hostnames, routes
from shiplift.runtime.serving.kubernetes.objects.names import GRPC, LABEL
from shiplift.runtime.serving.triton.client import TritonClient

_SETTLE_S = 60.0
_POLL_S = 0.2
_PROBES = 60


class Front:
    """The front of one model."""

    def __init__(self, cluster: Cluster, model: str) -> None:
        self._cluster = cluster
        self._model = model
        self._api = KubernetesClient(cluster.serving_namespace)

    def weights(self) -> dict[str, int]:
        """The traffic share of each package by name, in percent; empty if the model was never served."""
        if self._cluster.gateway is None:
            front = self._api.get(SERVICE, dns_name(self._model))
            annotations = (front or {}).get("metadata", {}).get("annotations", {})
            serves, before = annotations.get(f"{LABEL}serves", ""), annotations.get(f"{LABEL}before", "")
            return {**({before: 0} if before else {}), **({serves: 100} if serves else {})}
        route = self._api.get(GRPC_ROUTE, dns_name(self._model))
        rules = (route or {}).get("spec", {}).get("rules", [])
        return {backend["name"]: int(backend.get("weight", 1)) for rule in rules for backend in rule["backendRefs"]}

    def names(self) -> set[str]:
        """The names of all packages that the front refers to, whatever their shares."""
        return set(self.weights())

    def set(self, weights: dict[str, int]) -> None:
        """Splits the traffic; without a gateway, only all of it can move, and the package before is recorded with 0."""
        gateway = self._cluster.gateway
        if gateway is None:
            (serves,) = [name for name, weight in weights.items() if weight]
            before = next((name for name, weight in weights.items() if not weight), "")
            self._api.apply(front_switched(self._model, serves, before))
            return
        for route in routes(self._model, self._cluster, gateway, weights):
            self._api.apply(route)
        for body in front_of_gateway(self._model, self._gateway_address()):
            self._api.apply(body)

    def wait_share(self, package: Package, golden: Arrays, percent: int) -> None:
        """Waits until the package's version answers requests through the front according to its share.

        That is all of them at 100 percent, and some but not all of them below.

        Raises:
            CanaryFailed: requests failed.
            Temporary: the data plane did not follow in time.
        """
        deadline = time.monotonic() + _SETTLE_S
        answered = -1
        while time.monotonic() < deadline:
            try:
                answered = self._count_answers(package, golden)
            except InferenceServerException as error:
                if not _starting(error):
                    raise CanaryFailed(
                        f"a request through the front of {self._model!r} failed: {' '.join(str(error).split())[:300]}",
                        do="What served before has the traffic again; see the pods' logs, then rerun the release.",
                    ) from error
            if answered == _PROBES if percent == 100 else 0 < answered < _PROBES:
                return
            time.sleep(_POLL_S)
        raise Temporary(
            f"{self._model!r} version {package.version} should get {percent} % of the traffic, but after "
            f"{_SETTLE_S:.0f} s it answered {'no request' if answered < 0 else f'{answered} of {_PROBES} requests'}",
            do="Check the routes' status, then try again.",
        )

    def _count_answers(self, package: Package, golden: Arrays) -> int:
        """How many of the probe requests a package's version answered."""
        address, authority = self.address()
        with TritonClient(address, authority=authority) as client:
            row = {spec.name: golden[f"input/{spec.name}"][:1] for spec in package.signature.inputs}
            answers = [client.answering_version(package, row) for _ in range(_PROBES)]
        return answers.count(package.version)

    def address(self) -> tuple[str, str]:
        """The front's gRPC address, and the authority to send there."""
        host = hostnames(self._model, self._cluster)[2]
        if self._cluster.gateway is None:
            return f"{host}:{GRPC}", ""
        return f"{self._gateway_address()}:{GRPC}", host

    def _gateway_address(self) -> str:
        gateway = self._cluster.gateway
        if gateway is None:
            raise Temporary("there is no gateway", do="Set `gateway` in the values.")
        body = self._api.get(GATEWAY, gateway.name, gateway.namespace)
        addresses = (body or {}).get("status", {}).get("addresses", [])
        if not addresses:
            raise Temporary(
                f"gateway {gateway.namespace}/{gateway.name} has no address yet", do="Check the gateway's controller."
            )
        return str(addresses[0]["value"])


def _starting(error: InferenceServerException) -> bool:
    """Whether the front may not know the model yet, because a new route takes a moment to reach the proxies."""
    return error.status() in ("StatusCode.UNIMPLEMENTED", "StatusCode.UNAVAILABLE", "StatusCode.NOT_FOUND")
