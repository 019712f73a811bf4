"""`%shiplift` in notebooks: the releases, as a table, after `%load_ext shiplift`."""

import sys
from typing import Any

from shiplift.pipelines.api.releases import Releases, releases
from shiplift.runtime.base.errors import ShipliftError


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext shiplift` calls with IPython's shell."""
    shell.register_magic_function(shiplift, "line", "shiplift")


def shiplift(line: str) -> Releases | None:
    """The ended releases of all models; `%shiplift digits`: of one. None, and why, if they could not be asked for."""
    try:
        return releases(line.strip() or None)
    except ShipliftError as error:
        sys.stderr.write(f"{error.title}: {error}\n")
        return None
