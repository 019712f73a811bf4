"""A real stack in a real Chromium: a release is watched to its refusal, another approved, and the registry hangs.

With SHIPLIFT_SCREENSHOTS, the pictures of the documentation are taken.
"""

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
from PIL import Image

from shiplift.pipelines.engines.local import status
from shiplift.runtime.base.names import release_name
from tests.browser.conftest import PHONE, Watched
from tests.integration.conftest import JUDGED, Lab, until

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SIZE = {"width": 1100, "height": 820}
APPROVED = f"{JUDGED}promotion: {{approval: required}}\n"


def pictured(watched: Watched, name: str) -> None:
    """Takes a picture of the window for the documentation, in few colours: a page is mostly text."""
    if os.environ.get("SHIPLIFT_SCREENSHOTS"):
        shot = Image.open(io.BytesIO(watched.page.screenshot()))
        shot.convert("RGB").quantize(256).save(IMAGES / f"{name}.png", optimize=True)


def test_releases_are_watched_refused_and_approved_in_a_browser(lab: Lab, opened: Callable[..., Watched]) -> None:
    base = status.endpoints(lab.running).page
    watched = opened(base, viewport=SIZE, color_scheme="light", reduced_motion="reduce")
    assert lab.wait("numerals", lab.log_classifier("numerals", samples=800, spec=JUDGED)).exit_code == 0
    worse = _watched_to_its_refusal(lab, watched)
    better = _approved(lab, watched)
    _tried(watched, worse)
    # A report may run no script, not even axe-core: for these windows only, its policy is put aside.
    large = opened(base, viewport=SIZE, color_scheme="light", bypass_csp=True)
    small = opened(base, viewport=PHONE, color_scheme="dark", bypass_csp=True)
    for version, name in ((better, "report"), (worse, "refused")):
        for each in (large, small):
            each.page.goto(f"/report?model=numerals&version={version}")
            assert each.violations() == []
            assert each.overflow() <= 0
        pictured(large, name)
    _outlives_a_registry_that_hangs(lab, watched)


def _watched_to_its_refusal(lab: Lab, watched: Watched) -> int:
    page = watched.page
    version = lab.log_classifier("numerals", samples=20, spec=JUDGED)
    until(lambda: lab.engine.under_way(release_name("numerals", version, "")))
    page.goto(f"/release?model=numerals&version={version}")
    page.wait_for_selector("[sse-swap=stages] >> text=export")
    assert watched.violations() == []
    pictured(watched, "page-live")
    page.wait_for_selector("h2:has-text('Checks')", timeout=300_000)  # it was swapped in when the release ended
    assert "refused" in page.locator("main").inner_text()
    assert watched.violations() == []
    return version


def _approved(lab: Lab, watched: Watched) -> int:
    page = watched.page
    version = lab.log_classifier("numerals", spec=APPROVED)
    assert lab.wait("numerals", version).exit_code == 23
    page.goto(f"/release?model=numerals&version={version}")
    watched.tab_to("act-approve")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('Approve')")
    watched.tab_to("reason")
    page.keyboard.type("looks right")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Done:")
    page.goto("/model?name=numerals")
    page.wait_for_selector(f"dd:has-text('version {version}')", timeout=120_000)
    assert watched.violations() == []
    pictured(watched, "page")
    return version


def _tried(watched: Watched, refused: int) -> None:
    page = watched.page
    page.goto(f"/ask?model=numerals&version={refused}")
    watched.tab_to("Ask")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=both are only shown", timeout=300_000)  # scikit-learn's pyfunc answers labels alone
    page.goto("/try?name=numerals")
    watched.tab_to("Send")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=predictions")


def _outlives_a_registry_that_hangs(lab: Lab, watched: Watched) -> None:
    page = watched.page
    page.goto("/")
    registry = psutil.Process(lab.running.processes["mlflow"].pid)
    stopped = [registry, *registry.children(recursive=True)]
    try:
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        page.wait_for_selector("text=What you see was true")
        assert page.locator("#model-1").count() == 1
    finally:
        for process in stopped:
            process.send_signal(signal.SIGCONT)
    page.wait_for_selector("text=What you see was true", state="detached")
