"""The packages of the bundled server's environment with their versions: a file for pip, and a look-up for our code."""

import re
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def pinned(package: str) -> str:
    """The version of a package in the environment; empty if the environment lacks it."""
    match = re.search(rf"^{re.escape(package)}==(\S+)$", REQUIREMENTS.read_text(), re.MULTILINE)
    return match.group(1) if match else ""
