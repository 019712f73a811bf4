"""What `shiplift status` says of a served model that does not answer because it is kept apart: it does not load."""

import time
from pathlib import Path

from shiplift.pipelines.engines.local.pulses import Pulse
from shiplift.pipelines.engines.local.pulses import read as pulse_of
from shiplift.runtime.serving.machine.loading import Attempts, attempts
from shiplift.runtime.serving.machine.served import names_in_server, served


def read(home: Path, model: str) -> Pulse:
    """The pulse of a model. Why it does not load stands in for what that does to its requests."""
    pulse = pulse_of(home, model)
    state = served(home, model)
    names = names_in_server(state.package) if state else set()
    failed = [each for name, each in attempts(home / "production").items() if name in names and each.failures]
    return pulse.model_copy(update={"finding": _sentence(failed[0], time.time())}) if failed else pulse


def _sentence(failed: Attempts, now: float) -> str:
    times = f"{failed.failures} times" if failed.failures > 1 else "once"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(failed.since))
    soon = f"the next try is in {failed.next_at - now:.0f} s" if failed.next_at > now else "it is tried again now"
    return f"it does not load: it was tried {times} since {since}, {soon}: {failed.why}"
