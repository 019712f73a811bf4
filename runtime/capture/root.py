"""Where a machine keeps captured rows. What only asks for the place must not wait for PyArrow."""

from pathlib import Path


def root_of(home: Path) -> Path:
    """The folder with a home's captured rows, which has one for each model by served name."""
    return home / "production" / "captured"
