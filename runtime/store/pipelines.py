"""A pipeline's definition and its Python files, as stored in a folder. No Python is run or parsed here."""

from dataclasses import dataclass
from pathlib import Path

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.files import Irregular, read_regular
from shiplift.runtime.composition.checked import Unusable
from shiplift.runtime.spec.document import MAX_SPEC_BYTES
from shiplift.runtime.spec.pipeline import PIPELINE_FILE, PipelineSpec, Written, parse

MAX_SOURCE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A pipeline as it was written, and its Python files by their paths beside it, or why they can't be read."""

    written: Written
    sources: dict[str, bytes | Unusable]

    @property
    def code(self) -> dict[str, bytes]:
        """The Python files that can be read."""
        return {path: source for path, source in self.sources.items() if isinstance(source, bytes)}


def definition(text: str, folder: Path) -> Definition:
    """The pipeline that a text defines, with its files from a folder.

    Raises:
        SpecInvalid: the text is not YAML, or has wrong fields.
    """
    written = parse(text)
    return Definition(written=written, sources=_sources(folder, written.spec))


def read_definition(folder: Path) -> Definition:
    """The pipeline that was logged in a folder.

    Raises:
        SpecInvalid: there is no definition, or it can't be read.
    """
    try:
        text = read_regular(folder / PIPELINE_FILE, MAX_SPEC_BYTES).decode(errors="replace")
    except (Irregular, OSError) as error:
        raise SpecInvalid(f"{PIPELINE_FILE} can't be read: {error}", do="Register the pipeline again.") from error
    return definition(text, folder)


def _sources(folder: Path, spec: PipelineSpec) -> dict[str, bytes | Unusable]:
    """The Python files of a pipeline, or why they can't be read. They are neither run nor parsed here."""
    return {step.python: _source(folder / step.python) for step in spec.steps.values() if step.python}


def _source(file: Path) -> bytes | Unusable:
    try:
        return read_regular(file, MAX_SOURCE_BYTES)
    except Irregular as error:
        return Unusable(what=f"the file can't be read: {error}", do="Put a plain file beside the pipeline.")
    except OSError as error:
        return Unusable(what=f"{file.name} can't be read: {error.strerror}", do="Put it beside the pipeline.")
