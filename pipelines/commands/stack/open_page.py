"""`shiplift open`."""

from typing import Annotated

import typer

from shiplift.pipelines.commands import completion, edge


def open_page(
    model: Annotated[
        str,
        typer.Argument(
            help="Open the page of this model.", metavar="[MODEL[/VERSION]]", autocompletion=completion.versions
        ),
    ] = "",
    only_print: Annotated[bool, typer.Option("--print", help="Print the address; open no browser.")] = False,
) -> None:
    """Open the live page in a browser: models, releases as they run, their proofs and checks, and what to do next.

    Examples: `shiplift open`, `shiplift open digits/3`, `shiplift open --print`
    """
    import webbrowser

    from shiplift.pipelines.engines.local import stack
    from shiplift.pipelines.engines.local.status import endpoints
    from shiplift.pipelines.page.rendering import page_of
    from shiplift.runtime.base.errors import StackDown

    running = stack.require(edge.home())
    if not running.runs("page"):
        raise StackDown("the page of this stack is not running", do="Run `shiplift up`.")
    address = f"{endpoints(running).page}{page_of(model)}"
    typer.echo(address)
    if only_print:
        return
    stack.wait_healthy(edge.home(), running, "page", f"{endpoints(running).page}/healthz")
    if not (edge.has_display() and webbrowser.open(address)):
        edge.say("no browser can be opened here: open this address in one")
