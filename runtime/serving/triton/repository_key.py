"""The key that loads and unloads models in a server on this machine.

Every account of a machine reaches its loopback, so Triton's API for its repository asks for a key. It lies beside the
repository, readable by its owner alone, where no confined process reads. The server gets it in its environment, which
others can't read, as they can a command line: `backends/requests` puts it where Triton expects it.
"""

import secrets
from pathlib import Path

from shiplift.runtime.base.storage import write_atomically

VARIABLE = "SHIPLIFT_REPOSITORY_KEY"
_FILE = "repository.key"


def make_key(repository: Path) -> str:
    """The key of the server over a repository, which is made first if there is none."""
    if not (key := key_of(repository)):
        key = secrets.token_hex(16)
        write_atomically(_file(repository), key, mode=0o600)
    return key


def key_of(repository: Path) -> str:
    """The key of the server over a repository; empty if it has none, because an earlier version started it."""
    try:
        return _file(repository).read_text()
    except FileNotFoundError:
        return ""


def _file(repository: Path) -> Path:
    return repository.parent / _FILE
