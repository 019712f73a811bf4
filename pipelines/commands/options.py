"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from shiplift.pipelines.choices import EngineName
from shiplift.pipelines.commands import completion

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Model = Annotated[
    str, typer.Argument(help="Name of a registered model.", metavar="MODEL", autocompletion=completion.models)
]
ModelVersion = Annotated[
    str,
    typer.Argument(
        help="A registered model and its version.", metavar="MODEL/VERSION", autocompletion=completion.versions
    ),
]
Engine = Annotated[EngineName | None, typer.Option(help="Where releases run. [default: local, or $SHIPLIFT_ENGINE]")]
Namespace = Annotated[
    str | None, typer.Option(help="Shiplift's namespace on the cluster. [default: shiplift, or $SHIPLIFT_NAMESPACE]")
]
Reason = Annotated[str, typer.Option(help="Why, in a sentence; the release's verdict and report say so.")]
Port = Annotated[int | None, typer.Option(min=1, max=65535)]
Spec = Annotated[Path | None, typer.Option(help="Release spec to use instead of the one logged with the model.")]
Detach = Annotated[bool, typer.Option("--detach", help="Return at once; don't wait for the release to end.")]
Watch = Annotated[bool, typer.Option("--watch", help="On a cluster: follow the release until it ends.")]
AllowOlder = Annotated[bool, typer.Option("--allow-older", help="Promote the version even if the champion is newer.")]
OpenPage = Annotated[bool, typer.Option("--open", help="Open the report page in a browser.")]
ValuesFile = Annotated[
    Path | None, typer.Option("--values", help="Values file; `shiplift values` prints a commented one.")
]
Timeout = Annotated[float, typer.Option(help="Maximum wait, in seconds.", min=1)]
