"""Calibrates this machine for the releases of a home, before or after its stack was started."""

from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.progress import Listener, listening
from shiplift.runtime.base.secrets import make_private
from shiplift.runtime.records.calibration import Calibrating, Calibration
from shiplift.runtime.records.site import Machine, Site
from shiplift.runtime.search.calibration import measuring


def calibrated(settings: Settings, calibrating: Calibrating, listener: Listener) -> Calibration:
    """The machine's calibration, measured now unless one is kept; `listener` is told how far it is.

    Raises:
        HomeNotPrivate: other users can write to the home.
        NotConfined, SandboxLimit: as `runtime.search.calibration.measuring.calibrated` does.
    """
    with listening(listener):
        return measuring.calibrated(_site(settings), calibrating)


def _site(settings: Settings) -> Site:
    """The home's site: of its stack if there ever was one, else with what a calibration needs."""
    home = settings.root
    if saved := stack.read(home):
        return stack.site(home, saved)
    make_private(home)
    return Site(
        home=str(home),
        registry_uri="",
        artifacts_uri=(home / "artifacts").as_uri(),
        server_environment="",
        sandbox=settings.sandbox,
        place=Machine(http="", grpc="", metrics=""),
    )
