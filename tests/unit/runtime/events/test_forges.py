"""A commit gets its status on a server that takes requests as the forges' documentation describes them."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from shiplift.runtime.base.git import path_of
from shiplift.runtime.events.delivery import EventDelivery
from shiplift.runtime.events.emit import emit
from shiplift.runtime.events.event import ModelEvent, begun, ended, model_event
from shiplift.runtime.events.forges import STATES
from shiplift.runtime.events.kinds import ENDED, EventKind
from shiplift.runtime.events.outbox import Outbox
from shiplift.runtime.events.targets import EventSettings, EventTarget
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Outcome

SHA, TOKEN, PAGE = "a1" * 20, "t0ken-of-this-test", "https://shiplift.example/release?model=digits&version=4"
PUSH = Trigger(kind="git", commit=SHA, repository="Acme/models", requested_at=5.0)
LONG = "p99 is 80 ms, the limit is 50 ms " * 20


@dataclass
class Server:
    """Both forges' APIs, with the limits and the answers that they document; `down` answers 503."""

    port: int = 0
    down: bool = False
    answer: tuple[int, str] | None = None
    paths: list[str] = field(default_factory=list)
    statuses: list[dict[str, Any]] = field(default_factory=list)

    def take(self, path: str, headers: Any, status: dict[str, Any]) -> tuple[int, str]:
        self.paths.append(path)
        if self.down or self.answer:
            return self.answer or (503, "")
        if github := re.fullmatch(r"/api/v3/repos/([^/]+)/([^/]+)/statuses/([0-9a-f]{40})", path):
            assert github.groups() == ("acme", "models", SHA)
            assert headers["accept"] == "application/vnd.github+json"
            allowed = headers["authorization"] == f"Bearer {TOKEN}"
            assert set(status) <= {"state", "target_url", "description", "context"}
            assert status["state"] in ("error", "failure", "pending", "success")
            assert len(status["description"]) <= 140
        elif re.fullmatch(rf"/api/v4/projects/acme%2Fmodels/statuses/{SHA}", path):
            allowed = headers["private-token"] == TOKEN
            assert set(status) <= {"state", "target_url", "description", "name"}
            assert status["state"] in ("pending", "running", "success", "failed", "canceled")
            assert len(status["description"]) <= 255
            if allowed and self.statuses and self.statuses[-1]["state"] == status["state"]:
                return 400, json.dumps(
                    {"message": "Cannot transition status via :enqueue from :pending (Reason(s): x)"}
                )
        else:
            return 404, "{}"
        if not allowed:
            return 401, "{}"
        self.statuses.append(status)
        return 201, "{}"


@pytest.fixture
def server() -> Iterator[Server]:
    forge = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            code, text = forge.take(self.path, self.headers, json.loads(body))
            self.send_response(code)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    forge.port = listening.server_port
    threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield forge
    listening.shutdown()
    listening.server_close()


class Home:
    """A home with a forge as its target."""

    def __init__(self, folder: Path, server: Server, form: str) -> None:
        self.folder, self.now, self.told = folder, 1e9, list[str]()
        token = folder / "token"
        token.write_text(f"{TOKEN}\n")
        base = {"github": "/api/v3/", "gitlab": "/api/v4"}[form]
        self.target = EventTarget(
            name="forge",
            format=form,
            url=f"http://127.0.0.1:{server.port}{base}",
            repository="acme/models",
            secret_file=str(token),
        )
        transport = httpx.HTTPTransport(verify=False)  # certificates take a while to load, and it is http
        self.delivery = EventDelivery(
            folder, "urn:shiplift:x", self.told.append, transport=transport, clock=lambda: self.now
        )
        self.outbox = Outbox(folder)
        self.outbox.place("forge")

    def tell(self, *events: ModelEvent) -> None:
        for event in events:
            emit(self.folder, event)
        self.now += 300
        self.delivery.deliver(self.target, EventSettings(targets=(self.target,)))


def start(trigger: Trigger = PUSH) -> ModelEvent:
    return begun("r4", Request(model="digits", version=4), trigger, 1e9, PAGE)


def end(exit_code: int = 0, trigger: Trigger = PUSH) -> ModelEvent:
    report = ReleaseReport(
        model="digits",
        version=4,
        verdict=Outcome.FAIL if exit_code else Outcome.PASS,
        alias="" if exit_code else "champion",
        endpoint=None,
        stages=(),
        checks=(),
        release="r4",
        reason=LONG,
        exit_code=exit_code,
        seconds=1,
        since_request_seconds=1,
        overhead_seconds=1,
    )
    return ended(report, trigger, 1e9, PAGE)


