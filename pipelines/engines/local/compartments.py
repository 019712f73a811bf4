"""What `shiplift status` says of a served model that is kept from the others: it does not load, or is quarantined."""

import time
from collections.abc import Callable
from pathlib import Path

from shiplift.pipelines.engines.local import pulses, stack
from shiplift.pipelines.engines.local.pulses import Pulse
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.serving.machine.hosts import crashes
from shiplift.runtime.serving.machine.loading import Attempts, attempts
from shiplift.runtime.serving.machine.quarantine import crashed
from shiplift.runtime.serving.machine.served import names_in_server, served


def read(home: Path, model: str) -> Pulse:
    """The pulse of a model. Why it is kept apart stands in for what that does to its requests."""
    return reader(home)(model)


def reader(home: Path) -> Callable[[str], Pulse]:
    """What reads the pulse of a model as `read` does. It reads what all models share once, for a list of many."""
    known, findings = pulses.every(home), _findings(home)

    def read_one(model: str) -> Pulse:
        pulse, state = known.get(serving_name(model), Pulse()), served(home, model) if findings else None
        names = names_in_server(state.package) if state else set()
        finding = next((text for name, text in findings if name in names), "")
        return pulse.model_copy(update={"finding": finding}) if finding else pulse

    return read_one


def _findings(home: Path) -> list[tuple[str, str]]:
    """What is kept apart, by its name in the server, and why."""
    now, running = time.time(), stack.read(home)
    failed = [(name, _sentence(each, now)) for name, each in attempts(home / "production").items() if each.why]
    died = crashed(running.processes["triton"].pid) if running and running.runs("triton") else ()
    hosts = crashes(home / "production").values()
    findings = failed + [(each.model, each.finding(now)) for each in (*died, *hosts)]
    return [(name, text) for name, text in findings if text]


def _sentence(failed: Attempts, now: float) -> str:
    times = f"{failed.failures} times" if failed.failures > 1 else "once"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(failed.since))
    soon = f"the next try is in {failed.next_at - now:.0f} s" if failed.next_at > now else "it is tried again now"
    return f"it does not load: it was tried {times} since {since}, {soon}: {failed.why}"
