"""Confines itself, then becomes a given program. Servers and services start this way.

    python -I -m shiplift.runtime.confinement.launch POLICY-JSON -- PROGRAM [ARGUMENT ...]

POLICY-JSON is `Policy.to_json()`. The program inherits standard input, output and error, the environment and the
working directory. This process passes signals on and ends the way the program does; processes that the program left
behind are killed. If the kernel refuses confinement, it prints the reason and ends with exit code 50. It ends with 64
if the command line is wrong, and with 127 if the program can't be started.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from shiplift.runtime.confinement.init import EXIT_CODE, advice, confine
from shiplift.runtime.confinement.policy import ConfinementPolicy

_USAGE, _NO_PROGRAM = 64, 127


def launch_command(policy: ConfinementPolicy, program: Sequence[str]) -> list[str]:
    """The command that starts `program` under `policy`, with this interpreter's environment."""
    # -I: neither PYTHON variables nor a user's own packages can run code before the confinement.
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
