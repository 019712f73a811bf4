"""A cluster's nodes, read once for the catalogue of targets."""

from typing import Any

from shiplift.runtime.base.errors import Temporary

_TIMEOUT_S = (5, 60)


def list_nodes() -> list[dict[str, Any]]:
    """Every node as a dictionary, as in YAML.

    Raises:
        Temporary: there is no cluster to talk to, or it does not let the caller list nodes.
    """
    from kubernetes import client, config  # noqa: PLC0415 - 1 s, paid only by who asks for a cluster
    from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        try:
            config.load_incluster_config()
        except config.ConfigException:
            config.load_kube_config()
        api = client.ApiClient()
        nodes = client.CoreV1Api(api).list_node(_request_timeout=_TIMEOUT_S)
        return [api.sanitize_for_serialization(node) for node in nodes.items]
    except (ApiException, HTTPError, OSError, config.ConfigException) as error:
        raise Temporary(
            f"the cluster's nodes can't be listed: {' '.join(str(error).split())[:300]}",
            do="Check KUBECONFIG, and that you may list nodes (`kubectl auth can-i list nodes`).",
        ) from error
