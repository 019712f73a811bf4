"""How an MLflow server is reached, from the same variables that MLflow's own client reads.

They are MLFLOW_TRACKING_TOKEN, _USERNAME, _PASSWORD, _SERVER_CERT_PATH, _CLIENT_CERT_PATH and _INSECURE_TLS, and
MLFLOW_HTTP_REQUEST_TIMEOUT, _MAX_RETRIES and _BACKOFF_FACTOR. No other module reads them.
"""

import base64
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import certifi

from shiplift.runtime.base.errors import UsageError

SERVER_CERTIFICATE = "MLFLOW_TRACKING_SERVER_CERT_PATH"
CLIENT_CERTIFICATE = "MLFLOW_TRACKING_CLIENT_CERT_PATH"
TIMEOUT, RETRIES, BACKOFF = (f"MLFLOW_HTTP_REQUEST_{name}" for name in ("TIMEOUT", "MAX_RETRIES", "BACKOFF_FACTOR"))
N = TypeVar("N", int, float)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RequestSettings:
    """How long a request may take, and how often it is repeated.

    `timeout_s` is the longest time between two bytes of an answer, `pause_s` the time before the first repetition; it
    doubles before each later one. The defaults are shorter than MLflow's, which add up to half an hour.
    """

    timeout_s: float = 60.0
    repeats: int = 2
    pause_s: float = 1.0

    def within(self, timeout_s: float) -> "RequestSettings":
        """These settings for a caller that waits no longer than `timeout_s` and repeats requests by itself."""
        return replace(self, timeout_s=min(self.timeout_s, timeout_s), repeats=0)


def read_settings() -> RequestSettings:
    """Reads the settings from this process's environment.

    Raises:
        UsageError: a variable is not a number of zero or more.
    """
    return RequestSettings(
        timeout_s=_number(TIMEOUT, float, RequestSettings.timeout_s),
        repeats=_number(RETRIES, int, RequestSettings.repeats),
        pause_s=_number(BACKOFF, float, RequestSettings.pause_s),
    )


def mlflow_defaults() -> dict[str, str]:
    """The default settings as variables, for MLflow's own client."""
    return {
        TIMEOUT: f"{RequestSettings.timeout_s:.0f}",
        RETRIES: str(RequestSettings.repeats),
        BACKOFF: f"{RequestSettings.pause_s:.0f}",
    }


def account() -> str:
    """The name of this process's account; empty if there is none."""
    return os.environ.get("MLFLOW_TRACKING_USERNAME", "")


def identity() -> dict[str, str]:
    """The authorization header of this process's account, read anew for each request, since platforms renew tokens.

    As in MLflow's client, an account with its password takes precedence over a token.
    """
    token, password = os.environ.get("MLFLOW_TRACKING_TOKEN"), os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
    if token and not (account() and password):
        return {"Authorization": f"Bearer {token}"}
    if account():
        return {"Authorization": f"Basic {base64.b64encode(f'{account()}:{password}'.encode()).decode()}"}
    return {}


def trusted() -> ssl.SSLContext:
    """The authorities that verify a server's certificate, and this client's own certificate.

    Raises:
        UsageError: a certificate file can't be read.
    """
    file = os.environ.get(SERVER_CERTIFICATE) or certifi.where()
    context = _read(SERVER_CERTIFICATE, file, lambda: ssl.create_default_context(cafile=file))
    if own := os.environ.get(CLIENT_CERTIFICATE):
        _read(CLIENT_CERTIFICATE, own, lambda: context.load_cert_chain(own))
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _read(variable: str, file: str, load: Callable[[], T]) -> T:
    try:
        return load()
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{variable}: {file} can't be read: {error}", do="Fix the variable or the file.") from error


def _number(variable: str, kind: Callable[[str], N], default: N) -> N:
    text = os.environ.get(variable, "")
    try:
        value = kind(text) if text else default
    except ValueError:
        value = kind("-1")
    if not 0 <= value < float("inf"):
        raise UsageError(f"{variable} is {text[:40]!r}, not a number of zero or more", do="Fix or unset the variable.")
    return value
