"""YAML through libyaml if PyYAML was built with it, as its wheels are: that takes a tenth of the time."""

from collections.abc import Iterable, Iterator
from typing import Any

import yaml

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_TEXT = "tag:yaml.org,2002:str"
_BOOLEANS = ("y", "Y", "n", "N")  # PyYAML leaves them unquoted, and kubectl reads them as booleans of YAML 1.1


class Readable(Dumper):  # type: ignore[misc] # one of two
    """Writes texts of several lines as blocks."""


def _text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar(_TEXT, text, style="|" if "\n" in text else "'" if text in _BOOLEANS else None)


Readable.add_representer(str, _text)


def load_all(text: str) -> Iterator[Any]:
    """The documents in a text, as `yaml.safe_load_all` reads them."""
    return yaml.load_all(text, Loader)


def dump_all(bodies: Iterable[Any], **options: Any) -> str:
    """Writes documents for people and kubectl, with texts of several lines as blocks."""
    return str(yaml.dump_all(bodies, Dumper=Readable, **options))
