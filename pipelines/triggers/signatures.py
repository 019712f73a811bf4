"""Whether a delivery is genuine: four senders' schemes, each against any of several secrets, compared in constant time.

Several, because a secret is replaced while deliveries signed with the old one are under way. MLflow and newer GitLabs
sign id, time and body (standardwebhooks.com); GitHub signs the body; older GitLabs send the secret itself.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping

MAX_AGE_S = 300
SIGNING_TOKEN = "whsec_"  # noqa: S105 - what GitLab's and other senders' signing tokens begin with
Refusal = tuple[int, str]


def check_mlflow(secrets: Iterable[str], headers: Mapping[str, str], body: bytes, *, now: float) -> Refusal | None:
    """Why a delivery is refused, as an HTTP status and a sentence; None: it is genuine and fresh."""
    names = ("x-mlflow-delivery-id", "x-mlflow-timestamp", "x-mlflow-signature")
    return _check_standard([secret.encode() for secret in secrets], names, headers, body, now)


def check_github(secrets: Iterable[str], headers: Mapping[str, str], body: bytes) -> Refusal | None:
    """The same, of a delivery of GitHub's. Its signature covers no time: what it starts must bear repetition."""
    given = headers.get("x-hub-signature-256", "")
    if not given:
        return 401, "the delivery is not signed"
    rights = [f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}" for secret in secrets]
    return None if _any_equal(rights, [given]) else (401, "the signature does not match")


def check_gitlab(secrets: Iterable[str], headers: Mapping[str, str], body: bytes, *, now: float) -> Refusal | None:
    """The same, of a delivery of GitLab's: signed where a secret is a signing token, with a plain token otherwise."""
    known = list(secrets)
    tokens = [secret for secret in known if not secret.startswith(SIGNING_TOKEN)]
    if _any_equal(tokens, [headers.get("x-gitlab-token", "")]):
        return None
    if headers.get("webhook-signature"):
        keys = [key for secret in known if (key := _signing_key(secret))]
        names = ("webhook-id", "webhook-timestamp", "webhook-signature")
        return _check_standard(keys, names, headers, body, now)
    if headers.get("x-gitlab-token"):
        return 401, "the token does not match"
    return 401, "the delivery is not signed"


def _check_standard(
    keys: Iterable[bytes], names: tuple[str, str, str], headers: Mapping[str, str], body: bytes, now: float
) -> Refusal | None:
    """`v1,` and base64 of HMAC-SHA256 over `id.time.body`; one right signature among several is enough."""
    delivery, sent, given = (headers.get(name, "") for name in names)
    if not (delivery and sent and given):
        return 401, "the delivery is not signed"
    digests = (hmac.new(key, f"{delivery}.{sent}.".encode() + body, hashlib.sha256).digest() for key in keys)
    if not _any_equal([f"v1,{base64.b64encode(digest).decode()}" for digest in digests], given.split()):
        return 401, "the signature does not match"
    if not (sent.isdecimal() and len(sent) <= 12) or abs(now - int(sent)) > MAX_AGE_S:
        return 409, f"the delivery is older than {MAX_AGE_S} s: it was replayed, or clocks differ"
    return None


def _signing_key(secret: str) -> bytes:
    """The key in a signing token; empty for what is none."""
    if not secret.startswith(SIGNING_TOKEN):
        return b""
    try:
        return base64.b64decode(secret.removeprefix(SIGNING_TOKEN), validate=True)
    except binascii.Error:
        return b""


def _any_equal(rights: list[str], given: list[str]) -> bool:
    """Whether one of `given` is one of `rights`; all pairs are compared, so that time says nothing of which."""
    equal = [hmac.compare_digest(right.encode(), one.encode()) for right in rights for one in given if right]
    return any(equal)
