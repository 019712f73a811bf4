"""What is wrong with a spec or a pipeline, as far as its file alone can tell."""

from pathlib import Path

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.releases.pipelines import check
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.spec import document

_PIPELINE = {"steps", "members"}  # what a pipeline has, and no release spec


def mistake_in(file: Path) -> str:
    """Every mistake in a file, and what to do; empty if there is none. Members of a pipeline are not looked up."""
    try:
        text = edge.read(file)
        if _PIPELINE & document.load_mapping(text, "the file").keys():
            check.require_sound(check.compose(None, file, text))
        else:
            document.parse(text)
    except ShipliftError as error:
        return str(error)
    return ""
