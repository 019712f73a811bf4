"""Delivers a home's events to the targets in `site.yaml`, in threads of the watchdog's process.

They run beside releases and production, so a target that is slow or hostile costs neither anything.
"""

import time
from pathlib import Path

from shiplift.pipelines.engines.local import incidents, site_file, stack
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.events.delivery import EventDelivery
from shiplift.runtime.events.targets import EventSettings

_LOOK_S = 1.0


def run(home: Path) -> None:
    """Delivers until the process ends. A change of `site.yaml` counts from the next look on."""
    saved = stack.read(home)
    delivery = EventDelivery(home, source_of(saved), lambda message: incidents.note(home, "", message))
    while True:
        delivery.look(settings_of(home))
        time.sleep(_LOOK_S)


def settings_of(home: Path) -> EventSettings:
    """The settings of events; none while the file is not valid, which each release says."""
    try:
        return site_file.read(home).events
    except (ShipliftError, OSError):
        return EventSettings()


def source_of(saved: stack.Stack | None) -> str:
    """The URI of an installation, by its name in the registry's lease."""
    return f"urn:shiplift:{saved.holder if saved and saved.holder else 'local'}"
