"""What a release writes below the author's words, and what it never touches."""

from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.gates.description import BEGIN, END, LIMIT, block_of, described, shortened
from shiplift.runtime.records.verdict import Outcome
from tests.unit.examples import check, release_report

LINK, PAGE = "http://mlflow/#/report.html", "http://page/release?model=m&version=1"


@given(st.text(max_size=200), st.text(max_size=50).filter(lambda text: END not in text))
def test_the_author_s_words_stay_and_a_second_release_changes_only_the_block(words: str, news: str) -> None:
    once = described(words, f"{BEGIN}\nfirst\n{END}")
    assert once is not None
    assert once.startswith(words)
    block = f"{BEGIN}\n{news}\n{END}"
    twice = described(f"{once}\nwritten later", block)
    assert twice == (f"{words}\n\n" if words else "") + f"{block}\nwritten later"
    assert described(twice, block) == twice


def test_the_block_has_verdict_checks_and_where_to_look() -> None:
    report = release_report(
        checks=(check(), check(Outcome.FAIL, name="memory", measured=2048.0, reason="too much", do="Shrink it.")),
        verdict=Outcome.FAIL,
        alias="",
    )
    block = block_of(report, link=LINK, page=PAGE)
    assert "**Shiplift: refused**" in block
    assert block.index("memory: 2,048") < block.index("p99")  # what failed comes first
    assert f"]({LINK})" in block
    assert f"]({PAGE})" in block
    assert "`shiplift report" in block
    assert "- what to do about `memory: Shrink it.`" in block


def test_what_authors_write_is_text() -> None:
    hostile = "<script>alert(1)</script> [x](http://evil) `x` ``` \u202e\n# h"
    report = release_report(reason=hostile, alias="", checks=(check(Outcome.FAIL, name=hostile),), model="a`<b>`")
    block = block_of(report, link="", page="")
    outside = [line for line in block.splitlines() if "`" not in line and line not in (BEGIN, END)]
    assert not any("script" in line or "evil" in line for line in outside)
    assert "\u202e" not in block
    assert not any(line.startswith("#") for line in block.splitlines())


def test_without_room_there_are_fewer_checks_and_at_last_none_of_it() -> None:
    report = release_report(checks=tuple(check(name=f"check {number}") for number in range(40)))
    long = shortened("x" * (LIMIT - 700), report, link=LINK, page=PAGE)
    assert long is not None
    assert len(long) <= LIMIT
    assert "more checks are in the report" in long
    assert shortened("x" * LIMIT, report, link=LINK, page=PAGE) is None


def test_a_report_that_could_not_be_kept_is_said() -> None:
    assert "may not write" in block_of(release_report(), link="", page="", unkept="this account may not write")
