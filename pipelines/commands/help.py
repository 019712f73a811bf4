"""How `--help` looks: an option says what it takes in a word, and a flag, which takes nothing, has none."""

from typing import Any

from typer.core import TyperCommand, TyperGroup

_WORDS = {"str": "TEXT", "int": "NUMBER", "float": "NUMBER", "path": "FILE", "file": "FILE", "directory": "FOLDER"}


class Command(TyperCommand):
    """A command with such a help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters, as help shows them."""
        return [_shown(parameter) for parameter in super().get_params(ctx)]


class CommandGroup(TyperGroup):
    """Several commands under one name, with such a help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its own parameters, as help shows them."""
        return [_shown(parameter) for parameter in super().get_params(ctx)]


def _shown(parameter: Any) -> Any:
    """The parameter, with what it takes in a word: typer would write the names of Python's types."""
    word = _word(parameter)
    parameter.display_type_rich = lambda ctx: word  # noqa: ARG005 - typer's interface
    return parameter


def _word(parameter: Any) -> str | None:
    if getattr(parameter, "is_flag", False) or parameter.param_type_name == "argument":
        return None
    if parameter.metavar:
        return str(parameter.metavar)
    described = parameter.type_descriptor
    if described.choices:
        return "|".join(map(str, described.choices))
    name = str(getattr(described.annotation, "__name__", "str"))
    return _WORDS.get("path" if described.is_path else name, "TEXT")
