"""Checks whether a delivery is genuine: the signature schemes of three senders, compared in constant time.

Each sender may have several secrets, because deliveries signed with an old secret may still arrive after it is
replaced. MLflow and newer GitLab versions sign the id, time and body (standardwebhooks.com). GitHub signs the body.
Older GitLab versions send the secret itself.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping

MAX_AGE_S = 300
SIGNING_TOKEN = "whsec_"  # noqa: S105 - the prefix of GitLab's and others' signing tokens
Refusal = tuple[int, str]


def check_mlflow(secrets: Iterable[str], headers: Mapping[str, str], body: bytes, *, now: float) -> Refusal | None:
    """Why a delivery from MLflow is refused, as an HTTP status and a sentence; None if it is genuine and recent."""
    names = ("x-mlflow-delivery-id", "x-mlflow-timestamp", "x-mlflow-signature")
    return _check_standard([secret.encode() for secret in secrets], names, headers, body, now)


def check_github(secrets: Iterable[str], headers: Mapping[str, str], body: bytes) -> Refusal | None:
    """The same for GitHub. Its signature doesn't cover the time, so it can be replayed: callers must be idempotent."""
    signature = headers.get("x-hub-signature-256", "")
    if not signature:
        return 401, "the delivery is not signed"
    valid = [f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}" for secret in secrets]
    return None if _any_equal(valid, [signature]) else (401, "the signature does not match")


def check_gitlab(secrets: Iterable[str], headers: Mapping[str, str], body: bytes, *, now: float) -> Refusal | None:
    """The same for GitLab, which either signs with a signing token or sends a plain token."""
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
    """Checks `v1,` and base64 of HMAC-SHA256 over `id.time.body`; one valid signature among several is enough."""
    delivery, sent, signatures = (headers.get(name, "") for name in names)
    if not (delivery and sent and signatures):
        return 401, "the delivery is not signed"
    digests = (hmac.new(key, f"{delivery}.{sent}.".encode() + body, hashlib.sha256).digest() for key in keys)
    if not _any_equal([f"v1,{base64.b64encode(digest).decode()}" for digest in digests], signatures.split()):
        return 401, "the signature does not match"
    if not (sent.isdecimal() and len(sent) <= 12) or abs(now - int(sent)) > MAX_AGE_S:
        return 409, f"the delivery is older than {MAX_AGE_S} s: it was replayed, or the clocks differ"
    return None


def _signing_key(secret: str) -> bytes:
    """The key in a signing token; empty if the secret is not a signing token."""
    if not secret.startswith(SIGNING_TOKEN):
        return b""
    try:
        return base64.b64decode(secret.removeprefix(SIGNING_TOKEN), validate=True)
    except binascii.Error:
        return b""


def _any_equal(valid: list[str], received: list[str]) -> bool:
    """Whether a received value is valid. Compares all pairs, so that timing does not reveal which one matches."""
    equal = [hmac.compare_digest(value.encode(), other.encode()) for value in valid for other in received if value]
    return any(equal)
