"""YAML through libyaml, which takes a tenth of the time, where PyYAML was built with it: its wheels are."""

from collections.abc import Iterable, Iterator
from typing import Any

import yaml

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_TEXT = "tag:yaml.org,2002:str"
_BOOLEANS = ("y", "Y", "n", "N")  # of YAML 1.1, which PyYAML leaves unquoted, and kubectl does not read as texts


class _Readable(Dumper):  # type: ignore[misc] # one of two
    """Texts of several lines become blocks."""


def _text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar(_TEXT, text, style="|" if "\n" in text else "'" if text in _BOOLEANS else None)


_Readable.add_representer(str, _text)


def load_all(text: str) -> Iterator[Any]:
    """The documents of a text, as `yaml.safe_load_all` reads them."""
    return yaml.load_all(text, Loader)


def dump_all(bodies: Iterable[Any], **options: Any) -> str:
    """Documents as text for people and kubectl, with texts of several lines as blocks."""
    return str(yaml.dump_all(bodies, Dumper=_Readable, **options))
