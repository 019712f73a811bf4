"""The documentation as tests see it: its pages with what they take from the code, their blocks, links and anchors."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from docs.generator import pages

ROOT = Path(__file__).parents[3]
_BLOCK = re.compile(
    r"(?:<!-- yaml: (?P<kind>\w+) -->\n\s*)?^(?P<indent> *)```(?P<language>\S*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its language, its text, and for YAML what it is, if its page says so."""

    page: str
    language: str
    text: str
    kind: str = ""


@cache
def every_page() -> dict[str, str]:
    """Each page by its path from the root, README included, as it is built."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    paths = [path for path in found if "_build" not in path.parts]
    return {path.relative_to(ROOT).as_posix(): pages.expanded(path.read_text()) for path in paths}


def written(page: str) -> str:
    """A page as its author wrote it."""
    return (ROOT / page).read_text()


def blocks(language: str) -> Iterator[Block]:
    """Every block in that language, of all pages as their authors wrote them."""
    yield from (block for page in every_page() for block in _blocks(page) if block.language == language)


def languages() -> set[str]:
    """The languages of all blocks."""
    return {block.language for page in every_page() for block in _blocks(page)}


def _blocks(page: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(written(page)):
        text = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        yield Block(page=page, language=found["language"], text=text, kind=found["kind"] or "")


def links(page: str) -> Iterator[str]:
    """The relative links and pictures of a page as its author wrote it."""
    text = _BLOCK.sub("", written(page))
    yield from (link for link in _LINK.findall(text) if not re.match(r"[a-z]+:", link))


@cache
def anchors(page: str) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    text = re.sub(r"^ *```.*?^ *```$", "", every_page()[page], flags=re.MULTILINE | re.DOTALL)
    return frozenset(_slug(heading) for heading in _HEADING.findall(text))


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
