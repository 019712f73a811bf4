"""The broker of a pod that handles an author's files, from its stage's side. It does everything that needs a secret.

The process that loads or parses such files has no credentials and no key, so there is nothing to steal. A process in
another container of the pod has them, and does for this one only what its stage needs: see
`pipelines.engines.argo.broker.permissions`. It listens on the pod's own loopback address, which a sandbox's network
lacks.
"""

import contextlib
import time
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from shiplift.runtime.base.errors import NotFound, ShipliftError, Temporary
from shiplift.runtime.base.plain_http import NO_AUTHORITIES
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.site import Site

SCHEME, HOST, PORT = "broker", "127.0.0.1", 8010
END, GO_ON = "/end", "/go-on"
FAILED = 422  # the status of a response whose body is a `Failure`
_START_S = 180
_TIMEOUT = httpx.Timeout(600, connect=5)  # the broker may fetch a large model before it answers
_CHUNK = 1 << 20
R = TypeVar("R", bound=Record)


def brokered(site: Site) -> Site:
    """The site of a process with a broker. Requests that need credentials elsewhere go to the broker."""
    return site.model_copy(
        update={
            "registry_uri": f"{SCHEME}://{HOST}:{PORT}",
            "artifacts_uri": f"mlflow-artifacts://{HOST}:{PORT}/shiplift",
            "origin_uri": site.artifacts_uri,
        }
    )


def is_brokered(uri: str) -> bool:
    """Whether a registry's address is a broker's."""
    return uri.startswith(f"{SCHEME}://")


def broker_client(uri: str) -> httpx.Client:
    """An HTTP client of the broker at `uri`."""
    address = f"http://{urlsplit(uri).netloc}"
    return httpx.Client(base_url=address, timeout=_TIMEOUT, trust_env=False, verify=NO_AUTHORITIES)


class Broker:
    """A client of the broker at `uri`.

    Every method raises `Temporary` if the broker does not respond, and otherwise passes on the broker's error.
    """

    def __init__(self, uri: str) -> None:
        self._client = broker_client(uri)

    def wait(self) -> None:
        """Waits until the broker responds. It starts together with the process that needs it.

        Raises:
            Temporary: it does not respond within three minutes.
        """
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self._client.get("/ready", timeout=5).raise_for_status()
            except httpx.HTTPError as error:
                if time.monotonic() > deadline:
                    raise _unavailable(error) from error
                time.sleep(0.1)
            else:
                return

    def end(self) -> None:
        """Tells the broker that its stage has ended. Then it ends well; otherwise Argo may kill it and fail the pod."""
        with contextlib.suppress(httpx.HTTPError):  # it will be ended in any case
            self._client.put(END, timeout=5)

    # --- the record of a stage, as in `runtime.store.ledger` ---

    def get(self, key: str, stage: str, kind: type[R]) -> R | None:
        """The record stored under the stage's own key, or None."""
        answer = self.ask("GET", f"/records/{stage}/{key}")
        return kind.model_validate_json(answer.content) if answer is not None else None

    def put(self, key: str, stage: str, record: Record) -> None:
        """Stores the record of the stage."""
        self.ask("PUT", f"/records/{stage}/{key}", content=record.model_dump_json())

    def go_on(self) -> dict[str, Any] | None:
        """The following fan-out's inputs from elsewhere, as JSON by name; None if it can't run in this pod."""
        answer = self.ask("PUT", GO_ON)
        return dict(answer.json()) if answer is not None else None

    def explain(self, error: NotFound) -> NotFound:
        """The error, or one that says that the version is gone from the registry, if it is."""
        try:
            answer = self.ask("GET", "/explanation", params={"what": error.what, "do": error.do})
        except ShipliftError:
            return error
        if answer is None:
            return error
        explained: dict[str, str] = answer.json()
        return NotFound(explained["what"], do=explained["do"])

    # --- the tuning cache, as in `runtime.store.tuning_cache` ---

    def known(self, name: str) -> Artifact | None:
        """The files stored under a name, or None."""
        answer = self.ask("GET", "/tuning-cache", params={"name": name})
        return Artifact.model_validate_json(answer.content) if answer is not None else None

    def keep(self, name: str, tree: Artifact) -> None:
        """Stores files under a name."""
        self.ask("PUT", "/tuning-cache", params={"name": name}, content=tree.model_dump_json())

    # --- requests ---

    def ask(self, method: str, path: str, **content: Any) -> httpx.Response | None:
        """The broker's response, or None if it has nothing there."""
        try:
            response = self._client.request(method, path, **content)
        except httpx.HTTPError as error:
            raise _unavailable(error) from error
        return response if _checked(response) else None

    def download(self, path: str, to: Path, /, **query: str) -> bool:
        """Downloads a file; False if the broker has nothing there."""
        try:
            with self._client.stream("GET", path, params=query) as response:
                if not response.is_success:
                    response.read()
                if not _checked(response):
                    return False
                to.parent.mkdir(parents=True, exist_ok=True)
                with to.open("wb") as file:
                    for chunk in response.iter_bytes(_CHUNK):
                        file.write(chunk)
        except httpx.HTTPError as error:
            raise _unavailable(error) from error
        return True


def _checked(response: httpx.Response) -> bool:
    """Whether the response has content.

    Raises:
        ShipliftError: the error that the broker met.
        Temporary: its response makes no sense.
    """
    if response.status_code == FAILED:
        try:
            failure = Failure.model_validate_json(response.content)
        except ValidationError as error:
            raise _unavailable(error) from error
        raise failure.error()
    if response.status_code == 404:
        return False
    if response.is_error:
        raise _unavailable(f"it answered {response.status_code} {response.text[:200]}")
    return True


def _unavailable(cause: object) -> Temporary:
    return Temporary(
        f"the pod's broker does not answer: {' '.join(str(cause).split())[:300]}",
        do="See the log of the container `broker`; the stage is tried again.",
    )
