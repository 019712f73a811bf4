from pathlib import Path
from typing import cast

import pytest
import typer

from shiplift.pipelines.commands.releases.pipelines import build, check
from shiplift.pipelines.engines.protocol import PastReleases
from shiplift.runtime.base.errors import SpecInvalid, UsageError
from shiplift.runtime.composition.checked import Unusable
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.spec.pipeline import PipelineSpec
from shiplift.runtime.store.pipelines import MAX_SOURCE_BYTES
from tests.unit.pipelines_of_models import CASCADE, OCR, SOURCES, STATIC, members


class Engine:
    """An engine, as far as a pipeline asks it."""

    verified = False

    def members(self, pipeline: PipelineSpec) -> dict[str, Package | Unusable]:
        known = members()
        return {name: known[name] for name in pipeline.members}


ENGINE = cast("PastReleases", Engine())


def composed(folder: Path, text: str) -> check.Composed:
    for name, source in SOURCES.items():
        (folder / name).write_bytes(source)
    return check.compose(ENGINE, folder / "pipeline.yaml", text)


@pytest.mark.parametrize("text", [STATIC, CASCADE, OCR])
def test_the_graph_its_edges_and_the_way_it_runs_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    pipeline = composed(tmp_path, text)
    check.show(pipeline)
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*pipeline.checked.order, pipeline.checked.digest))
    assert all(f"{edge.datatype}[{', '.join(map(str, edge.shape))}]" in shown for edge in pipeline.checked.edges)
    assert "runs as" in shown
    check.end(pipeline, told=False)
    assert capsys.readouterr().err == ""


def test_mistakes_are_listed_and_end_with_the_code_of_a_wrong_spec(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = composed(tmp_path, STATIC.replace("member: encode", "member: nobody"))
    with pytest.raises(typer.Exit) as ended:
        check.end(pipeline, told=False)
    assert ended.value.exit_code == SpecInvalid.exit_code
    assert len(capsys.readouterr().err.splitlines()) == len(pipeline.checked.problems) == 2
    with pytest.raises(typer.Exit):
        check.end(pipeline, told=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda file: file.unlink(), "crop.py can't be read"),
        (lambda file: (file.unlink(), file.symlink_to("/etc/hostname")), "crop.py can't be opened"),
        (lambda file: file.write_bytes(b"#" * (MAX_SOURCE_BYTES + 1)), "the limit is"),
    ],
)
def test_a_source_that_is_no_plain_small_file_is_a_mistake(tmp_path: Path, make: object, what: str) -> None:
    composed(tmp_path, OCR)
    make(tmp_path / "crop.py")  # type: ignore[operator]
    (problem,) = check.compose(ENGINE, tmp_path / "pipeline.yaml", OCR).checked.problems
    assert problem.path == "steps.crop.python"
    assert what in problem.what


def test_nothing_is_built_of_mistakes_without_a_folder_or_of_unverified_members(tmp_path: Path) -> None:
    with pytest.raises(SpecInvalid, match="there is no member"):
        build.build(ENGINE, composed(tmp_path, STATIC.replace("member: encode", "member: nobody")), tmp_path / "b")
    with pytest.raises(UsageError, match="--out"):
        build.build(ENGINE, composed(tmp_path, STATIC), None)
    with pytest.raises(UsageError, match="Build where the stack runs"):
        build.build(ENGINE, composed(tmp_path, STATIC), tmp_path / "b")
    assert not (tmp_path / "b").exists()
