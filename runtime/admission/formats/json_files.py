"""JSON from archives, read within a limit and walked without recursion."""

import json
import zipfile
from collections.abc import Iterator
from typing import Any


class NotJson(ValueError):
    """Says why a member can't be read as JSON."""


def member(archive: zipfile.ZipFile, name: str, limit_bytes: int) -> Any:
    """The value of a member.

    Raises:
        NotJson: it is missing, too large, or not JSON.
    """
    try:
        with archive.open(name) as file:
            body = file.read(limit_bytes + 1)
        if len(body) > limit_bytes:
            raise NotJson(f"{name} has more than {limit_bytes >> 20} MiB")
        return json.loads(body)
    except KeyError:
        raise NotJson(f"it has no {name}") from None
    except (ValueError, RecursionError) as error:
        raise NotJson(f"{name} is not JSON: {type(error).__name__}") from error


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in a JSON value, at any depth."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield item
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
