"""Settings of Sphinx: `make docs` builds these pages, and any warning ends the build."""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from docs.generator import pages  # noqa: E402 - found through the line above

project = "Shiplift"
author = "Shiplift's authors"
extensions = ["myst_parser"]
exclude_patterns = ["_build", "generator"]
myst_heading_anchors = 3
nitpicky = True
html_theme = "furo"
html_title = "Shiplift"
html_copy_source = False
html_show_sphinx = False


def take_from_code(_app: Any, _page: str, source: list[str]) -> None:
    """Puts the parts that are written out of the code into a page."""
    source[0] = pages.expanded(source[0])


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", take_from_code)
