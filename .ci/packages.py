"""Installs packages with uv from where pip would take them: in seconds, where pip takes minutes.

    python .ci/packages.py ARGUMENTS     as `pip install ARGUMENTS`, into the environment of this Python

uv reads none of pip's settings, so its indexes, folders of wheels, constraints and certificates are handed over. Where
uv can't be had, or pip has a setting that has no counterpart here, pip installs.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

_CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
_VALUES = {
    "index-url": "--index-url",
    "extra-index-url": "--extra-index-url",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
}
_FLAGS = {"no-index": ["--no-index"], "pre": ["--prerelease", "allow"]}
_VARIABLES = {"cert": "SSL_CERT_FILE", "proxy": "ALL_PROXY", "default-timeout": "UV_HTTP_TIMEOUT"}
_VARIABLES |= {"timeout": _VARIABLES["default-timeout"]}
_WITHOUT_EFFECT = {"cache-dir", "compile", "disable-pip-version-check", "no-cache-dir", "progress-bar", "quiet", "user"}
_WITHOUT_EFFECT |= {"break-system-packages", "no-compile", "no-input", "require-virtualenv", "root-user-action"}


class NotKnownError(Exception):
    """pip has a setting that can't be handed over."""


def counterpart(settings: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """uv's arguments and environment variables for the lines of `pip config list`.

    Raises:
        NotKnownError: a line has no counterpart.
    """
    arguments: list[str] = []
    variables: dict[str, str] = {}
    for line in settings:
        key, _, text = line.partition("=")
        name, value = key.rpartition(".")[2], str(ast.literal_eval(text))
        if name in _VALUES:
            arguments += [word for each in value.split() for word in (_VALUES[name], each)]
        elif name in _FLAGS and value.lower() in ("1", "true", "yes", "on"):
            arguments += _FLAGS[name]
        elif name in _VARIABLES:
            variables[_VARIABLES[name]] = value
        elif name not in _WITHOUT_EFFECT | _FLAGS.keys():
            raise NotKnownError(line)
    return arguments, variables


def _pip(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    return subprocess.run(command, text=True, check=False, stdout=subprocess.PIPE if words[0] == "config" else None)


def _uv(arguments: Sequence[str]) -> bool:
    """Whether uv installed the packages. pip's rule for several indexes is kept: the best version of all of them."""
    try:
        settings, variables = counterpart(_pip("config", "list").stdout.splitlines())
    except (NotKnownError, SyntaxError, ValueError) as error:
        print(f"pip installs, since uv has no counterpart of its setting {error}", file=sys.stderr)
        return False
    if _pip("install", "--quiet", "--constraint", str(_CONSTRAINTS), "uv").returncode:
        return False
    command = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--quiet"]
    command += ["--index-strategy", "unsafe-best-match", *settings, *arguments]
    return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode == 0


def main(arguments: Sequence[str]) -> int:
    """Installs, and returns the exit code."""
    return 0 if _uv(arguments) else _pip("install", "--quiet", "--no-compile", *arguments).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
