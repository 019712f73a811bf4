"""The `shiplift` command: parse, call, print. Bodies import what they need, so that `--help` is instant."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

if TYPE_CHECKING:
    from shiplift.pipelines.engines.argo.engine import Remote
    from shiplift.pipelines.engines.local.releases import Releases
    from shiplift.pipelines.engines.local.stack import Stack
    from shiplift.pipelines.installation.values import Values
    from shiplift.pipelines.settings import Settings
    from shiplift.runtime.records.base import Record

app = typer.Typer(
    name="shiplift",
    help="Register a model version in MLflow; Shiplift lifts it to production on Triton, or refuses it with reasons.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Model = Annotated[str, typer.Argument(help="A registered model's name.", metavar="MODEL")]
ModelVersion = Annotated[str, typer.Argument(help="A registered model and its version.", metavar="MODEL/VERSION")]
Engine = Annotated[
    Literal["local", "argo"] | None, typer.Option(help="Where it runs. [default: local, or $SHIPLIFT_ENGINE]")
]
Namespace = Annotated[
    str | None, typer.Option(help="Shiplift's namespace on the cluster. [default: shiplift, or $SHIPLIFT_NAMESPACE]")
]
Watch = Annotated[bool, typer.Option("--watch", help="On a cluster: show it until it has ended.")]
Port = Annotated[int | None, typer.Option(min=1, max=65535)]
_state: dict[str, Any] = {}


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(version("shiplift"))
        raise typer.Exit


@app.callback()
def _edge(
    home: Annotated[
        Path | None, typer.Option(help="The folder that keeps all state. [default: .shiplift, or $SHIPLIFT_HOME]")
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    _state["home"] = home


# --- the stack ------------------------------------------------------------------------------------------------------


@app.command()
def up(
    mlflow_port: Port = None,
    receiver_port: Port = None,
    http_port: Port = None,
    grpc_port: Port = None,
    metrics_port: Port = None,
    free_ports: Annotated[bool, typer.Option("--free-ports", help="Choose free ports, whatever the defaults.")] = False,
    registry: Annotated[str | None, typer.Option(help="Use this MLflow server instead of an own one.")] = None,
    rate_limiter: Annotated[bool, typer.Option("--rate-limiter", help="Run Triton with its rate limiter.")] = False,
    as_json: Json = False,
) -> None:
    """Start the embedded stack: MLflow, the webhook receiver, production Triton and the dispatcher.

    What runs already is left alone. Example: `shiplift up --free-ports`
    """
    from shiplift.pipelines.engines.local import stack

    given = {
        "mlflow_port": mlflow_port,
        "receiver_port": receiver_port,
        "http_port": http_port,
        "grpc_port": grpc_port,
        "metrics_port": metrics_port,
        "free_ports": free_ports or None,
        "registry_uri": registry,
        "rate_limiter": rate_limiter or None,
    }
    made = stack.up(_settings(**{name: value for name, value in given.items() if value is not None}), _say)
    _print_stack(made, as_json=as_json)


@app.command()
def down() -> None:
    """Stop the embedded stack. State stays; a release under way goes on at the next start. Example: `shiplift down`"""
    from shiplift.pipelines.engines.local import stack

    if not stack.down(_home(), _say):
        _say("nothing was running")


@app.command()
def status(
    model: Annotated[str | None, typer.Argument(help="Show one model's versions.", metavar="[MODEL]")] = None,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Show the stack, or one model: its champion, its versions and how their releases ended.

    Example: `shiplift status digits --json`, `shiplift status --engine argo`
    """
    from shiplift.pipelines.commands import console
    from shiplift.pipelines.engines.local import status

    if remote := _remote(engine, namespace):
        _print(remote.status(model), console.show_remote, as_json=as_json)
        return
    found = status.of_model(_home(), model) if model else status.of_stack(_home())
    _print(found, status.show, as_json=as_json)


# --- releases -------------------------------------------------------------------------------------------------------


