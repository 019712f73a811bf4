"""Releases a version, and waits for its end."""

from shiplift.pipelines.deployments.configuration import DeploymentConfiguration
from shiplift.pipelines.engines.protocol import Engine
from shiplift.runtime.base.errors import by_exit_code
from shiplift.runtime.base.progress import progress


def released(engine: Engine, model: str, version: int, configuration: DeploymentConfiguration) -> None:
    """Orders a release and, unless told not to, follows it to its end. A release that is there already is followed.

    Raises:
        ShipliftError: the version was not promoted; the error's class and message say why.
    """
    accepted = engine.order(
        f"{model}/{version}",
        configuration.spec_text(),
        again=configuration.again,
        allow_older=configuration.allow_older,
    )
    if not configuration.wait:
        return
    for event in engine.events(accepted.name):
        if event:
            progress(f"{event.stage}: {event.kind}")
    report = engine.result(accepted.name)
    if report.outcome != "promoted":
        kind = by_exit_code(report.exit_code)
        raise kind(
            f"version {version} of {model!r} was not promoted ({report.outcome}): {report.reason}",
            do=f"See `shiplift report {model}/{version}`; `-C again=true` runs the release again.",
        )
