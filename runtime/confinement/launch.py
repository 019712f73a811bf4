"""Confines itself, then becomes a given program: how servers and services are started.

    python -I -m shiplift.runtime.confinement.launch POLICY-JSON -- PROGRAM [ARGUMENT ...]

POLICY-JSON is `Policy.to_json()`. Standard input, output and error, the environment and the working directory are the
program's. The process passes signals on and ends the way the program does; what the program left is killed. Where the
kernel refuses confinement it prints why and ends with exit code 50; 64 if the command line is wrong, 127 if the
program can't be started.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from shiplift.runtime.confinement.init import EXIT_CODE, advice, confine
from shiplift.runtime.confinement.policy import ConfinementPolicy

_USAGE, _NO_PROGRAM = 64, 127


def launch_command(policy: ConfinementPolicy, program: Sequence[str]) -> list[str]:
    """The command that starts `program` confined by `policy`, from this interpreter's environment."""
    return [sys.executable, "-I", "-m", __name__, policy.to_json(), "--", *program]


def main(arguments: Sequence[str]) -> NoReturn:
    """Confines this process and starts the program."""
    try:
        text, dashes, *program = arguments
        policy = ConfinementPolicy.from_json(text)
        if dashes != "--" or not program:
            raise ValueError("no program")
    except (TypeError, ValueError) as error:
        _end(f"usage: launch POLICY-JSON -- PROGRAM [ARGUMENT ...] ({error})", _USAGE)
    confine(policy, _refuse)
    try:
        os.execvp(program[0], program)  # noqa: S606 - no shell
    except OSError as error:
        _end(f"{program[0]} can't be started: {error.strerror}", _NO_PROGRAM)


def _refuse(mechanism: str, why: str) -> NoReturn:
    _end(f"not confined: {mechanism}: {why}. {advice(mechanism)}", EXIT_CODE)


def _end(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
