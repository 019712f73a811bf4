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
from shiplift.pipelines.commands.help import Command, CommandGroup
from shiplift.pipelines.commands.releases import (
    abort,
    adopt,
    approve,
    ask,
    cancel,
    card,
    gate,
    infer,
    lab,
    pipeline,
    predict,
    reject,
    release,
    report,
    rerun,
    retire,
    rollback,
)
from shiplift.pipelines.commands.stack import (
    calibrate,
    captured,
    doctor,
    down,
    drift,
    events,
    invocations,
    logs,
    open_page,
    openai,
    push,
    status,
    up,
)
from shiplift.pipelines.commands.start import check, demo, init, schema, targets
from shiplift.runtime.base.errors import Cancelled, ShipliftError, UsageError

PANELS: dict[str, dict[str, Callable[..., None]]] = {
    "Start": {
        "init": init.init,
        "doctor": doctor.doctor,
        "calibrate": calibrate.calibrate,
        "demo": demo.demo,
        "up": up.up,
        "down": down.down,
        "status": status.status,
        "open": open_page.open_page,
    },
    "Authors: release a model, and see why it was refused": {
        "release": release.release,
        "rerun": rerun.rerun,
        "cancel": cancel.cancel,
        "report": report.report,
        "card": card.card,
        "ask": ask.ask,
        "logs": logs.logs,
        "adopt": adopt.adopt,
        "check": check.check,
        "schema": schema.schema,
        "targets": targets.targets,
        "pipeline check": pipeline.check,
        "pipeline release": pipeline.release,
        "pipeline build": pipeline.build,
        "pipeline plan": pipeline.plan,
    },
    "Owners of production: decide, and undo": {
        "approve": approve.approve,
        "reject": reject.reject,
        "abort": abort.abort,
        "rollback": rollback.rollback,
        "retire": retire.retire,
        "events": events.events,
        "captured": captured.captured,
        "drift": drift.drift,
        "gate": gate.gate,
        "push": push.push,
    },
    "Clients: ask production": {
        "infer": infer.infer,
        "lab": lab.lab,
        "predict": predict.predict,
        "openai": openai.openai,
        "invocations": invocations.invocations,
    },
    "Administrators of a cluster": {
        "values": values.values,
        "install": install.install,
        "render": render.render,
        "uninstall": uninstall.uninstall,
    },
}
COMMANDS = {name: command for commands in PANELS.values() for name, command in commands.items()}
_FORMER = {"pipeline register": pipeline.release}  # still understood, and shown nowhere
_GROUPS = {"pipeline": "Check a pipeline of models, release it, build what Triton serves, or plan it."}

app = typer.Typer(
    cls=CommandGroup,
    name="shiplift",
    help="Register a model version in MLflow; Shiplift lifts it to production on Triton, or refuses it with reasons.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_groups: dict[str, typer.Typer] = {}


def _add(name: str, command: Callable[..., None], panel: str, *, hidden: bool = False) -> None:
    """Adds a command; the first of two words is the group that it belongs to."""
    group, _, own = name.rpartition(" ")
    if group and group not in _groups:
        _groups[group] = typer.Typer(
            cls=CommandGroup, help=_GROUPS[group], no_args_is_help=True, rich_markup_mode="markdown"
        )
        app.add_typer(_groups[group], name=group, rich_help_panel=panel)
    (_groups[group] if group else app).command(
        own, cls=Command, rich_help_panel=None if group else panel, hidden=hidden
    )(command)


for panel, commands in PANELS.items():
    for name, command in commands.items():
        _add(name, command, panel)
for name, command in _FORMER.items():
    _add(name, command, "", hidden=True)


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
