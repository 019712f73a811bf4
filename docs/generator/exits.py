"""The exit codes, from the error classes."""

from docs.generator.markdown import table
from shiplift.runtime.base.errors import ShipliftError, every_error

SUCCESS = 0


def exit_codes() -> str:
    """A table of all exit codes; `about the model` says that a retry fails in the same way."""
    rows = [["0", "", "promoted, or the command did what it says", ""]]
    rows += [[str(each.exit_code), f"`{each.__name__}`", _text(each), _again(each)] for each in errors()]
    return table(["Exit code", "Error", "Meaning", "Again?"], rows)


def errors() -> list[type[ShipliftError]]:
    """Every class with an exit code of its own, by that code."""
    return sorted(every_error(), key=lambda each: each.exit_code)


def _text(error: type[ShipliftError]) -> str:
    if error is ShipliftError:
        return "**internal error**: a bug of Shiplift."
    return f"**{error.title}**: {(error.__doc__ or '').strip()}"


def _again(error: type[ShipliftError]) -> str:
    if error.about_model:
        return "The version or its spec has to change."
    return "Shiplift tries again by itself, then says so." if error.exit_code == 75 else ""
