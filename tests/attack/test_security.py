"""SECURITY.md names tests that exist: a promise without its attack is a wish."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_security_md_names_is_there() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    table = text[text.index("## What Shiplift promises") : text.index("## What holds on which kernel")]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines() if row.startswith("| ")]
    assert len(rows) > 20
    assert all(len(row) == 4 for row in rows)
    for row in rows[1:]:
        for name in re.findall(r"`((?:attack|unit|integration|cluster)/[\w/.]+)`", row[2]):
            inner = name.replace("unit/", "unit/runtime/", 1) if name.startswith("unit/") else name
            assert any((ROOT / "tests" / path).exists() for path in (name, inner)), name
