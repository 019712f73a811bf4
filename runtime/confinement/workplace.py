"""Folders for sandboxed runs, prepared ahead of time where that saves waiting."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from shiplift.runtime.confinement.policy import ConfinementPolicy, Entry
from shiplift.runtime.confinement.sandbox import Sandbox
from shiplift.runtime.host.folders import ScratchFolder
from shiplift.runtime.records.site import SandboxSettings

_DEFAULTS = SandboxSettings()


class Workplace:
    """A folder for one run. The sandbox reads all of it, and `read`, and writes only to its subfolder `work`."""

    def __init__(self, entry: Entry, root: Path, policy: ConfinementPolicy, *, read: Sequence[Path] = ()) -> None:
        self._scratch = ScratchFolder(root)
        self.folder = self._scratch.path
        self.policy = policy
        self.sandbox = Sandbox(entry, read=[self.folder, *read], work=self.folder / "work", preload=True, policy=policy)

    def close(self) -> None:
        """Closes the sandbox and removes the folder."""
        self.sandbox.close()
        self._scratch.close()


_warm: dict[Entry, Workplace] = {}


def warm(entry: Entry, root: Path, settings: SandboxSettings = _DEFAULTS) -> None:
    """Prepares a workplace ahead of time, so that its imports run while the caller does something else."""
    if entry not in _warm:
        _warm[entry] = Workplace(entry, root, _permitted(entry.policy, settings))


def expect(flavor: str, *, rehearse: bool = False) -> None:
    """Makes the prepared workplaces import what models of this flavor need.

    `rehearse`: they also run their task once on something small. That pays only while no request waits for them.
    """
    for place in _warm.values():
        place.sandbox.expect(flavor, rehearse=rehearse)


def cool() -> None:
    """Closes the prepared workplaces that were never used."""
    while _warm:
        _warm.popitem()[1].close()


@contextmanager
def workplace(
    entry: Entry, root: Path, settings: SandboxSettings = _DEFAULTS, *, read: Sequence[Path] = ()
) -> Iterator[Workplace]:
    """A temporary workplace below `root`, in which `read` can be read too.

    Takes the prepared one if it has the same policy and still runs, and if `read` is empty. `settings` are the site's:
    they say which mechanisms may be missing.
    """
    policy = _permitted(entry.policy, settings)
    place = None if read else _warm.pop(entry, None)
    if place is not None and (place.policy != policy or not place.sandbox.waits):
        place.close()
        place = None
    place = place or Workplace(entry, root, policy, read=read)
    try:
        yield place
    finally:
        place.close()


def _permitted(policy: ConfinementPolicy, settings: SandboxSettings) -> ConfinementPolicy:
    return replace(policy, allow_without=tuple(settings.allow_without))
