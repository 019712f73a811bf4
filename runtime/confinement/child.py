"""A confined function: it confines itself, imports, waits for a request, runs, and sends the result to its parent.

Confinement comes first, while this process has one thread. Libraries start threads on import, and a thread that was
started before confinement stays unrestricted: hostile code could make it act on its behalf.
"""

import contextlib
import importlib
import json
import os
import resource
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from shiplift.runtime.base.errors import ExportFailed, SandboxLimit, ShipliftError
from shiplift.runtime.base.patience import impatient
from shiplift.runtime.base.progress import listening
from shiplift.runtime.confinement.init import EXIT_CODE, confine
from shiplift.runtime.confinement.messages import ANSWER_BATCHES, Sender
from shiplift.runtime.confinement.policy import ConfinementPolicy
from shiplift.runtime.guest.fronts.panics import panicked

_RUN_IT = "Run the model locally to see what it does."
_HEADROOM_MB = 1024  # the model does not pay for the private pages of shared libraries and for thread stacks


def main(start: dict[str, Any]) -> None:
    """Runs one request.

    `start` has `policy`, `entry` (`module:function`), `preload`, and two descriptors: `answer`, and `set_up`, to which
    the processes above the model's code report which mechanisms hold. The request has `arguments`, `memory_mb`,
    `cpu_s`, `file_mb` and `answer_s`. Lines before it may have `expect`, a key of the entry's PRELOAD_FOR, and
    `rehearse`. With `rehearse`, the entry module's function of that name runs the coming task on something small.
    """
    policy = ConfinementPolicy.from_json(start["policy"])
    held = confine(policy, _refusing(start["set_up"]), close=(start["set_up"], start["answer"]))
    _tell(start["set_up"], {"missing": held.missing, "landlock_abi": held.landlock_abi})
    os.close(start["set_up"])  # the code that runs from here on can't change it
    os.chdir(policy.write[0])
    module, _, name = start["entry"].partition(":")
    loaded = importlib.import_module(module)
    if start["preload"]:
        _preload(getattr(loaded, "PRELOAD", ()))
    function = getattr(loaded, name)
    for line in sys.stdin:  # ends without a request if the parent ended or has none
        message = json.loads(line)
        if "expect" not in message:
            _run(function, message, Sender(start["answer"]))
            break
        _preload(getattr(loaded, "PRELOAD_FOR", {}).get(message["expect"], ()))
        if message.get("rehearse"):
            _rehearse(getattr(loaded, "rehearse", None), message["expect"])


def _run(function: Any, request: dict[str, Any], sender: Sender) -> None:
    _limit(request["memory_mb"], request["cpu_s"], request["file_mb"])
    impatient(request["answer_s"], lambda reason: _give_up(sender, reason))
    try:
        with listening(sender.progress):
            sender.value(function(**request["arguments"]))
    except ShipliftError as error:
        sender.error(error)
    except BaseException as error:
        if not panicked(error):
            raise
        sender.error(ExportFailed(f"a library that the model uses panicked: {error}", do=_RUN_IT))


def _give_up(sender: Sender, reason: str) -> NoReturn:
    """Ends the process from a thread beside the one that a model keeps busy."""
    sender.error(SandboxLimit(f"the model {reason}", do=ANSWER_BATCHES))
    os._exit(0)


def _leave() -> NoReturn:
    """Ends the process at once: tearing down a framework's modules can take longer than the request itself."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def _limit(memory_mb: int, cpu_s: int, file_mb: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))  # SIGXCPU tells the parent why; SIGKILL comes later
    resource.setrlimit(resource.RLIMIT_DATA, ((memory_mb + _HEADROOM_MB) << 20,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_mb << 20,) * 2)


def _preload(names: Sequence[str]) -> None:
    """Imports the modules that the entry will need, if they are installed, before a request waits for them."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _rehearse(rehearse: Any, flavor: str) -> None:
    """Runs a rehearsal. Its failures are ignored: the real request may succeed, or reports its own error."""
    with contextlib.suppress(Exception):
        if rehearse:
            rehearse(flavor)


def _refusing(descriptor: int) -> Any:
    def refuse(mechanism: str, why: str) -> NoReturn:
        _tell(descriptor, {"refused": mechanism, "why": why})
        os._exit(EXIT_CODE)

    return refuse


def _tell(descriptor: int, message: dict[str, Any]) -> None:
    os.write(descriptor, json.dumps(message).encode())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    _leave()
