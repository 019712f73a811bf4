"""How requests reach the Kubernetes API: in a pod with its service account, elsewhere with the user's kubeconfig.

A pod needs only a token and a certificate, which are read here: the official client would take 21 MB and 0.4 s for
that, in each process of the control plane and in every stage's pod. It is used for kubeconfigs, with their many ways
of logging in.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from shiplift.runtime.base.errors import ClusterUnreachable

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CONNECT_S = 5.0
SILENT_S = 60.0  # between two bytes of an answer
_PAUSE_S = 0.25  # before the second retry of a request; doubled for each one after it
_CONNECTIONS = 16  # kept open: the operator asks from several threads
_REREAD_S = 60.0  # tokens are replaced long before they expire; the official clients use the same period

Headers = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Transport:
    """An API server's address, the connections to it, and `proof`: the headers that authenticate the next request.

    `pool` is a `urllib3.PoolManager`. It retries requests after a pause if the connection breaks or the API server
    asks for it (`Retry-After`), except creations, which must not be sent twice.
    """

    host: str
    pool: Any
    proof: Callable[[], Headers] = dict

    def open(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        headers: Headers | None = None,
        body: bytes | None = None,
        silent_s: float | None = SILENT_S,
    ) -> Any:
        """urllib3's response, with its body unread. `silent_s` may pass between two bytes; None: any time.

        Raises:
            urllib3.exceptions.HTTPError: the connection can't be made, or broke.
        """
        import urllib3  # noqa: PLC0415 - only on use: the command line starts without it

        return self.pool.request(
            method,
            f"{self.host}{path}" + (f"?{urlencode(query)}" if query else ""),
            body=body,
            headers={**(headers or {}), **self.proof()},
            preload_content=False,
            timeout=urllib3.Timeout(connect=_CONNECT_S, read=silent_s),
        )


def connect() -> Transport:
    """The transport of a pod's service account, or of the user's kubeconfig.

    Raises:
        ClusterUnreachable: there is no usable configuration.
    """
    return _of_this_pod() if in_pod() else _of_kubeconfig()


def in_pod() -> bool:
    """Whether this process has a pod's service account."""
    return (_ACCOUNT / "token").is_file()


def retries() -> Any:
    """Which requests are retried, and when: see `Transport`."""
    import urllib3  # noqa: PLC0415

    # Applying or merging the same patch twice changes nothing more. An error's status is the reader's to translate.
    repeatable = urllib3.Retry.DEFAULT_ALLOWED_METHODS | {"PATCH"}
    return urllib3.Retry(3, connect=1, backoff_factor=_PAUSE_S, allowed_methods=repeatable, raise_on_status=False)


def encoded(body: Any) -> bytes:
    """An object as JSON; a date, which YAML reads from unquoted text, becomes that text again."""
    return json.dumps(body, default=_text).encode()


def _text(value: Any) -> str:
    if not isinstance(value, date):
        raise TypeError(f"a Kubernetes object can't contain a {type(value).__name__}")
    return value.isoformat()


@dataclass(kw_only=True)
class _Token:
    """A service account's token. The kubelet replaces the file; the old text is accepted for a while."""

    file: Path
    text: str = ""
    read_at: float = float("-inf")
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def headers(self) -> Headers:
        """The header with the token, which is read again once a minute."""
        with self.lock:
            if time.monotonic() - self.read_at >= _REREAD_S:
                self.text, self.read_at = self.file.read_text().strip(), time.monotonic()
            return {"Authorization": f"Bearer {self.text}"}


def _of_this_pod() -> Transport:
    import urllib3  # noqa: PLC0415

    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "")
    authority, token = _ACCOUNT / "ca.crt", _Token(file=_ACCOUNT / "token")
    if not (host and port and authority.is_file()):
        raise ClusterUnreachable(
            "there is no usable cluster configuration: this pod has a token, but "
            f"{'no certificate of the API server' if host and port else 'not the address of the API server'}",
            do="Leave `enableServiceLinks` and the service account's volume as Kubernetes makes them.",
        )
    pool = urllib3.PoolManager(
        maxsize=_CONNECTIONS, retries=retries(), cert_reqs="CERT_REQUIRED", ca_certs=str(authority)
    )
    return Transport(
        host=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", pool=pool, proof=token.headers
    )


def _of_kubeconfig() -> Transport:
    from kubernetes import client, config  # noqa: PLC0415 - takes 0.4 s and 21 MB, so only on use
    from yaml import YAMLError  # noqa: PLC0415

    settings = client.Configuration()
    settings.retries = retries()
    try:
        config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=settings)
    except (config.ConfigException, OSError, YAMLError, TypeError, AttributeError) as error:  # the last two: odd YAML
        raise ClusterUnreachable(
            f"there is no usable cluster configuration: {' '.join(str(error).split())[:600]}",
            do="Set KUBECONFIG, then try again.",
        ) from error
    official = client.ApiClient(settings)

    def proof() -> Headers:
        headers: dict[str, str] = official.param_serialize("GET", "/", auth_settings=["BearerToken"])[2]
        return {name: value for name, value in headers.items() if name.lower() == "authorization"}

    return Transport(host=settings.host, pool=official.rest_client.pool_manager, proof=proof)
