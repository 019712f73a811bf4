"""Loads the member models of a package, such as a pipeline's members, into a Triton server beside all that it serves.

Their names have the bundle's digest in them, so one that the server has already is the same. None is ever reloaded:
that would unload an ensemble which uses it.
"""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.repository import install


def load_member_models(client: TritonClient, tree: Path, repository: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Loads the models of a fetched package that the server does not have yet, in this order; returns their names.

    Raises:
        ServerFailed: Triton can't load one; none of them stays.
    """
    wanted = tuple(names)
    loaded = client.loaded() if wanted else {}
    new: list[str] = []
    try:
        for name in wanted:
            if name not in loaded:
                new.append(name)
                install(tree, repository, source=name, name=name)
                client.load(name)
    except ShipliftError:
        drop_models(client, repository, new)
        raise
    return tuple(new)


def drop_models(client: TritonClient, repository: Path, names: Sequence[str]) -> None:
    """Unloads models that nothing calls any more, last loaded first, and removes their files; repeating is harmless."""
    for name in reversed(names):
        client.unload(name)
        shutil.rmtree(repository / name, ignore_errors=True)
