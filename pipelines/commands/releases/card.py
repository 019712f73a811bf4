"""`shiplift card`."""

from pathlib import Path
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, ModelVersion, Namespace


def card(
    name: ModelVersion,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write it to this file. [default: print it]")
    ] = None,
    engine: Engine = None,
    namespace: Namespace = None,
) -> None:
    """Write the model card of a version's newest release, in Hugging Face's format, from what was measured.

    Examples: `shiplift card digits/3`, `shiplift card digits/3 -o README.md`
    """
    from shiplift.runtime.base.errors import UsageError
    from shiplift.runtime.gates.card import card_of

    chosen = edge.engine(engine, namespace)
    report = chosen.report(*edge.version_of(name))
    text = card_of(report, chosen.story(report))
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise UsageError(f"{output} can't be written: {error.strerror}", do="Name another file with -o.") from error
    edge.say(f"wrote {output}")
