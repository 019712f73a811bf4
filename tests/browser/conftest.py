"""A real Chromium for the session, and pages in it that notice everything that a browser complains of.

The browser is the system's (`apt-get install chromium`), or the one that SHIPLIFT_CHROMIUM names; Playwright downloads
none. SHIPLIFT_AXE names a newer `axe.min.js` than the one that axe-core-python brings, such as npm's.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from shiplift.pipelines.page.app import create_app
from shiplift.pipelines.page.asking import AnswerCache
from shiplift.pipelines.page.doors import Access
from shiplift.runtime.host.listeners import ConnectionLimits, listener
from tests.integration.conftest import lab, until
from tests.unit.pipelines.page.fakes import FakeEngine

__all__ = ["lab"]  # the real stack of the integration tests

HERE = Path(__file__).parent
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
PHONE = {"width": 375, "height": 667}
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = _missing()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
            if missing:
                item.add_marker(pytest.mark.skip(reason=missing))


def chromium_path() -> str:
    """The browser's program; empty: there is none."""
    named = os.environ.get("SHIPLIFT_CHROMIUM", "")
    return named or next(filter(None, map(shutil.which, _NAMES)), "") or ""


def _missing() -> str:
    if not find_spec("playwright") or not (os.environ.get("SHIPLIFT_AXE") or find_spec("axe_core_python")):
        return "no Playwright or no axe-core: `make browser` installs them (extra `browser`)"
    if not chromium_path():
        return "no Chromium: `apt-get install chromium`, or set SHIPLIFT_CHROMIUM to a browser's program"
    return ""


@dataclass
class Watched:
    """A page in the browser, and what the browser complained of: errors of scripts, of the console, and of requests."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda message: self._console(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        self.page.on("dialog", self._dialog)

    def _console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def _dialog(self, dialog: Any) -> None:  # a script of an author ran
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def violations(self) -> list[str]:
        """What axe-core finds against WCAG 2.1 AA, with the elements."""
        self.page.evaluate(_axe())  # by the debugger: the page's own policy stays as strict as it is
        found = self.page.evaluate("tags => axe.run(document, {runOnly: {type: 'tag', values: tags}})", WCAG)
        return [
            f"{each['id']}: {node['target']} {node['failureSummary']}"
            for each in found["violations"]
            for node in each["nodes"]
        ]

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def focused(self) -> str:
        """The element with the focus: its id, or else its text."""
        script = "document.activeElement.id || document.activeElement.textContent.trim().slice(0, 60)"
        return str(self.page.evaluate(script))

    def tab_to(self, wanted: str, *, limit: int = 80) -> None:
        """Presses Tab until the element of that id, or with that text, has the focus, which must be visible."""
        for _ in range(limit):
            self.page.keyboard.press("Tab")
            if self.focused() == wanted:
                style = "getComputedStyle(document.activeElement).outlineStyle"
                assert self.page.evaluate(style) != "none", f"the focus on {wanted} can't be seen"
                return
        raise AssertionError(f"Tab does not reach {wanted!r}")


def _axe() -> str:
    named = os.environ.get("SHIPLIFT_AXE", "")
    if named:
        return Path(named).read_text()
    spec = find_spec("axe_core_python")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return (Path(next(iter(spec.submodule_search_locations))) / "axe.min.js").read_text()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    # Its own sandbox needs user namespaces, which containers often lack; it opens only pages of this machine.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_path(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def served() -> Iterator[Callable[..., str]]:
    """Serves the page of an engine until the test is over; gives its address."""
    with ExitStack() as stack:
        yield lambda engine, **options: stack.enter_context(serving(engine, **options))


@pytest.fixture
def opened(
    chromium: Any, served: Callable[..., str]
) -> Iterator[Callable[..., Watched]]:  # closed before the server is
    """Opens windows, which are closed after the test; it fails if a browser complained of what it did not expect."""
    contexts, watched = [], []

    def open_(base: str = "", **options: Any) -> Watched:
        context = chromium.new_context(base_url=base or None, **options)
        context.set_default_timeout(60_000)
        contexts.append(context)
        watched.append(Watched(context.new_page()))
        return watched[-1]

    yield open_
    for context in contexts:
        context.close()
    assert [each.complaints for each in watched if each.complaints] == []


@contextmanager
def serving(engine: FakeEngine, *, port: int = 0, **options: Any) -> Iterator[str]:
    """The page of an engine on loopback, as `shiplift up` serves it; gives its address."""
    access = Access(host="127.0.0.1")
    app = create_app(engine, access, asking=AnswerCache(fresh_s=0.1, patience_s=60, slow_s=60), **options)  # type: ignore[arg-type]
    limits = ConnectionLimits(connections=1024, connections_per_source=512)
    server = uvicorn.Server(listener(app, access.host, port, limits, grace_s=1, keep_alive_s=75))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=30)
