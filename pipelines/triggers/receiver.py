"""Turns signed webhooks into releases, exactly once.

A delivery is answered only after its release exists: an answered delivery is never lost, and the sender repeats an
unanswered one. On one machine releases are folders in the home. On a cluster they are Workflows, whose names reveal
duplicate deliveries, so any number of receivers can run in parallel.
"""

import argparse
import threading
from functools import partial
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.concurrency import run_in_threadpool
from uvicorn.middleware.proxy_headers import _TrustedHosts

from shiplift.pipelines.triggers.drift_metrics import DriftMetrics
from shiplift.pipelines.triggers.intake import Deliveries, Intake, of_github, of_gitlab, of_mlflow
from shiplift.pipelines.triggers.request_limits import Decide, DeliveryMetrics, RequestLimiter, answer
from shiplift.pipelines.triggers.settings import DeliveryLimits, Listening, TriggerSettings, load, read_secrets
from shiplift.runtime.base.daemon import log_as_json, run_main
from shiplift.runtime.base.errors import ShipliftError, StackDown, Temporary, UsageError
from shiplift.runtime.host.listeners import ConnectionLimits, listener
from shiplift.runtime.store.registry.rest import RestRegistry

MAX_BODY_BYTES = 64 * 1024
MAX_PUSH_BYTES = 5 * 1024 * 1024  # a push lists its commits and their files
_GRACE_S = 20
_REGISTRY_S = 15.0  # must stay below the 30 s that MLflow waits for our answer before it sends the delivery again


def create_app(intake: Intake, limits: DeliveryLimits | None = None) -> FastAPI:
    """The receiver as an ASGI application."""
    metrics = DeliveryMetrics()
    app = create_health_app(intake, metrics)
    limiter = RequestLimiter(limits or DeliveryLimits(), metrics)

    def add_route(sender: str, max_bytes: int, decide: Decide) -> None:
        async def delivery(request: Request) -> Response:
            return await limiter.handle(sender, request, max_bytes, decide)

        app.add_api_route(f"/webhooks/{sender}", delivery, methods=["POST"])

    add_route("mlflow", MAX_BODY_BYTES, partial(of_mlflow, intake))
    if intake.push is not None:
        add_route("github", MAX_PUSH_BYTES, partial(of_github, intake))
        add_route("gitlab", MAX_PUSH_BYTES, partial(of_gitlab, intake))
    if intake.reports is not None:
        metrics.registry.register(DriftMetrics(intake.reports))
    app.state.metrics = metrics
    return app


def create_health_app(intake: Intake, metrics: DeliveryMetrics) -> FastAPI:
    """The application of the listener for health checks and metrics."""
    app = FastAPI(title="Shiplift receiver", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        """Whether the receiver is up."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> Response:
        """Whether a delivery would be accepted now."""
        try:
            await run_in_threadpool(intake.ready)
        except ShipliftError as error:
            return answer(503, error.what)
        return answer(200, "ok")

    @app.get("/metrics")
    def prometheus() -> Response:
        """The metrics in Prometheus' format."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


def on_this_machine(home: Path) -> Intake:
    """The intake of the stack in a home folder.

    Raises:
        StackDown: no stack was started there.
    """
    from shiplift.pipelines.engines.local import stack as stacks  # noqa: PLC0415 - not needed on a cluster
    from shiplift.pipelines.engines.local.drifting import every_state  # noqa: PLC0415
    from shiplift.pipelines.engines.local.releases import Releases  # noqa: PLC0415
    from shiplift.runtime.base.secrets import load_secrets  # noqa: PLC0415

    stack = stacks.read(home)
    if stack is None:
        raise StackDown(f"no stack was started in {home}", do="Run `shiplift up`.")
    secret = load_secrets(home).webhook
    return Intake(
        accept=Releases(home).accept,
        find_version=RestRegistry(stack.registry_uri, timeout_s=_REGISTRY_S).version,
        mlflow=lambda: (secret,),
        deliveries=Deliveries(home / "deliveries"),
        reports=lambda: [state.report for _, state in every_state(home) if state],
    )


def on_a_cluster(settings: TriggerSettings) -> Intake:
    """The intake of a cluster: releases are Workflows in the settings' namespace."""
    from shiplift.pipelines.engines.argo.releases import connect  # noqa: PLC0415 - the Kubernetes client is optional

    registry = RestRegistry(settings.registry_uri, timeout_s=_REGISTRY_S)
    releases = connect(settings.namespace, registry)
    files = settings.secrets

    def ready() -> None:
        if not read_secrets(files.mlflow):
            raise UsageError("the secret for MLflow's deliveries is missing", do="Mount one; see `shiplift install`.")
        if releases.installed_at() is None:
            raise Temporary("the WorkflowTemplate 'release' does not exist yet", do="Run `shiplift install`.")

    return Intake(
        accept=releases.accept,
        find_version=registry.version,
        mlflow=lambda: read_secrets(files.mlflow),
        push=releases.push,
        find=settings.repository,
        github=lambda: read_secrets(files.github),
        gitlab=lambda: read_secrets(files.gitlab),
        ready=ready,
    )


def serve(intake: Intake, listening: Listening, limits: DeliveryLimits) -> None:
    """Serves until SIGTERM; deliveries in progress are answered first."""
    log_as_json()
    app = create_app(intake, limits)
    trusted = _TrustedHosts(list(listening.trusted_proxies))
    connections = ConnectionLimits(
        connections=limits.connections,
        connections_per_source=limits.connections_per_source,
        header_timeout_s=limits.header_timeout_s,
    )
    if listening.health_port:
        health = create_health_app(intake, app.state.metrics)
        own = listener(health, listening.host, listening.health_port, connections, grace_s=_GRACE_S)
        threading.Thread(target=uvicorn.Server(own).run, daemon=True).start()
    configuration = listener(
        app,
        listening.host,
        listening.port,
        connections,
        exempt=lambda source: source in trusted,
        grace_s=_GRACE_S,
        proxy_headers=bool(listening.trusted_proxies),
        forwarded_allow_ips=list(listening.trusted_proxies),
    )
    uvicorn.Server(configuration).run()


def main() -> None:
    """Receives webhooks for a home, or for a cluster's namespace."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--home", type=Path, help="a stack's folder")
    source.add_argument("--cluster", type=Path, metavar="SETTINGS", help="the settings of a cluster, as JSON")
    parser.add_argument("--host", help="the address to listen on")
    parser.add_argument("--port", type=int, help="the port to listen on")
    arguments = parser.parse_args()
    settings = load(arguments.cluster) if arguments.cluster else None
    listening = settings.receiver if settings else Listening(host="127.0.0.1", health_port=0)
    overrides = {"host": arguments.host, "port": arguments.port}
    serve(
        on_a_cluster(settings) if settings else on_this_machine(arguments.home),
        listening.model_copy(update={key: value for key, value in overrides.items() if value}),
        settings.limits if settings else DeliveryLimits(),
    )


if __name__ == "__main__":
    run_main(main)
