"""Real releases by a process that waited for them, with its sandboxes started ahead."""

from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.settings import Settings
from shiplift.runtime.records.process import Process
from tests.integration.conftest import Lab, until

NAME = "warm-worker"


@pytest.fixture
def warm(lab: Lab) -> Iterator[Lab]:
    """The lab, as long as one waits for its releases."""
    stack.up(Settings(home=lab.home, warm_minutes=60))
    try:
        yield lab
    finally:
        stack.up(Settings(home=lab.home, warm_minutes=0))
        # The next one may have been forked just now: it has no sandboxes yet, or ends in the middle of starting them.
        until(lambda: not boxes(lab) and not list((lab.home / stack.AHEAD).iterdir()))


def boxes(lab: Lab) -> list[psutil.Process]:
    """The outer processes of the sandboxes that wait."""
    waiting: list[psutil.Process] = []
    for child in children(lab):
        with suppress(psutil.Error):  # one that ends just now
            waiting += [each for each in child.children() if "shiplift.runtime.confinement.child" in each.cmdline()]
    return waiting


def children(lab: Lab) -> list[psutil.Process]:
    return psutil.Process(lab.running.processes["dispatcher"].pid).children()


def waiting(lab: Lab) -> psutil.Process:
    """The process that waits, once its two sandboxes have what they import and nothing left to do."""
    ahead = until(lambda: both if len(both := boxes(lab)) == 2 else None)
    inside = [process for box in ahead for process in box.children(recursive=True)]
    until(lambda: sum(process.cpu_percent(0.5) for process in inside) < 1)
    return psutil.Process(ahead[0].ppid())


def worker(lab: Lab, version: int) -> int:
    """The process that ran a version's release."""
    (folder,) = (lab.home / "releases").glob(f"{NAME}-{version}-*")
    return Process.model_validate_json((folder / "worker.json").read_text()).pid


@pytest.mark.slow
def test_the_process_that_waits_runs_the_next_release_and_another_takes_its_place(warm: Lab) -> None:
    first = waiting(warm).pid
    version = warm.log_classifier(NAME, samples=1100)
    assert warm.wait(NAME, version).exit_code == 0
    assert worker(warm, version) == first
    second = waiting(warm).pid
    assert second != first
    again = warm.log_classifier(NAME, samples=1050)
    assert warm.wait(NAME, again).exit_code == 0
    assert worker(warm, again) == second


@pytest.mark.slow
def test_a_sandbox_that_was_killed_while_it_waited_is_replaced(warm: Lab) -> None:
    waits = waiting(warm)
    for box in boxes(warm):
        box.kill()
        until(lambda box=box: box.status() == psutil.STATUS_ZOMBIE)  # type: ignore[misc]
    version = warm.log_classifier(NAME, samples=1025)
    assert warm.wait(NAME, version).exit_code == 0
    assert worker(warm, version) == waits.pid
