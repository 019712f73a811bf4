"""The `shiplift` command: a table of its subcommands, and the error handling that they share.

A subcommand is a function in a file of the same name. Its body imports what it needs, so that `--help` is instant.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.cluster import install, render, uninstall, values
from shiplift.pipelines.commands.releases import (
    abort,
    approve,
    ask,
    cancel,
    gate,
    infer,
    pipeline,
    reject,
    release,
    report,
    rerun,
    retire,
    rollback,
)
from shiplift.pipelines.commands.stack import doctor, down, invocations, logs, open_page, openai, push, status, up
from shiplift.pipelines.commands.start import demo, init, schema, targets
from shiplift.runtime.base.errors import Cancelled, ShipliftError, UsageError

COMMANDS: dict[str, Callable[..., None]] = {
    "up": up.up,
    "down": down.down,
    "status": status.status,
    "open": open_page.open_page,
    "release": release.release,
    "rerun": rerun.rerun,
    "push": push.push,
    "cancel": cancel.cancel,
    "abort": abort.abort,
    "approve": approve.approve,
    "reject": reject.reject,
    "rollback": rollback.rollback,
    "retire": retire.retire,
    "report": report.report,
    "gate": gate.gate,
    "ask": ask.ask,
    "pipeline": pipeline.pipeline,
    "logs": logs.logs,
    "infer": infer.infer,
    "openai": openai.openai,
    "invocations": invocations.invocations,
    "install": install.install,
    "render": render.render,
    "uninstall": uninstall.uninstall,
    "values": values.values,
    "init": init.init,
    "schema": schema.schema,
    "targets": targets.targets,
    "doctor": doctor.doctor,
    "demo": demo.demo,
}

app = typer.Typer(
    name="shiplift",
    help="Register a model version in MLflow; Shiplift lifts it to production on Triton, or refuses it with reasons.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, command in COMMANDS.items():
    app.command(name)(command)


def _show_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(version("shiplift"))
        raise typer.Exit


@app.callback()
def _edge(
    home: Annotated[
        Path | None, typer.Option(help="Folder that holds all state. [default: .shiplift, or $SHIPLIFT_HOME]")
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    edge.HOME.set(home)


def main() -> NoReturn:
    """Entry point: turns every `ShipliftError` into one message and its exit code."""
    os.environ.setdefault("NO_PROXY", "127.0.0.1,localhost")
    try:
        app()
    except ShipliftError as error:
        _fail(error)
    except SystemExit as error:
        codes = {1: Cancelled.exit_code, 2: UsageError.exit_code}  # typer's own codes for an abort and a usage error
        sys.exit(codes.get(error.code, error.code) if isinstance(error.code, int) else error.code)
    sys.exit(0)


def _fail(error: ShipliftError) -> NoReturn:
    if "--json" in sys.argv:
        document = {"error": type(error).__name__, "exit_code": error.exit_code, "what": error.what, "do": error.do}
        typer.echo(json.dumps(document))
    edge.say(f"{error.title}: {error}")
    sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
