"""What the bundled server's environment installs, by name and version: a file that pip reads, and others ask."""

import re
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def pinned(package: str) -> str:
    """The version of a package in the environment; empty: it has none."""
    match = re.search(rf"^{re.escape(package)}==(\S+)$", REQUIREMENTS.read_text(), re.MULTILINE)
    return match.group(1) if match else ""