def test_a_commit_on_github_gets_a_status_for_each_model_that_it_released(tmp_path: Path, server: Server) -> None:
    home = Home(tmp_path, server, "github")
    home.tell(start(), end())
    common = {"context": "shiplift/digits", "target_url": PAGE}
    assert server.statuses == [
        {"state": "pending", "description": "digits/4 started", **common},
        {"state": "success", "description": "digits/4 promoted", **common},
    ]
    home.tell(end(exit_code=20, trigger=PUSH.model_copy(update={"requested_at": 9.0})))
    assert server.statuses[-1]["state"] == "failure"
    assert server.statuses[-1]["description"].startswith("digits/4 refused: p99 is 80 ms")


def test_one_on_gitlab_does_and_a_state_that_it_has_is_no_error(tmp_path: Path, server: Server) -> None:
    home = Home(tmp_path, server, "gitlab")
    again = PUSH.model_copy(update={"requested_at": 6.0})
    home.tell(start(), start(again), end(exit_code=20))
    assert [each["state"] for each in server.statuses] == ["pending", "failed"]
    assert (len(server.paths), home.outbox.place("forge").waiting, home.told) == (3, 0, [])
    server.answer = 400, json.dumps({"message": "state does not have a valid value"})
    home.tell(end())
    assert home.outbox.place("forge").problem == "it answered 400"


@pytest.mark.parametrize("form", ["github", "gitlab"])
def test_one_that_was_down_is_told_later_and_the_token_is_in_no_message(
    form: str, tmp_path: Path, server: Server
) -> None:
    home = Home(tmp_path, server, form)
    server.down = True
    home.tell(start(), end())
    assert (server.statuses, home.outbox.place("forge").waiting) == ([], 2)
    server.down = False
    home.tell()
    assert [each["state"] for each in server.statuses] == ["pending", "success"]
    (tmp_path / "token").write_text("another token")
    home.tell(end(trigger=PUSH.model_copy(update={"requested_at": 7.0})))
    assert home.outbox.place("forge").problem == "it answered 401"
    assert "it answered 401" in home.told[-1]
    assert not any(token in str(home.told) + str(home.outbox.places()) for token in (TOKEN, "another token"))
    (tmp_path / "token").unlink()
    home.tell()
    assert "has no secret" in home.outbox.place("forge").problem


def test_only_commits_of_its_repository_get_one(tmp_path: Path, server: Server) -> None:
    home = Home(tmp_path, server, "github")
    others = [
        Trigger(kind="webhook"),
        PUSH.model_copy(update={"repository": "acme/models-of-others"}),
        PUSH.model_copy(update={"repository": "emca/models"}),
        PUSH.model_copy(update={"repository": ""}),
    ]
    others = [each.model_copy(update={"requested_at": float(number)}) for number, each in enumerate(others)]
    home.tell(*map(start, others), model_event(EventKind.ROLLED_BACK, "digits", 3, at=1e9))
    assert (server.paths, home.outbox.place("forge").waiting) == ([], 0)
    pushed = path_of("https://user:s3cret@git.example/srv/acme/models.git")
    assert pushed == "srv/acme/models"
    home.tell(start(PUSH.model_copy(update={"repository": pushed})))
    assert len(server.statuses) == 1


def test_every_end_of_a_release_has_a_state() -> None:
    assert set(ENDED.values()) | {EventKind.STARTED} == set(STATES)


def test_what_a_forge_needs_is_asked_for_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"name": "forge", "format": "github", "repository": "acme/models", "secret_env": "FORGE_TOKEN"}
    assert EventTarget.model_validate(good).address() == "https://api.github.com"
    assert EventTarget.model_validate(good | {"format": "gitlab"}).address() == "https://gitlab.com/api/v4"
    monkeypatch.setenv("FORGE_API", "https://github.example/api/v3")
    assert EventTarget.model_validate(good | {"url_env": "FORGE_API"}).address() == "https://github.example/api/v3"
    wrong: list[dict[str, object]] = [
        {"repository": ""},
        {"repository": "models"},
        {"repository": "acme/../models?x"},
        {"secret_env": ""},
        {"url": "http://github.example/api/v3"},
        {"hook": True},
        {"format": "slack", "url": "https://chat.example"},
    ]
    for changes in wrong:
        with pytest.raises(ValidationError):
            EventTarget.model_validate(good | changes)


def test_an_event_that_no_push_led_to_is_written_as_before() -> None:
    assert not {"commit", "repository", "link"} & set(start(Trigger()).model_copy(update={"link": ""}).model_dump())
    assert "repository" not in Trigger().model_dump()
    data = start().cloud_event("urn:x")["data"]
    assert isinstance(data, dict)
    assert (data["commit"], data["repository"], data["link"]) == (SHA, "Acme/models", PAGE)
