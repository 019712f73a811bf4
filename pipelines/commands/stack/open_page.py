"""`shiplift open`."""

from typing import TYPE_CHECKING, Annotated

import typer

from shiplift.pipelines.commands import completion, edge
from shiplift.pipelines.commands.options import Engine, Namespace

if TYPE_CHECKING:
    from shiplift.pipelines.settings import Settings

_HOST, _PORT = "127.0.0.1", 8007


def open_page(
    model: Annotated[
        str,
        typer.Argument(
            help="Open the page of this model.", metavar="[MODEL[/VERSION]]", autocompletion=completion.versions
        ),
    ] = "",
    only_print: Annotated[bool, typer.Option("--print", help="Print the address; open no browser.")] = False,
    port: Annotated[
        int | None,
        typer.Option(
            help=f"On a cluster: the port on this machine. [default: {_PORT}, or a free one]", min=1, max=65535
        ),
    ] = None,
    engine: Engine = None,
    namespace: Namespace = None,
) -> None:
    """Open the live page in a browser: models, releases as they run, their proofs and checks, and what to do next.

    On one machine the stack serves it. For a cluster this command does, until Ctrl-C, with the permissions of your
    kubeconfig: what you may not do with `kubectl`, you may not do on the page.

    Examples: `shiplift open`, `shiplift open digits/3`, `shiplift open --print`, `shiplift open --engine argo`
    """
    from shiplift.pipelines.page.rendering import page_of

    settings = edge.settings(engine=engine or None, namespace=namespace or None)
    page = page_of(model)
    if settings.engine == "local":
        _open_stack(page, only_print=only_print)
    else:
        _serve_cluster(settings, page, port, only_print=only_print)


def _open_stack(page: str, *, only_print: bool) -> None:
    from shiplift.pipelines.engines.local import stack
    from shiplift.pipelines.engines.local.status import endpoints
    from shiplift.runtime.base.errors import StackDown

    running = stack.require(edge.home())
    if not running.runs("page"):
        raise StackDown("the page of this stack is not running", do="Run `shiplift up`.")
    address = f"{endpoints(running).page}{page}"
    typer.echo(address)
    if not only_print:
        stack.wait_healthy(edge.home(), running, "page", f"{endpoints(running).page}/healthz")
        _browse(address)


def _serve_cluster(settings: "Settings", page: str, port: int | None, *, only_print: bool) -> None:
    from shiplift.pipelines.daemons.page import serve
    from shiplift.pipelines.engines.table import choose
    from shiplift.pipelines.page.doors import Access

    chosen = choose(settings)
    chosen.champions()  # a cluster that can't be reached, or has no Shiplift, is an error of this command
    port = _free(port)
    address = f"http://{_HOST}:{port}{page}"

    def started() -> None:
        typer.echo(address)
        if not only_print:
            _browse(address)

    edge.say(f"serving the page of namespace {settings.namespace} until Ctrl-C")
    serve(chosen, Access(host=_HOST), port, started=started)


def _free(port: int | None) -> int:
    """The port that was asked for; or the default one, or if a stack's page has that, another one."""
    from shiplift.runtime.base.errors import PortTaken
    from shiplift.runtime.host.processes import free_port, require_free

    try:
        require_free(_HOST, port or _PORT, "the page", "--port")
    except PortTaken:
        if port:
            raise
        return free_port()
    return port or _PORT


def _browse(address: str) -> None:
    import webbrowser

    if not (edge.has_display() and webbrowser.open(address)):
        edge.say("no browser can be opened here: open this address in one")