@app.command()
def release(
    name: Annotated[str, typer.Argument(help="A model, or one version of it.", metavar="MODEL[/VERSION]")],
    spec: Annotated[Path | None, typer.Option(help="A release spec to use instead of the logged one.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Don't wait for it to end.")] = False,
    allow_older: Annotated[bool, typer.Option("--allow-older", help="Promote it even over a newer champion.")] = False,
    engine: Engine = None,
    namespace: Namespace = None,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Release a version now (the newest, if none is named); joins the release if there is one already.

    Example: `shiplift release digits/3 --spec shiplift.yaml`, `shiplift release digits --engine argo --watch`
    """
    if remote := _remote(engine, namespace):
        _remotely(remote, name, spec=spec, again=False, allow_older=allow_older, watch=watch, as_json=as_json)
        return
    _release(name, spec=spec, again=False, allow_older=allow_older, detach=detach, as_json=as_json)


@app.command()
def rerun(
    name: ModelVersion,
    spec: Annotated[Path | None, typer.Option(help="A release spec to use instead of the logged one.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Don't wait for it to end.")] = False,
    allow_older: Annotated[bool, typer.Option("--allow-older", help="Promote it even over a newer champion.")] = False,
    engine: Engine = None,
    namespace: Namespace = None,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Run a release again; stages whose inputs have not changed are cache hits. Example: `shiplift rerun digits/3`"""
    _version_of(name)
    if remote := _remote(engine, namespace):
        _remotely(remote, name, spec=spec, again=True, allow_older=allow_older, watch=watch, as_json=as_json)
        return
    _release(name, spec=spec, again=True, allow_older=allow_older, detach=detach, as_json=as_json)


@app.command()
def cancel(name: ModelVersion, engine: Engine = None, namespace: Namespace = None) -> None:
    """Stop a version's release under way; nothing half-deployed is left. Example: `shiplift cancel digits/4`"""
    from shiplift.pipelines.engines.local import engine as control

    remote = _remote(engine, namespace)
    stopped = remote.cancel(*_version_of(name)) if remote else control.cancel(_releases(), *_version_of(name))
    _say(f"cancelled {stopped}" if stopped else "no release of that version is running")


@app.command()
def rollback(model: Model, engine: Engine = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """Make the previous champion serve again, without a lost request. Example: `shiplift rollback digits`"""
    from shiplift.pipelines.engines.local import stack
    from shiplift.steps.rollback import rollback as roll_back

    if remote := _remote(engine, namespace):
        promotion = remote.rollback(model)
    else:
        promotion = roll_back(stack.site(_home(), stack.require(_home())), model)
    said = f"{promotion.model} version {promotion.version} is the champion again (before: {promotion.previous})"
    _print(promotion, lambda _: typer.echo(said), as_json=as_json)


@app.command()
def report(
    name: Annotated[str, typer.Argument(help="A registered model and its version.", metavar="[MODEL/VERSION]")] = "",
    compare: Annotated[str, typer.Option(help="Another MODEL/VERSION to show beside it.")] = "",
    index: Annotated[bool, typer.Option("--index", help="Show all models: champion, limits, verdicts.")] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Show how a version's release went, and where its page is; or two side by side, or a page of all models.

    Examples: `shiplift report digits/3 --open`, `shiplift report digits/3 --compare digits/1`,
    `shiplift report --index`
    """
    from shiplift.pipelines.commands import console
    from shiplift.pipelines.commands.releases import report_pages as pages
    from shiplift.pipelines.engines.local import engine as control

    if index or compare:
        _page(pages.index(_home()) if index else pages.comparison(_home(), compare, _named(name)), open_page=open_page)
        return
    found = control.report_of(_home(), *_version_of(_named(name)))
    _print(found, console.show_report, as_json=as_json)
    if open_page:
        typer.launch(Path(found.report).as_uri())


@app.command()
def gate(
    name: Annotated[str, typer.Argument(help="A model's version, or all its versions.", metavar="MODEL[/VERSION]")],
    policy: Annotated[Path, typer.Option(help="A spec with the sections to judge by: policy, slo, quality, data.")],
    as_json: Json = False,
) -> None:
    """Judge past releases by a changed policy, from their kept measurements; says which verdicts would flip.

    Nothing is run or changed. Exits as a release with the (newest) verdict would: 0, 20 or 21. Example:
    `shiplift gate digits/3 --policy stricter.yaml`
    """
    from shiplift.pipelines.commands.releases import gate_replay as gate

    found = gate.replay(_home(), name, str(policy), _read(policy))
    _print(found, gate.show, as_json=as_json)
    raise typer.Exit(found.outcome.exit_code)


@app.command()
def logs(
    name: Annotated[
        str, typer.Argument(help="mlflow, triton, receiver, dispatcher, or MODEL/VERSION.", metavar="[NAME]")
    ] = "dispatcher",
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many lines.", min=1)] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
) -> None:
    """Show the log of a part of the stack, or of a release. Example: `shiplift logs triton -f`"""
    from shiplift.pipelines.engines.local import engine as control

    for line in control.log_lines(_home(), name, lines=lines, follow=follow):
        typer.echo(line)


@app.command()
def infer(
    model: Model,
    file: Annotated[Path, typer.Option("--input", help="An NPZ of arrays by input name, or JSON of the same.")],
    sequence: Annotated[bool, typer.Option("--sequence", help="Send its samples in turn, as one sequence.")] = False,
    as_json: Json = False,
) -> None:
    """Send a request to production and print the answer. Example: `shiplift infer digits --input sample.npz`"""
    from shiplift.pipelines.engines.local import engine as control

    answer = control.infer(_home(), model, file, sequence=sequence)
    typer.echo(json.dumps(answer) if as_json else control.readable(answer))


# --- on a cluster ---------------------------------------------------------------------------------------------------

ValuesFile = Annotated[Path | None, typer.Option("--values", help="A file of values; `shiplift values` prints one.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait at most.", min=1)]


@app.command()
def install(
    namespace: Namespace = None,
    values: ValuesFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print it all and let the cluster check it.")] = False,
    timeout: Timeout = 300,
    as_json: Json = False,
) -> None:
    """Put everything on the current cluster, or bring it up to date, and wait until it is ready.

    Example: `shiplift install --values values.yaml`
    """
    from shiplift.pipelines.installation import install as installation
    from shiplift.pipelines.installation import manifests

    wanted = _values(values, namespace)
    if dry_run and not as_json:
        typer.echo(manifests.text_of(manifests.documents(wanted)), nl=False)
    done = installation.install(wanted, dry_run=dry_run, timeout_s=timeout, tell=_say)
    _print(done, lambda one: _say(installation.summary(one)), as_json=as_json)


@app.command()
def render(
    folder: Annotated[Path, typer.Argument(help="Where to write.")],
    namespace: Namespace = None,
    values: ValuesFile = None,
) -> None:
    """Write what `shiplift install` would apply as YAML files, for GitOps. Example: `shiplift render deploy/`"""
    from shiplift.pipelines.installation import manifests

    wanted = _values(values, namespace)
    for path in manifests.render(wanted, folder):
        _say(f"wrote {path}")
    for line in manifests.left_to_do(wanted):
        _say(line)


@app.command()
def uninstall(
    namespace: Namespace = None,
    values: ValuesFile = None,
    data: Annotated[bool, typer.Option("--data", help="Remove MLflow's volume and the secrets too.")] = False,
    timeout: Timeout = 300,
    as_json: Json = False,
) -> None:
    """Remove everything from the current cluster: releases, models that are served, the pipeline.

    Example: `shiplift uninstall --data`
    """
    from shiplift.pipelines.installation import uninstall as removal

    gone = removal.uninstall(_values(values, namespace), data=data, timeout_s=timeout, tell=_say)
    _print(gone, lambda one: _say(removal.summary(one)), as_json=as_json)


@app.command(name="values")
def print_values() -> None:
    """Print a commented file of what can be chosen on a cluster. Example: `shiplift values > values.yaml`"""
    from shiplift.pipelines.installation import values

    typer.echo(values.commented(), nl=False)


# --- getting started ------------------------------------------------------------------------------------------------


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where to write.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    github_actions: Annotated[
        bool, typer.Option("--github-actions", help="Write a GitHub Actions workflow that releases changed specs.")
    ] = False,
) -> None:
    """Write a commented shiplift.yaml, its JSON schema and an example training script. Example: `shiplift init`"""
    from shiplift.pipelines.commands.start import init_files as init

    for path in init.write(folder, force=force, github_actions=github_actions):
        _say(f"wrote {path}")


@app.command()
def schema() -> None:
    """Print the JSON schema of shiplift.yaml, for editors. Example: `shiplift schema > shiplift.schema.json`"""
    from shiplift.runtime.spec import document

    typer.echo(json.dumps(document.schema(), indent=2))


@app.command()
def targets(
    what: Annotated[
        Literal["list", "detect"], typer.Argument(help="list: show the catalogue; detect: add to it.")
    ] = "list",
    cluster: Annotated[bool, typer.Option("--cluster", help="Detect the cluster's nodes, not this machine.")] = False,
    name: Annotated[str, typer.Option(help="Call the one target detected by this name.")] = "",
    as_json: Json = False,
) -> None:
    """List the places a spec may name as targets, or detect those of this machine or of a cluster.

    Example: `shiplift targets detect --cluster`
    """
    from shiplift.pipelines.commands.start import targets_table as targets

    found = targets.detect(_home(), cluster=cluster, name=name) if what == "detect" else targets.read(_home())
    _print(found, targets.show, as_json=as_json)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check what this machine has, what is missing, and how to get it. Example: `shiplift doctor --json`"""
    from shiplift.pipelines.commands.stack import doctor_checks as checks
    from shiplift.runtime.base.errors import MissingTool

    found = checks.examine(_settings())
    _print(found, checks.show, as_json=as_json)
    if not found.usable:
        raise typer.Exit(MissingTool.exit_code)


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running at the end.")] = False,
) -> None:
    """Run the whole story: three versions of a digit classifier, one refused, one promoted live, one rollback.

    The last line on stdout is JSON. Example: `shiplift demo`
    """
    from shiplift.pipelines.commands.start import demo_story as story

    typer.echo(json.dumps(story.play(_settings(free_ports=True), _say, keep=keep)))


# --- the edge -------------------------------------------------------------------------------------------------------


def _release(name: str, *, spec: Path | None, again: bool, allow_older: bool, detach: bool, as_json: bool) -> None:
    from shiplift.pipelines.commands import console
    from shiplift.pipelines.engines.local import engine as control

    text = _read(spec) if spec else ""
    ordered = control.order(_home(), name, text, again=again, allow_older=allow_older)
    if not ordered.accepted.queued and not ordered.releases.active(ordered.accepted.name):
        _say("this release has ended before; `shiplift rerun` runs it again")
    if detach:
        _say(f"{'accepted' if ordered.accepted.queued else 'already there'}: {ordered.accepted.name}")
        return
    with _interruptible(ordered.releases, ordered.accepted.name):
        found = console.follow(ordered.releases, ordered.accepted.name, alive=ordered.alive, quiet=as_json)
    _print(found, console.show_report, as_json=as_json)
    raise typer.Exit(found.exit_code)


def _remote(engine: str | None, namespace: str | None) -> "Remote | None":
    """The cluster, where that is the engine."""
    given = {"engine": engine, "namespace": namespace}
    settings = _settings(**{name: value for name, value in given.items() if value})
    if settings.engine == "local":
        return None
    from shiplift.pipelines.engines.argo.engine import Remote

    return Remote(settings.namespace)


def _remotely(
    remote: "Remote", name: str, *, spec: Path | None, again: bool, allow_older: bool, watch: bool, as_json: bool
) -> None:
    from shiplift.pipelines.commands import console

    accepted = remote.order(name, _read(spec) if spec else "", again=again, allow_older=allow_older)
    if not watch:
        _print(accepted, lambda _: _say(f"{'accepted' if accepted.queued else 'already there'}: {accepted.name}"),
               as_json=as_json)  # fmt: skip
        return
    console.watch(remote.events(accepted.name), quiet=as_json)
    found = remote.result(accepted.name)
    _print(found, console.show_report, as_json=as_json)
    raise typer.Exit(found.exit_code)


@contextmanager
def _interruptible(releases: "Releases", name: str) -> Iterator[None]:
    """Ctrl-C cancels the release and waits for it to clean up."""
    from shiplift.pipelines.commands import console
    from shiplift.pipelines.engines.local import engine as control
    from shiplift.runtime.base.errors import Cancelled

    try:
        yield
    except KeyboardInterrupt:
        _say("cancelling, and cleaning up ...")
        control.cancel_and_wait(releases, name)
        ended = releases.result(name)
        if ended is not None and ended.exit_code == 0:
            _say("it was promoted before it could be cancelled; `shiplift rollback` undoes that")
            console.show_report(ended)
            raise typer.Exit(0) from None
        raise Cancelled(f"release {name} was cancelled", do="The same command goes on where it was.") from None


def _print(found: Any, show: Any, *, as_json: bool) -> None:
    if as_json:
        record: Record = found
        typer.echo(record.model_dump_json())
    else:
        show(found)


def _print_stack(made: "Stack", *, as_json: bool) -> None:
    from shiplift.pipelines.engines.local import status

    _print(status.endpoints(made), status.show_endpoints, as_json=as_json)


def _values(file: Path | None, namespace: str | None) -> "Values":
    from shiplift.pipelines.installation import values

    return values.read(file, namespace=namespace or os.environ.get("SHIPLIFT_NAMESPACE", ""))


def _settings(**given: Any) -> "Settings":
    from pydantic import ValidationError

    from shiplift.pipelines.settings import Settings
    from shiplift.runtime.base.errors import UsageError

    if _state.get("home"):
        given["home"] = _state["home"]
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"SHIPLIFT_{where.upper()}: {first['msg']}", do="Change or unset it.") from error


def _home() -> Path:
    return _settings().root


def _releases() -> "Releases":
    from shiplift.pipelines.engines.local.releases import Releases

    return Releases(_home())


def _version_of(name: str) -> tuple[str, int]:
    from shiplift.pipelines.engines.local.engine import split
    from shiplift.runtime.base.errors import UsageError

    model, version = split(name)
    if version is None:
        raise UsageError(f"{name!r} names no version", do="Write MODEL/VERSION, such as digits/3.")
    return model, version


def _named(name: str) -> str:
    from shiplift.runtime.base.errors import UsageError

    if not name:
        raise UsageError("no version was named", do="Write MODEL/VERSION, such as digits/3, or `--index`.")
    return name


def _page(path: Path, *, open_page: bool) -> None:
    typer.echo(str(path))
    if open_page:
        typer.launch(path.as_uri())


def _read(path: Path) -> str:
    from shiplift.runtime.base.errors import UsageError

    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}", do="Give the path of a YAML file.") from error


def _say(message: str) -> None:
    typer.echo(message, err=True)


def main() -> NoReturn:
    """The command's entry: every error of ours becomes one message and its exit code."""
    from shiplift.runtime.base.errors import Cancelled, ShipliftError, UsageError

    os.environ.setdefault("NO_PROXY", "127.0.0.1,localhost")
    try:
        app()
    except ShipliftError as error:
        _fail(error)
    except SystemExit as ended:
        own = {1: Cancelled.exit_code, 2: UsageError.exit_code}  # what typer means by 1 and 2
        sys.exit(own.get(ended.code, ended.code) if isinstance(ended.code, int) else ended.code)
    sys.exit(0)


def _fail(error: Any) -> NoReturn:
    if "--json" in sys.argv:
        said = {"error": type(error).__name__, "exit_code": error.exit_code, "what": error.what, "do": error.do}
        typer.echo(json.dumps(said))
    typer.echo(f"{error.title}: {error}", err=True)
    sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
