"""The secrets of a stack, in one file that only its owner can read, and signatures made with them.

Model authors can write to their own runs in the registry. Records that are stored there are signed, because a forged
"passed" would otherwise be a cache hit.
"""

import hashlib
import hmac
import json
import os
import secrets
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from shiplift.runtime.base.errors import HomeNotPrivate
from shiplift.runtime.base.storage import write_atomically

FILE = "secrets.json"


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """`webhook` signs deliveries, `ledger` signs records, `mlflow` encrypts webhook secrets in MLflow's database."""

    webhook: str
    ledger: str
    mlflow: str


def make_private(home: Path) -> None:
    """Creates a home that only its owner can enter, or restricts an existing one; its secrets too.

    Raises:
        HomeNotPrivate: another user owns it, or others could write to it and may have left files there.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = home.stat()
    mode = stat.S_IMODE(state.st_mode)
    if state.st_uid != os.getuid() or mode & 0o022:
        why = f"belongs to user {state.st_uid}" if state.st_uid != os.getuid() else "can be written by others"
        raise HomeNotPrivate(
            f"{home} {why} (mode {mode:04o})",
            do=f"Look at what is in it, then run `chmod 700 {home}`, or choose another folder with --home.",
        )
    for path, private in ((home, 0o700), (home / FILE, 0o600)):
        if path.exists() and stat.S_IMODE(path.stat().st_mode) != private:
            path.chmod(private)


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
            os.link(partial, file)  # fails if another process was faster, whose secrets then win
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
    """Encodes any text: the signed parts and the alleged signature may come from a forger."""
    return text.encode(errors="surrogatepass")
