"""`shiplift up`."""

from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Json, Port


def up(
    mlflow_port: Port = None,
    receiver_port: Port = None,
    http_port: Port = None,
    grpc_port: Port = None,
    metrics_port: Port = None,
    scoring_port: Port = None,
    page_port: Port = None,
    free_ports: Annotated[
        bool, typer.Option("--free-ports", help="Use any free ports instead of the defaults.")
    ] = False,
    registry: Annotated[
        str | None, typer.Option(help="URI of an MLflow server to use instead of starting one.")
    ] = None,
    rate_limiter: Annotated[bool, typer.Option("--rate-limiter", help="Enable Triton's rate limiter.")] = False,
    metrics_interval_ms: Annotated[
        int | None, typer.Option(help="How often Triton samples metrics that are not counters.", show_default="2000")
    ] = None,
    metrics_quantile: Annotated[
        list[float] | None,
        typer.Option(help="A latency quantile in Triton's metrics, in addition to 0.5 and 0.99; may be repeated."),
    ] = None,
    allow_without: Annotated[
        list[str] | None,
        typer.Option(help="What the sandbox may lack here: namespaces, landlock, seccomp; `nothing` revokes it."),
    ] = None,
    warm_minutes: Annotated[
        float | None,
        typer.Option(
            min=0,
            show_default="60",
            help="How long to keep the imports of the next release loaded after a release (half a gigabyte); 0: never.",
        ),
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the registry over from another installation of Shiplift.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start the embedded stack: MLflow, production Triton, its scoring server, the webhook receiver, the live page.

    Processes that are already running are left alone. Example: `shiplift up --free-ports`
    """
    from shiplift.pipelines.commands.stack import status_tables
    from shiplift.pipelines.engines.local import stack
    from shiplift.pipelines.engines.local.status import endpoints

    settings = edge.settings(
        mlflow_port=mlflow_port,
        receiver_port=receiver_port,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        scoring_port=scoring_port,
        page_port=page_port,
        free_ports=free_ports or None,
        registry_uri=registry,
        rate_limiter=rate_limiter or None,
        metrics=_metrics(metrics_interval_ms, metrics_quantile),
        sandbox=_sandbox(allow_without),
        warm_minutes=warm_minutes,
    )
    started = stack.up(settings, edge.say, take_over=take_over)
    edge.print_result(endpoints(started), status_tables.show_endpoints, as_json=as_json)


def _metrics(interval_ms: int | None, quantiles: list[float] | None) -> dict[str, object] | None:
    given = {"interval_ms": interval_ms, "quantiles": quantiles or None}
    return {name: value for name, value in given.items() if value is not None} or None


def _sandbox(allow_without: list[str] | None) -> dict[str, list[str]] | None:
    return {"allow_without": [name for name in allow_without if name != "nothing"]} if allow_without else None
