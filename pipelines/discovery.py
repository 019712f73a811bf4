"""For Python programs: where a model answers (`shiplift.discover`), and where to register one (`tracking_uri`)."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from shiplift.pipelines.choices import EngineName
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.table import choose
from shiplift.pipelines.settings import resolved
from shiplift.runtime.base.errors import StackDown, UsageError
from shiplift.runtime.serving.discovery import ServedModel, by_dns


def discover(
    model: str,
    *,
    engine: EngineName | None = None,
    namespace: str | None = None,
    home: Path | str | None = None,
    serving_namespace: str = "",
) -> ServedModel:
    """Where a model answers, which version serves, and what it takes.

    `discover("digits").infer({"input": x})` sends it a request.

    `engine`, `namespace` and `home` mean the same as for the command, with the same defaults (`SHIPLIFT_ENGINE`, ...).
    On a cluster, this reads the operator's ConfigMap with KUBECONFIG or the pod's service account. A pod whose account
    may not read it passes `serving_namespace` instead, and calls the model by its DNS name.

    Raises:
        NotFound: production does not serve the model, or the model has no address outside the cluster.
        UsageError: an option or a variable has an invalid value.
        StackDown, ClusterRefused, ClusterUnreachable, Temporary: the stack or the cluster could not be asked.
    """
    if serving_namespace:
        return by_dns(model, serving_namespace)
    return choose(resolved(engine=engine, namespace=namespace, home=home)).discover(model)


def tracking_uri(*, home: Path | str | None = None) -> str:
    """The address of the MLflow whose registered versions are released: MLFLOW_TRACKING_URI, else the running stack's.

    `home` means the same as for the command, with the same default.

    Raises:
        UsageError: MLFLOW_TRACKING_URI names files of this machine, which other machines can't read.
        StackDown: MLFLOW_TRACKING_URI is not set, and no stack runs in the home.
    """
    if named := os.environ.get("MLFLOW_TRACKING_URI", ""):
        return _server(named)
    root = resolved(home=home).root
    try:
        return stack.require(root).registry_uri
    except StackDown as down:
        raise StackDown(
            down.what,
            do="Run `shiplift up` in this folder, or name the folder of a running stack (SHIPLIFT_HOME), or another "
            "MLflow server (MLFLOW_TRACKING_URI).",
        ) from down


def _server(uri: str) -> str:
    """The URI, if it names a server: what is registered in a file or a local database is never released.

    Raises:
        UsageError: it does not.
    """
    if urlsplit(uri).scheme in ("http", "https"):
        return uri
    raise UsageError(
        f"MLFLOW_TRACKING_URI is {uri!r}, which is not a server: a model registered there is never released",
        do="Unset it to use the running stack, or set it to the address of MLflow that `shiplift status` prints.",
    )
