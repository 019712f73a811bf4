"""The secrets of a stack, in one file that only its owner can read, and signatures made with them.

Model authors can write to their own runs in the registry, so records stored there are signed: otherwise a forged
"passed" would be a cache hit.
"""

import hashlib
import hmac
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from shiplift.runtime.base.storage import write_atomically

FILE = "secrets.json"


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """`webhook` signs deliveries, `ledger` signs records, `mlflow` encrypts webhook secrets in MLflow's database."""

    webhook: str
    ledger: str
    mlflow: str


def load_secrets(home: Path) -> Secrets:
    """The secrets of a home, created on first use."""
    file = home / FILE
    if not file.is_file():
        from cryptography.fernet import Fernet  # noqa: PLC0415 - once per home

        created = Secrets(
            webhook=secrets.token_urlsafe(32), ledger=secrets.token_urlsafe(32), mlflow=Fernet.generate_key().decode()
        )
        home.mkdir(parents=True, exist_ok=True)
        partial = home / f".{FILE}.{os.getpid()}"
        write_atomically(partial, json.dumps(asdict(created)), mode=0o600)
        try:
            os.link(partial, file)  # fails if another process was first: its secrets win
        except FileExistsError:
            pass
        finally:
            partial.unlink()
    return Secrets(**json.loads(file.read_text()))


def sign(secret: str, *parts: str) -> str:
    """HMAC-SHA256 (RFC 2104) over the parts, each preceded by its length, as hex."""
    body = b"".join(len(part).to_bytes(8, "big") + part for part in map(_bytes, parts))
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def signed_by(secret: str, signature: str, *parts: str) -> bool:
    """Whether `signature` is the parts' signature, compared in constant time."""
    return hmac.compare_digest(sign(secret, *parts).encode(), _bytes(signature))


def _bytes(text: str) -> bytes:
    """Encodes any text at all: the signed parts and the alleged signature may come from a forger."""
    return text.encode(errors="surrogatepass")
