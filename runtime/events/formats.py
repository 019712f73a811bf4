"""How an event is written for a target, by the format's name: its body, its content type and its headers.

Signatures follow Standard Webhooks: HMAC-SHA256 over `id.timestamp.body`, so that a receiver can check who sent it,
and that it is not an old one. Chats can't check signatures; their address is the secret. Neither the `cloudevents`
package nor `standardwebhooks` is used: the first would be a dependency for eight fields, the second for five lines.
"""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shiplift.runtime.events.event import ModelEvent
from shiplift.runtime.events.kinds import BAD, GOOD
from shiplift.runtime.events.targets import EventTarget, Format

_PREFIX = "whsec_"
Written = tuple[str, Any]


def _cloud_event(event: ModelEvent, source: str) -> Written:
    return "application/cloudevents+json; charset=utf-8", event.cloud_event(source)


def _slack(event: ModelEvent, _: str) -> Written:
    return "application/json", {"text": f"{_mark(event)} {_escaped(event.sentence)}"}


def _teams(event: ModelEvent, _: str) -> Written:
    colour = "Good" if event.kind in GOOD else "Attention" if event.kind in BAD else "Default"
    facts = {"model": event.subject, "release": event.release}
    card = {
        "type": "AdaptiveCard",
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "version": "1.4",
        "body": [
            {"type": "TextBlock", "text": event.sentence, "wrap": True, "weight": "Bolder", "color": colour},
            {"type": "FactSet", "facts": [{"title": name, "value": fact} for name, fact in facts.items() if fact]},
        ],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return "application/json", {"type": "message", "attachments": [attachment]}


FORMATS: Mapping[Format, Callable[[ModelEvent, str], Written]] = {
    "cloudevents": _cloud_event,
    "slack": _slack,
    "teams": _teams,
}


def written(event: ModelEvent, form: Format, source: str, secret: str, now: float) -> tuple[bytes, dict[str, str]]:
    """An event's body and headers; it is signed if there is a secret."""
    content_type, document = FORMATS[form](event, source)
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    headers = {"content-type": content_type, "webhook-id": event.id, "webhook-timestamp": str(int(now))}
    if secret:
        headers["webhook-signature"] = signature(secret, event.id, int(now), body)
    return body, headers


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A request that tells a target of an event. An answer 400 with the text `known` says that it knew that before."""

    address: str
    body: bytes
    headers: Mapping[str, str]
    known: str = ""


def letter(event: ModelEvent, target: EventTarget, source: str, now: float) -> Letter:
    """The request that tells a target of an event that it wants. A token is only in the headers.

    Raises:
        SpecInvalid: the target's address or secret is missing.
    """
    address, secret, forge = target.address(), target.secret(), target.forge
    if forge is None:
        body, headers = written(event, target.format, source, secret, now)
        return Letter(address=address, body=body, headers=headers)
    path = forge.path(target.repository, event.commit)
    status = json.dumps(forge.status(event), ensure_ascii=False).encode()
    headers = {"content-type": "application/json", **forge.headers(secret)}
    return Letter(address=f"{address.rstrip('/')}{path}", body=status, headers=headers, known=forge.known)


def signature(secret: str, event_id: str, timestamp: int, body: bytes) -> str:
    """The signature of a delivery. A secret in Standard Webhooks' form (`whsec_...`) is base64, another is as it is."""
    key = secret.encode()
    if secret.startswith(_PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            key = secret.encode()
    signed = b".".join((event_id.encode(), str(timestamp).encode(), body))
    return f"v1,{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"


def _mark(event: ModelEvent) -> str:
    return ":white_check_mark:" if event.kind in GOOD else ":x:" if event.kind in BAD else ":information_source:"


def _escaped(text: str) -> str:
    """Text in which Slack finds no link and no mention: names and reasons come from others."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
