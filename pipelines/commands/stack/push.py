"""`shiplift push`."""

from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Json


def push(
    repository: Annotated[str, typer.Argument(help="A folder with a git repository, bare or not, or its URL.")] = ".",
    branch: Annotated[str, typer.Option(help="The branch that is released.")] = "main",
    as_json: Json = False,
) -> None:
    """Release the specs and services of a git repository, on one machine. Example: `shiplift push /srv/git/models.git`

    A changed spec in `releases/*.yaml` releases the model that it names. Each folder in `services/` is a service: a
    Triton Python model as `service.py`, its `config.pbtxt`, `requirements.txt`, and a spec, `shiplift.yaml`. Run this
    command by hand, or in a bare repository's `hooks/post-receive`. On a cluster, webhooks announce pushes.
    """
    from shiplift.pipelines.engines.local import stack
    from shiplift.pipelines.engines.local.engine import LocalEngine
    from shiplift.pipelines.triggers.local_push import LocalPush
    from shiplift.runtime.base.git import Origin

    engine = LocalEngine(edge.home())
    stack.require(engine.home)
    handled = LocalPush(Origin(url=_url(repository)), branch, engine.home / "pushes")
    pushed, error = handled.handle(engine.newest, engine.register, engine.accept)
    edge.print_result(pushed, _show, as_json=as_json)
    if error:
        raise error


def _url(repository: str) -> str:
    from pathlib import Path
    from urllib.parse import urlsplit

    from shiplift.runtime.base.errors import UsageError
    from shiplift.runtime.base.git import SCHEMES

    if urlsplit(repository).scheme in SCHEMES:
        return repository
    folder = Path(repository).resolve()
    if not folder.is_dir():
        raise UsageError(f"{repository} is not a folder", do="Name one with a git repository, or a repository's URL.")
    return folder.as_uri()


def _show(pushed: object) -> None:
    from shiplift.pipelines.triggers.local_push import Pushed

    assert isinstance(pushed, Pushed)  # noqa: S101 - the command prints nothing else
    for what, versions in (("registered", pushed.registered), ("releasing", pushed.released)):
        for model, version in versions.items():
            edge.say(f"{what} {model} version {version}, commit {pushed.commit[:12]}")
    for model in pushed.unchanged:
        edge.say(f"unchanged {model}")
    for reason in pushed.refused:
        edge.say(f"refused: {reason}")
    if pushed.registered or pushed.released:
        edge.say("`shiplift status --watch` shows the releases.")
