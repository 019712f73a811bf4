"""The commands with their arguments and options, from the parser that reads them."""

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import typer

from docs.generator.markdown import code, table
from shiplift.pipelines.commands.app import app


def commands() -> str:
    """A section per command, in the order of `shiplift --help`."""
    return "\n".join(_command(name, command) for name, command in every_command().items())


def every_command() -> Mapping[str, Any]:
    """The parser of each command, by its name; one of a group has two words."""
    group: Any = typer.main.get_command(app)
    shown = {name: command for name, command in group.commands.items() if not command.hidden}
    found: dict[str, Any] = {}
    for name, command in shown.items():
        inner = getattr(command, "commands", {})
        found |= {f"{name} {own}": each for own, each in inner.items() if not each.hidden} or {name: command}
    return found


def _command(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    usage = " ".join(_metavar(each) for each in arguments)
    rows = [[_names(each), each.help or "", _default(each)] for each in command.params]
    text = re.sub(r"\n\s+", "\n", command.help or "")
    listed = table(["Argument or option", "Meaning", "Default"], rows) if rows else ""
    return f"## shiplift {name}\n\n{text}\n\n```text\nshiplift {name} {usage}".rstrip() + f"\n```\n\n{listed}"


def _metavar(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return code(_metavar(parameter).strip("[]") if not parameter.metavar else parameter.metavar)
    names = ", ".join(code(name) for name in parameter.opts)
    return names if parameter.is_flag else f"{names} {_value(parameter.type_descriptor.annotation)}"


def _value(annotation: Any) -> str:
    """What an option takes: its choices, or the name of its type."""
    if get_origin(annotation) is Literal:
        return " or ".join(code(choice) for choice in get_args(annotation))
    return code({"Path": "FILE", "str": "TEXT", "int": "NUMBER", "float": "NUMBER"}.get(annotation.__name__, "VALUE"))


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    shown = parameter.show_default if isinstance(getattr(parameter, "show_default", None), str) else None
    if shown is not None:
        return code(shown)
    value = parameter.default
    return "" if value is None or value is False or callable(value) or value == () else code(str(value))
