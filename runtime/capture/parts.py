"""What a pod captured, on its way to the process that keeps it: records as a server wrote them, and where they were."""

import json
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic import ConfigDict, Field

from shiplift.runtime.base.plain_http import NO_AUTHORITIES
from shiplift.runtime.records.base import Record

PATH = "/rows"
# The variables of the senders' token, the readers' token, and the key of hashed columns.
SENDER, READER, HASHES = "SHIPLIFT_CAPTURE_TOKEN", "SHIPLIFT_CAPTURE_READER", "SHIPLIFT_CAPTURE_HASHES"
TOKEN_HEADER = "X-Shiplift-Capture"  # noqa: S105 - not `Authorization`, which the API server's proxy removes
MOST_BYTES = 17 << 20  # a full ring
SERVED = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,249}$"  # what a served name looks like
PLACE = "X-Shiplift-Part"
_TIMEOUT = httpx.Timeout(30, connect=5)


class Part(Record):
    """A part of a ring: `tail` to `after`, of the ring with this `identity`.

    `model` is its served name, `package` the digest of the package that answered. The counters are in requests, since
    the last part.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str = Field(pattern=SERVED)
    package: str = Field(pattern=r"^[0-9a-f]{64}$")
    identity: str = Field(max_length=200)
    tail: int = Field(ge=0)
    after: int = Field(ge=0)
    captured: int = Field(0, ge=0)
    dropped: int = Field(0, ge=0)
    too_large: int = Field(0, ge=0)


class NotKept(Exception):
    """The keeper did not take a part, for a while: the text says why."""


class Unreadable(Exception):
    """The keeper can't read a part, and never will."""


class Sender:
    """Sends parts to the keeper at `uri`, with the senders' `token`."""

    def __init__(self, uri: str, token: str, *, transport: httpx.BaseTransport | None = None) -> None:
        plain = urlsplit(uri).scheme == "http"
        self._client = httpx.Client(
            base_url=uri,
            timeout=_TIMEOUT,
            trust_env=False,
            verify=NO_AUTHORITIES if plain else True,
            headers={TOKEN_HEADER: token},
            transport=transport,
        )

    def send(self, part: Part, records: bytes) -> int:
        """Sends a part; returns up to where the ring's records are kept now.

        Raises:
            NotKept: the keeper is away, is full, or doesn't know the package.
            Unreadable: the records make no sense.
        """
        try:
            answer = self._client.post(PATH, content=records, headers={PLACE: part.model_dump_json()})
            if answer.status_code in (413, 422):
                raise Unreadable(answer.text[:200])
            answer.raise_for_status()
            return int(answer.json()["end"])
        except httpx.HTTPStatusError as error:
            raise NotKept(f"it answered {error.response.status_code} {error.response.text[:200]}") from error
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise NotKept(str(error) or type(error).__name__) from error


def part_of(headers: Any) -> Part:
    """The part that a request is about, from its headers.

    Raises:
        ValueError: they name none.
    """
    return Part.model_validate(json.loads(headers.get(PLACE) or "null"))
