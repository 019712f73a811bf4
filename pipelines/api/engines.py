"""The engine that a program's call means: as on the command line, by its options, the environment, then defaults."""

from pathlib import Path

from shiplift.pipelines.choices import EngineName
from shiplift.pipelines.engines.protocol import Engine
from shiplift.pipelines.engines.table import choose
from shiplift.pipelines.settings import resolved


def engine_of(engine: EngineName | None, namespace: str | None, home: Path | str | None) -> Engine:
    """The engine.

    Raises:
        UsageError: an option or a variable has an invalid value.
    """
    return choose(resolved(engine=engine, namespace=namespace, home=home))
