"""What the pages and README show is what the code takes: commands, specs, Python, links."""

import ast
import importlib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import takewhile
from typing import Any

import typer
import yaml

from shiplift.pipelines.commands.app import app
from shiplift.pipelines.engines.local import site_file
from shiplift.pipelines.installation import values
from shiplift.runtime.planning import profiles
from shiplift.runtime.spec import document, pipeline
from tests.project.docs import pages

LANGUAGES = {"sh", "python", "yaml", "text", "{toctree}"}  # `text` is output
SHELL = {">", "|", "&", "&&", ";"}
PARSERS: Mapping[str, Callable[[str], object]] = {
    "": document.parse,
    "pipeline": pipeline.parse,
    "profiles": profiles.parse,
    "values": values.parse,
    "site": lambda text: site_file.SiteFile.model_validate(yaml.safe_load(text)),
}


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of each `shiplift` command in a shell's text."""
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue
        if words and words[0].rpartition("/")[2] == "shiplift":
            yield list(takewhile(lambda word: word not in SHELL, words[1:]))


def mentioned(page: str) -> Iterator[str]:
    """What a page says in line about commands: `shiplift release digits`."""
    text = re.sub(r"^ *```.*?^ *```$", "", pages.written(page), flags=re.MULTILINE | re.DOTALL)
    yield from (found.replace("\n", " ") for found in re.findall(r"`(shiplift [^`]+)`", text))


@cache
def group() -> Any:
    """The parser of `shiplift`."""
    return typer.main.get_command(app)


def wrong(arguments: list[str], *, whole: bool) -> str:
    """Why a command line can't be right; empty if it can. One that is not `whole` may lack arguments."""
    while arguments[:1] == ["--home"]:
        arguments = arguments[2:]
    if arguments and arguments[0] in ("--version", "--help", "--install-completion"):
        return ""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name == "COMMAND":
        return ""
    command = group().commands.get(name)
    if hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name, command, rest = f"{name} {rest[0]}", command.commands.get(rest[0]), rest[1:]
    if command is None or command.hidden:
        return f"there is no command {name!r}"
    try:
        command.make_context(name, [word for word in rest if word != "--help"])
    except Exception as error:
        unfinished = "Missing" in type(error).__name__ or "requires an argument" in str(error)
        return "" if unfinished and not whole else f"{type(error).__name__}: {error}"
    return ""


def test_every_block_is_in_a_language_that_is_tested() -> None:
    assert pages.languages() <= LANGUAGES


def test_every_command_line_in_a_block_parses() -> None:
    lines = [(block.page, line) for block in pages.blocks("sh") for line in commands(block.text)]
    problems = {f"{page}: shiplift {shlex.join(line)}": why for page, line in lines if (why := wrong(line, whole=True))}
    assert len(lines) > 60
    assert not problems


def test_every_command_that_is_mentioned_exists_with_its_options() -> None:
    lines = [(page, line) for page in pages.every_page() for text in mentioned(page) for line in commands(text)]
    problems = {f"{page}: {shlex.join(line)}": why for page, line in lines if (why := wrong(line, whole=False))}
    assert len(lines) > 60
    assert not problems


def test_every_yaml_block_is_valid() -> None:
    blocks = list(pages.blocks("yaml"))
    assert len(blocks) > 20
    for block in blocks:
        PARSERS[block.kind](block.text)


def test_every_python_block_compiles_and_imports_what_exists() -> None:
    for block in pages.blocks("python"):
        for node in ast.walk(ast.parse(block.text)):
            for name in _imported(node):
                importlib.import_module(name)
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "shiplift":
                assert getattr(importlib.import_module("shiplift"), node.attr), block.page


def _imported(node: ast.AST) -> list[str]:
    names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return [name for name in names if name.partition(".")[0] == "shiplift"]


def test_every_link_leads_somewhere() -> None:
    lost = [f"{page}: {link}" for page in pages.every_page() for link in pages.links(page) if not _leads(page, link)]
    assert not lost


def _leads(page: str, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = ((pages.ROOT / page).parent / path).resolve() if path else pages.ROOT / page
    return target.exists() and (not anchor or anchor in pages.anchors(target.relative_to(pages.ROOT).as_posix()))


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = {
        ((pages.ROOT / page).parent / f"{name}.md").resolve().relative_to(pages.ROOT).as_posix()
        for page in pages.every_page()
        for contents in re.findall(r"```\{toctree\}\n(.*?)```", pages.written(page), re.DOTALL)
        for name in re.findall(r"^[\w/-]+$", contents, re.MULTILINE)
    }
    assert {*pages.every_page()} - listed == {"README.md", "docs/index.md"}


def test_readme_begins_with_its_two_commands_and_stays_short() -> None:
    readme = pages.written("README.md")
    assert len(readme.splitlines()) <= 200
    assert readme.index("make demo") < readme.index("make test") < readme.index("![")
