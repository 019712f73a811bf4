"""What an MLflow server's refusals and failures mean, and how to resolve them."""

import ssl
from collections.abc import Iterator

from shiplift.runtime.base.errors import RegistryDenied, ShipliftError, Temporary
from shiplift.runtime.store.mlflow.settings import CLIENT_CERTIFICATE, SERVER_CERTIFICATE

REGISTRY = "the registry"
_CERTIFICATE_WANTED = "certificate required"  # in the text of TLS 1.3's alert, which says it nowhere else


def refused(subject: str, status: int, cause: object, *, server: str = REGISTRY) -> ShipliftError:
    """The error for an unsuccessful HTTP status. 401 and 403 are permanent; any other status may pass."""
    if status == 401:
        return RegistryDenied(
            f"{server} requires the user name and password of an account for {subject}: it answered 401",
            do="Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to those of your account.",
        )
    if status == 403:
        return RegistryDenied(
            f"{server} does not let this account do that: it answered 403 for {subject}",
            do="Use an account with more rights (MLFLOW_TRACKING_USERNAME), or ask its administrator.",
        )
    return unreachable(subject, cause, server=server)


def unreachable(subject: str, cause: object, *, server: str = REGISTRY) -> Temporary:
    """The error for a server that does not respond, or not sensibly; `subject` is what was requested."""
    reason = " ".join(str(cause).split())[:300] or type(cause).__name__
    return Temporary(f"{server} does not answer for {subject}: {reason}", do=_remedy(cause))


def untrusted(cause: object) -> bool:
    """Whether a request failed because no trusted authority signed the server's certificate."""
    return any(isinstance(error, ssl.SSLCertVerificationError) for error in _chain(cause))


def _remedy(cause: object) -> str:
    if untrusted(cause):
        return f"Set {SERVER_CERTIFICATE} to a file with its certificate, or with that of the authority that signed it."
    if any(_CERTIFICATE_WANTED in str(error).lower().replace("_", " ") for error in _chain(cause)):
        return f"Set {CLIENT_CERTIFICATE} to a file with a certificate that it accepts, and the key."
    return "Check that MLflow is up (`shiplift status`), then run the same command again."


def _chain(cause: object) -> Iterator[BaseException]:
    """An error and its causes: httpx raises its own errors for those of `ssl`."""
    error = cause if isinstance(cause, BaseException) else None
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
