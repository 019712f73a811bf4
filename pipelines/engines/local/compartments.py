"""What `shiplift status` says of a served model that is kept from the others: it does not load, or is quarantined."""

import time
from pathlib import Path

from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.pulses import Pulse
from shiplift.pipelines.engines.local.pulses import read as pulse_of
from shiplift.runtime.serving.machine.loading import Attempts, attempts
from shiplift.runtime.serving.machine.quarantine import crashed
from shiplift.runtime.serving.machine.served import names_in_server, served


def read(home: Path, model: str) -> Pulse:
    """The pulse of a model. Why it is kept apart stands in for what that does to its requests."""
    pulse, state = pulse_of(home, model), served(home, model)
    names = names_in_server(state.package) if state else set()
    finding = next(iter(_findings(home, names)), "")
    return pulse.model_copy(update={"finding": finding}) if finding else pulse


def _findings(home: Path, names: set[str]) -> list[str]:
    now, running = time.time(), stack.read(home)
    failed = [each for name, each in attempts(home / "production").items() if name in names and each.why]
    died = crashed(running.processes["triton"].pid) if running and running.runs("triton") else ()
    findings = [_sentence(each, now) for each in failed] + [each.finding(now) for each in died if each.model in names]
    return list(filter(None, findings))


def _sentence(failed: Attempts, now: float) -> str:
    times = f"{failed.failures} times" if failed.failures > 1 else "once"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(failed.since))
    soon = f"the next try is in {failed.next_at - now:.0f} s" if failed.next_at > now else "it is tried again now"
    return f"it does not load: it was tried {times} since {since}, {soon}: {failed.why}"
