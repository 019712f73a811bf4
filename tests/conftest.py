"""Golden files: the `golden` fixture compares generated text with a file, and `make golden` rewrites those files.

Tests also can't import a room by its bare name: that works in a checkout, but not in an installation. And no property
test fails because an example took long: speed is compared in `benchmarks/`. Property tests try few examples every day,
and many in `make test-all`, which sets HYPOTHESIS_PROFILE=long.
"""

import difflib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

FOLDER = Path(__file__).with_name("golden")

os.environ |= {"DO_NOT_TRACK": "1", "PROMPTFOO_DISABLE_TELEMETRY": "1"}  # modelaudit's, where a test calls it itself

for room in ("pipelines", "runtime", "steps", "templates"):
    sys.modules[room] = None  # type: ignore[assignment] # every import of it fails, by a string too

# The same examples every day, so that a landing never hangs on luck; the long profile draws new ones.
settings.register_profile("everyday", deadline=None, max_examples=20, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=200)
# Parsers of foreign bytes: HYPOTHESIS_PROFILE=million pytest tests/attack/test_parsers.py takes hours.
settings.register_profile("million", deadline=None, max_examples=1_000_000, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "everyday"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the golden files instead of comparing.")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares text with `tests/golden/NAME`."""

    def compare(name: str, text: str) -> None:
        file = FOLDER / name
        if request.config.getoption("--update-golden"):
            file.write_text(text)
        expected = file.read_text() if file.is_file() else ""
        if text != expected:
            changed = difflib.unified_diff(
                expected.splitlines(), text.splitlines(), f"golden/{name}", "now", lineterm=""
            )
            pytest.fail("\n".join([*changed, "If the change is meant, run `make golden`."]), pytrace=False)

    return compare
