"""Runs attacks in a real sandbox, with everything that holds, or without one layer of it.

A layer is switched off in the sandbox's own process, before that confines itself: the product has no such switch.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from shiplift.runtime.confinement.policy import CONVERT, WAIVABLE, ConfinementPolicy, Entry, SandboxLimits
from shiplift.runtime.confinement.sandbox import Sandbox
from tests.unit.runtime.confinement.attacks import PRELUDE

# What the process does instead of one layer. "rlimits" are the limits that the kernel keeps for a process.
LAYERS = {
    "namespaces": "namespaces.enter = refuse",
    "mounts": "namespaces.arrange_mounts = lambda policy: ('switched off', 'switched off')",
    "landlock": "landlock.restrict = refuse",
    "seccomp": "seccomp.restrict = refuse",
    "rlimits": "init._limit = lambda *_: None; child._limit = lambda *_: None",
}
_WITHOUT = """
import json, sys
from shiplift.runtime.confinement import child, init, landlock, namespaces, seccomp

def refuse(*_, **__):
    raise OSError("switched off")

{layer}
child.main(json.loads(sys.argv[1]))
child._leave()
"""
_TRIES = """
import signal

def at(path):
    return path.format(SECRETS=SECRETS, MODEL=MODEL, LAST=os.path.basename(SECRETS))

def sending():
    one, other = pair('SOCK_STREAM')
    kept.append(other)
    return one

def receiving():
    one, other = pair('SOCK_STREAM')
    kept.append(one)
    one.send(b'xx')
    return other

def too_long(*_):
    raise OSError("it takes too long")

kept, outcomes, scope = [], {}, {**globals(), **locals()}
scope.update(kept=kept, pair=pair)
os.symlink(SECRETS + "/secret", "link")
signal.signal(signal.SIGALRM, too_long)
for number in (1, 2, 3, 6, 10, 12, 13, 14, 15, 16, 17, 18, 23, 29, 31):
    if number not in (14, 17):
        signal.signal(number, signal.SIG_IGN)
for name, attempt in CODE.items():
    print("tries", name, flush=True)
    signal.alarm(5)
    try:
        exec(attempt, dict(scope))
    except Exception as error:
        outcomes[name] = f"{type(error).__name__}: {error}"
    except BaseException as error:
        outcomes[name] = f"ended by {error!r}"
    else:
        outcomes[name] = "done"
    signal.alarm(0)
open("outcomes", "w").write(json.dumps(outcomes))
"""


@dataclass(frozen=True)
class Place:
    """A folder with a model that the sandbox may read, secrets that it may not, and a neighbour's processes."""

    folder: Path

    def run(self, attacks: dict[str, str], *, without: str = "", policy: ConfinementPolicy = CONVERT) -> dict[str, str]:
        """What each attack met; "done" if nothing stopped it. `without`: layers that are switched off."""
        names = {
            "SECRETS": str(self.folder / "secrets"),
            "SECRET": "600.0815",
            "MODEL": str(self.folder / "model"),
            "SHARED": str(self.folder / "secrets"),
            "FILE": str(self.folder / "secrets" / "secret"),
            "NAMED": str(self.folder / "named"),
            "ABSTRACT": f"\0shiplift-{os.getpid()}",
            "NAMESPACE": os.readlink("/proc/self/ns/net"),  # noqa: PTH115
            "OURS": os.getpid(),
            "PRODUCTION": os.getppid(),
            "CODE": attacks,
        }
        code = PRELUDE + "".join(f"{name} = {value!r}\n" for name, value in names.items()) + _TRIES
        work = self.folder / "work"
        allowed = WAIVABLE if without else ()
        with _without(without):
            box = Sandbox(
                Entry("timeit:timeit"),
                read=[self.folder / "model"],
                work=work,
                policy=replace(policy, allow_without=allowed),
            )
        limits = SandboxLimits(memory_mb=1024, timeout_s=120, file_mb=64)
        with contextlib.closing(box):
            box.run({"stmt": code, "number": 1}, limits)
        outcomes: dict[str, str] = json.loads((work / "outcomes").read_text())
        return outcomes


@contextlib.contextmanager
def place(folder: Path) -> Iterator[Place]:
    """A place for attacks, with what they are after."""
    for name in ("model", "secrets"):
        (folder / name).mkdir()
    (folder / "model" / "weights").write_text("weights")
    (folder / "secrets" / "secret").write_text("secret")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as named:
        named.bind(str(folder / "named"))
        yield Place(folder)


@contextlib.contextmanager
def _without(layers: str) -> Iterator[None]:
    """Sandboxes that start within the context do so without these layers."""
    if not layers:
        yield
        return
    start = subprocess.Popen
    program = _WITHOUT.replace("{layer}", "\n".join(LAYERS[layer] for layer in layers.split()))

    def started(command: list[str], **options: object) -> object:
        assert command[:4] == [sys.executable, "-I", "-m", "shiplift.runtime.confinement.child"]
        return start([sys.executable, "-I", "-c", program, command[4]], **options)  # type: ignore[call-overload]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", started)
        yield
