"""Arguments and options that several commands share, each described once."""

from pathlib import Path
from typing import Annotated

import typer

from shiplift.pipelines.choices import EngineName

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Model = Annotated[str, typer.Argument(help="A registered model's name.", metavar="MODEL")]
ModelVersion = Annotated[str, typer.Argument(help="A registered model and its version.", metavar="MODEL/VERSION")]
Engine = Annotated[EngineName | None, typer.Option(help="Where it runs. [default: local, or $SHIPLIFT_ENGINE]")]
Namespace = Annotated[
    str | None, typer.Option(help="Shiplift's namespace on the cluster. [default: shiplift, or $SHIPLIFT_NAMESPACE]")
]
Port = Annotated[int | None, typer.Option(min=1, max=65535)]
Spec = Annotated[Path | None, typer.Option(help="A release spec to use instead of the logged one.")]
Detach = Annotated[bool, typer.Option("--detach", help="Don't wait for it to end.")]
Watch = Annotated[bool, typer.Option("--watch", help="On a cluster: show it until it has ended.")]
AllowOlder = Annotated[bool, typer.Option("--allow-older", help="Promote it even over a newer champion.")]
OpenPage = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
ValuesFile = Annotated[Path | None, typer.Option("--values", help="A file of values; `shiplift values` prints one.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait at most.", min=1)]
