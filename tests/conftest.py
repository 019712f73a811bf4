"""One option and one fixture: generated text is compared with a golden file, which `make golden` writes anew.

And one rule: in a checkout a room could be imported by its bare name, in an installation it can't. Here neither.
"""

import difflib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).with_name("golden")

for room in ("pipelines", "runtime", "steps", "templates"):
    sys.modules[room] = None  # type: ignore[assignment] # an import of it fails, a name in a string included


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the golden files instead of comparing.")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with `tests/golden/NAME`."""

    def compare(name: str, text: str) -> None:
        file = FOLDER / name
        if request.config.getoption("--update-golden"):
            file.write_text(text)
        kept = file.read_text() if file.is_file() else ""
        if text != kept:
            changed = difflib.unified_diff(kept.splitlines(), text.splitlines(), f"golden/{name}", "now", lineterm="")
            pytest.fail("\n".join([*changed, "If the change is meant, run `make golden`."]), pytrace=False)

    return compare
