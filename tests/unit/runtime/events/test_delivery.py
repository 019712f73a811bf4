"""Each target gets each event at least once, in order, whatever the targets do."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.events.delivery import EventDelivery
from shiplift.runtime.events.emit import emit
from shiplift.runtime.events.event import ModelEvent, model_event
from shiplift.runtime.events.formats import FORMATS, signature, written
from shiplift.runtime.events.kinds import ENDED, EventKind
from shiplift.runtime.events.outbox import Outbox
from shiplift.runtime.events.targets import EventSettings, EventTarget

URL = "https://hooks.example/T0/secret-path"


def event(number: int, kind: EventKind = EventKind.PROMOTED, model: str = "digits", at: float = 1e9) -> ModelEvent:
    return model_event(kind, model, number, at=at, key=str(number))


class Receiver:
    """A home with a target, and the target's server."""

    def __init__(self, home: Path, **changes: object) -> None:
        self.home, self.outbox, self.now = home, Outbox(home), 1e9
        self.target = EventTarget.model_validate({"name": "ops", "url": URL, **changes})
        self.settings = EventSettings(targets=(self.target,))
        self.got: list[httpx.Request] = []
        self.told: list[str] = []
        self.answer: Callable[[], httpx.Response] = lambda: httpx.Response(204)
        self.delivery = self.restarted()
        self.outbox.place("ops")

    def restarted(self) -> EventDelivery:
        transport = httpx.MockTransport(self._receive)
        return EventDelivery(self.home, "urn:shiplift:x", self.told.append, transport=transport, clock=lambda: self.now)

    def _receive(self, request: httpx.Request) -> httpx.Response:
        self.got.append(request)
        return self.answer()

    def deliver(self, *, later_s: float = 0) -> list[int]:
        self.now += later_s
        before = len(self.got)
        self.delivery.deliver(self.target, self.settings)
        return [json.loads(request.content)["data"]["version"] for request in self.got[before:]]


def test_a_target_that_was_away_gets_everything_once_in_order(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)
    receiver.answer = lambda: httpx.Response(503)
    for number in (1, 2, 3, 2):
        emit(tmp_path, event(number))
    assert receiver.deliver() == [1]
    assert receiver.deliver() == []  # it pauses
    pauses = [receiver.deliver(later_s=each) for each in (1, 1, 1, 2, 4)]
    assert pauses == [[1], [], [1], [], [1]]
    receiver.delivery, receiver.answer = receiver.restarted(), lambda: httpx.Response(200)
    assert receiver.deliver(later_s=300) == [1, 2, 3]
    assert receiver.deliver(later_s=300) == []
    assert [each.headers["webhook-id"] for each in receiver.got[-3:]] == [event(number).id for number in (1, 2, 3)]
    assert receiver.told == ["events target 'ops' does not take events: it answered 503. They are kept"]


def test_a_new_target_hears_of_what_happens_from_now_on_and_of_what_it_asked_for(tmp_path: Path) -> None:
    emit(tmp_path, event(1))
    receiver = Receiver(tmp_path, kinds=["model.retired"], models=["digits"])
    emit(tmp_path, event(2))
    emit(tmp_path, event(3, EventKind.RETIRED))
    emit(tmp_path, event(4, EventKind.RETIRED, "letters"))
    assert receiver.deliver() == [3]
    assert receiver.outbox.place("ops").waiting == 0


def test_what_a_target_refuses_for_good_is_a_dead_letter_and_the_rest_follows(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)
    receiver.answer = lambda: httpx.Response(302, headers={"location": "http://127.0.0.1/"})
    emit(tmp_path, event(1))
    emit(tmp_path, event(2))
    for _ in range(5):
        assert receiver.deliver(later_s=300) == [1]
    receiver.answer = lambda: httpx.Response(200)
    assert receiver.deliver() == [2]
    assert (receiver.outbox.place("ops").dead, "dead letter" in receiver.told[-1]) == (1, True)


