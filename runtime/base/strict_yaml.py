"""YAML from untrusted authors: no aliases, anchors, merges or tags, and limits on size, depth and numbers.

With aliases, a few lines become gigabytes; merges can take minutes; and a number of a million digits is a long
division.
"""

from typing import Any

import yaml

MAX_DEPTH = 32
MAX_NUMBER_CHARS = 64
_ADVICE_TAGS = ("tag:yaml.org,2002:str",)


class NotStrict(ValueError):
    """Why a document is refused, with the line. It continues the document's name: `has the alias *x, line 3`."""


class _OwnersLoader(yaml.SafeLoader):
    """PyYAML's safe loader, but it refuses duplicate keys, of which PyYAML silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Builds a mapping."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in seen:
                raise NotStrict(f"is not plain YAML: the key {key.value[:60]!r} appears twice, {_line(key)}")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


class _Loader(_OwnersLoader):
    """The same for untrusted authors. It refuses what a configuration never needs, before it is built."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Builds one node; refuses aliases, anchors, tags, long numbers and deep nesting."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _refused(event, f"the alias *{event.anchor}", "write the value out")
        if getattr(event, "anchor", None):
            raise _refused(event, f"the anchor &{event.anchor}", "write the value out")
        if getattr(event, "tag", None) not in (None, "!", *_ADVICE_TAGS):
            raise _refused(event, f"the tag {event.tag}", "leave it out")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _refused(event, f"nesting deeper than {MAX_DEPTH} levels", "flatten it")
        try:
            node = super().compose_node(parent, index)
        finally:
            self._depth -= 1
        _check_number(node)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Builds a mapping; refuses merges, and keys that are not text."""
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused(key, "a key that is a list or a mapping", "write text")
            if key.tag == "tag:yaml.org,2002:merge":
                raise _refused(key, "the merge `<<`", "write the values out")
        return super().construct_mapping(node, deep=deep)


def load(text: str, limit_bytes: int, *, by_owner: bool = False) -> Any:
    """The value of a YAML document. A document by the site's owner may have aliases and merges.

    Raises:
        NotStrict: it is not YAML, is larger than the limit, or uses a refused feature.
    """
    size = len(text.encode(errors="replace"))
    if size > limit_bytes:
        raise NotStrict(f"has {size} bytes, the limit is {limit_bytes}")
    try:
        return yaml.load(text, _OwnersLoader if by_owner else _Loader)  # noqa: S506 - a stricter safe loader
    except NotStrict:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # for example a 13th month
        raise NotStrict(f"is not YAML: {' '.join(str(error).split())[:600]}") from error


def lines(text: str, limit_bytes: int) -> dict[str, int]:
    """The line, from 1, of each key and list item of a document that `load` accepts, by its path, such as `a.b.0`.

    Raises:
        NotStrict: as `load` does.
    """
    load(text, limit_bytes)
    numbers: dict[str, int] = {}
    pending = [("", yaml.compose(text, yaml.SafeLoader))]
    while pending:
        path, node = pending.pop()
        items: list[tuple[str, Any, Any]] = []
        if isinstance(node, yaml.MappingNode):
            items = [(str(key.value), key, value) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            items = [(str(at), value, value) for at, value in enumerate(node.value)]
        for name, at, value in items:
            inner = f"{path}.{name}" if path else name
            numbers[inner] = at.start_mark.line + 1
            pending.append((inner, value))
    return numbers


def _check_number(node: yaml.Node | None) -> None:
    number = isinstance(node, yaml.ScalarNode) and node.tag.rpartition(":")[2] in ("int", "float", "timestamp")
    if number and len(node.value) > MAX_NUMBER_CHARS:  # type: ignore[union-attr]
        raise NotStrict(
            f"has a number of {len(node.value)} characters, the limit is {MAX_NUMBER_CHARS}, {_line(node)}"  # type: ignore[union-attr]
        )


def _refused(at: Any, what: str, instead: str) -> NotStrict:
    return NotStrict(f"has {what}, {_line(at)}, which is not allowed: {instead}")


def _line(at: Any) -> str:
    mark = at.start_mark
    return f"line {mark.line + 1}, column {mark.column + 1}"
