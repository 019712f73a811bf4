"""Where a deployment target is: which engine its URI names, and the text that explains it."""

import os
from typing import Any
from urllib.parse import urlsplit

from shiplift.pipelines.engines.protocol import Engine
from shiplift.pipelines.engines.table import ENGINES, choose
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.errors import UsageError

HELP = """
Shiplift releases versions of registered models to production on Triton: it converts them, proves that they answer as
mlflow.pyfunc does, tunes, load-tests and judges them. A deployment is a registered model; what it serves is the version
that was promoted last.

Targets:
  shiplift                   the engine that SHIPLIFT_ENGINE names (local), with the stack in SHIPLIFT_HOME (.shiplift)
  shiplift:/local            this machine's stack (`shiplift up`)
  shiplift:/argo[/NAMESPACE] a cluster (`shiplift install`), with KUBECONFIG

  mlflow deployments create -t shiplift --name digits -m models:/digits/3
  mlflow deployments predict -t shiplift --name digits -I request.json

The registry is Shiplift's: set MLFLOW_TRACKING_URI to it (`shiplift status` prints the address). A model URI that names
no version of the deployment's own model, such as runs:/RUN/model or models:/other/1, is registered as its next version.

Settings (-C name=value):
  spec=FILE         a release spec; by default the one that was logged with the version
  again=true        release the version even if its release ended before
  allow_older=true  release the version even if a newer one serves
  wait=false        return at once, while the release goes on

`delete` is `shiplift retire`: the model is taken out of service, and only a new release brings it back. It is refused
while clients send requests, unless -C force=true is given; -C reason=TEXT says why. `shiplift rollback MODEL` serves
the previous version instead.
"""


def engine_of(target_uri: str) -> Engine:
    """The engine of a target.

    Raises:
        UsageError: there is no such engine.
    """
    name, _, namespace = urlsplit(target_uri).path.removeprefix("shiplift").strip("/").partition("/")
    if name and name not in ENGINES:
        raise UsageError(f"{target_uri!r} names no engine", do=f"Write shiplift, or shiplift:/{'|'.join(ENGINES)}.")
    options: dict[str, Any] = {"engine": name, "namespace": namespace}
    return choose(Settings(**{key: value for key, value in options.items() if value}))


def start_stack() -> None:
    """Starts this machine's stack, with the registry that MLFLOW_TRACKING_URI names if that is a server."""
    from shiplift.pipelines.engines.local import stack  # noqa: PLC0415 - a cluster needs none

    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    stack.up(Settings(**({"registry_uri": uri} if uri.startswith("http") and not _running() else {})))  # type: ignore[arg-type]


def _running() -> bool:
    from shiplift.pipelines.engines.local import stack  # noqa: PLC0415

    return stack.read(Settings().root) is not None
