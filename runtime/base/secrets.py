"""The few secrets of a stack, in one file that only its owner reads; and signatures made with them.

Authors of models can write to their own runs in the registry. A record kept there is therefore signed, or a forged
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
    """The secrets of a home, made on first use."""
    file = home / FILE
    if not file.is_file():
        from cryptography.fernet import Fernet  # noqa: PLC0415 - once per home

        made = Secrets(
            webhook=secrets.token_urlsafe(32), ledger=secrets.token_urlsafe(32), mlflow=Fernet.generate_key().decode()
        )
        home.mkdir(parents=True, exist_ok=True)
        partial = home / f".{FILE}.{os.getpid()}"
        write_atomically(partial, json.dumps(asdict(made)), mode=0o600)
        try:
            os.link(partial, file)  # fails if another process was first: then its secrets count
        except FileExistsError:
            pass
        finally:
            partial.unlink()
    return Secrets(**json.loads(file.read_text()))


def sign(secret: str, *parts: str) -> str:
    """HMAC-SHA256 (RFC 2104) over the parts, each preceded by its length, as hex."""
    body = b"".join(len(one).to_bytes(8, "big") + one for one in map(_bytes, parts))
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def signed_by(secret: str, signature: str, *parts: str) -> bool:
    """Whether `signature` is that of the parts, compared in constant time."""
    return hmac.compare_digest(sign(secret, *parts).encode(), _bytes(signature))


def _bytes(text: str) -> bytes:
    """Any text at all: what is signed, or said to be a signature, may come from a forger."""
    return text.encode(errors="surrogatepass")