@pytest.mark.parametrize("limits", [{"waiting": 2}, {"give_up_hours": 1}])
def test_the_oldest_of_too_many_or_too_old_ones_are_dead_letters_and_that_is_told(
    tmp_path: Path, limits: dict[str, float]
) -> None:
    receiver = Receiver(tmp_path)
    receiver.settings = EventSettings(targets=(receiver.target,), **limits)  # type: ignore[arg-type]
    for number in range(1, 6):
        emit(tmp_path, event(number, at=1e9 + (7200 if number > 3 else 0)))
    assert receiver.deliver(later_s=7200) == [4, 5]
    assert receiver.outbox.place("ops").dead == 3
    assert receiver.told == ["events target 'ops' lost 3 events to the dead letters: they waited for too long"]


def test_no_secret_and_no_address_is_in_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver(tmp_path, secret_env="HOOK_SECRET")
    emit(tmp_path, event(1))
    assert receiver.deliver() == []
    assert "variable HOOK_SECRET has no secret" in receiver.told[0]
    monkeypatch.setenv("HOOK_SECRET", "s3cret")

    def broken() -> httpx.Response:
        raise httpx.ConnectError(f"no route to {URL}")

    receiver.answer = broken
    receiver.deliver(later_s=300)
    problem = receiver.outbox.place("ops").problem
    assert problem == "it does not answer (ConnectError)"
    assert "s3cret" not in str(receiver.outbox.places()) + str(receiver.told)
    for wrong in ({"url": "ftp://x"}, {"url": "http://a:b@x"}, {"url": ""}, {"url": URL, "url_env": "X"}):
        with pytest.raises(ValidationError):
            EventTarget.model_validate({"name": "ops", **wrong})
    monkeypatch.setenv("ODD", "no address")
    with pytest.raises(SpecInvalid, match="is not a URL") as refused:
        EventTarget(name="ops", url_env="ODD").address()
    assert "no address" not in refused.value.what


def test_a_signature_is_what_standard_webhooks_says() -> None:
    body, headers = written(event(1), "cloudevents", "urn:x", "whsec_" + base64.b64encode(b"key").decode(), 1e9)
    signed = f"{headers['webhook-id']}.1000000000.".encode() + body
    expected = base64.b64encode(hmac.new(b"key", signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert signature("plain", "i", 1, b"b") != signature("whsec_plain", "i", 1, b"b")
    assert "webhook-signature" not in written(event(1), "cloudevents", "urn:x", "", 1e9)[1]


def test_an_event_has_the_attributes_of_cloudevents() -> None:
    document = event(3).cloud_event("urn:shiplift:x")
    assert {name: document[name] for name in ("specversion", "source", "type", "subject", "time")} == {
        "specversion": "1.0",
        "source": "urn:shiplift:x",
        "type": "dev.shiplift.release.promoted",
        "subject": "digits/3",
        "time": "2001-09-09T01:46:40.000Z",
    }


@pytest.mark.parametrize("form", FORMATS)
def test_names_and_reasons_are_only_text_in_every_format(form: str) -> None:
    hostile = model_event(EventKind.REFUSED, "<!channel>", 1, at=1e9, text="<http://evil|click>\n\x1b[2J")
    body, headers = written(hostile, form, "urn:x", "", 1e9)  # type: ignore[arg-type]
    text = json.dumps(json.loads(body))
    assert "json" in headers["content-type"]
    assert "\\u001b" not in text
    assert form != "slack" or "<" not in text


def test_the_outbox_keeps_what_a_target_waits_for_and_lists_the_newest(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    assert (outbox.events(newest=5), outbox.places()) == ([], [])
    outbox.place("ops")
    for number in range(1, 8):
        assert outbox.add(event(number, model="ab"[number % 2]), keep=3)
    assert not outbox.add(event(7, model="b"), keep=3)
    assert len(outbox.events()) == 7
    outbox.delivered("ops", 6)
    outbox.add(event(8, model="a"), keep=3)
    assert [each.version for _, each in outbox.events()] == [7, 8]
    assert [each.version for _, each in outbox.events(newest=2)] == [7, 8]
    assert [each.version for _, each in outbox.events(model="a", newest=9)] == [8]
    outbox.retain(("other",))
    assert outbox.places() == []


def test_every_end_of_a_release_has_a_kind() -> None:
    assert {str(kind) for kind in ENDED.values()} == {
        str(kind)
        for kind in EventKind
        if kind.startswith("release.") and kind not in (EventKind.STARTED, EventKind.SHADOWING)
    }
