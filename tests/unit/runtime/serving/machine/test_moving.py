"""Aborts and commits of a promotion on one machine: whichever comes first counts, in every order of events."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.records.promotion import Abort, Moving
from shiplift.runtime.serving.machine import moving

FIRST, SECOND = Moving(version=2, requested_at=1), Moving(version=2, requested_at=2)
ANA, BOB = Abort(by="ana"), Abort(by="bob")
EVENTS = st.lists(st.sampled_from(["begin", "begin another", "ana", "bob", "commit", "forget"]), max_size=12)


@given(EVENTS)
def test_the_first_of_abort_and_commit_counts_until_another_release_begins(events: list[str]) -> None:
    with TemporaryDirectory() as folder:
        home, expected = Path(folder), None
        for event in events:
            open_ = expected is not None and not (expected.committed or expected.abort)
            if event == "forget":
                moving.forget(home, "digits", 2)
                expected = None
            elif event.startswith("begin"):
                begun = SECOND if "another" in event else FIRST
                same = expected is not None and expected.requested_at == begun.requested_at
                expected = expected if same else begun
                assert moving.begin(home, "digits", begun) == expected
            elif event == "commit":
                expected = expected.model_copy(update={"committed": True}) if expected and open_ else expected
                assert moving.commit(home, "digits") == expected
            else:
                order = ANA if event == "ana" else BOB
                expected = expected.model_copy(update={"abort": order}) if expected and open_ else expected
                assert moving.abort(home, "digits", order) == expected
            assert moving.moving(home, "digits") == expected


def test_the_promotion_of_another_version_is_not_forgotten(tmp_path: Path) -> None:
    moving.begin(tmp_path, "digits", FIRST)
    moving.forget(tmp_path, "digits", 3)
    assert moving.moving(tmp_path, "digits") == FIRST
    assert moving.moving(tmp_path, "letters") is None


def test_an_order_may_come_before_its_promotion_begins(tmp_path: Path) -> None:
    for begun, kept in ((FIRST, ANA), (SECOND, None)):
        moving.abort(tmp_path, "digits", ANA, before=FIRST)
        assert moving.begin(tmp_path, "digits", begun) == begun.model_copy(update={"abort": kept})
        moving.forget(tmp_path, "digits", 2)
