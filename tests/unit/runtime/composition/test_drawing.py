import pytest

from shiplift.runtime.composition.check import check
from shiplift.runtime.composition.drawing import mermaid
from shiplift.runtime.spec.pipeline import parse
from tests.unit.examples import Golden
from tests.unit.pipelines_of_models import CASCADE, OCR, SOURCES, STATIC, members


@pytest.mark.parametrize("text", [STATIC, CASCADE, OCR])
def test_the_flowchart_is_the_one_promised(text: str, golden: Golden) -> None:
    written = parse(text)
    known = members()
    checked = check(written, {name: known[name] for name in written.spec.members}, SOURCES)
    golden(f"pipeline.{written.spec.name}.mmd", mermaid(written.spec, checked))


def test_an_author_s_text_draws_nothing_of_its_own() -> None:
    written = parse(CASCADE.replace("below: 0.8", "equals: '\"] --> evil[\"<b>'"))
    drawn = mermaid(written.spec, check(written, members(), {}))
    assert "-->" not in drawn.replace('" --> ', "")
    assert "<b>" not in drawn
