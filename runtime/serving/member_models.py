"""Loads the member models of a package, such as a pipeline's members, into a Triton server beside its other models.

Their names contain the bundle's digest, so a member that the server already has is the same one. A member is never
reloaded: Triton would unload the ensembles that use it.
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
        ServerFailed: Triton can't load one; those loaded here are unloaded again.
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
    """Unloads models that nothing calls any more, last loaded first, and removes their files. Idempotent."""
    for name in reversed(names):
        client.unload(name)
        shutil.rmtree(repository / name, ignore_errors=True)
