import pytest

from shiplift.runtime.base.progress import listening, measuring, progress


def test_whoever_listens_hears_what_goes_on() -> None:
    heard: list[tuple[str, float | None]] = []
    with listening(lambda message, done: heard.append((message, done))):
        progress("one")
        progress("two", 0.5)
    progress("nobody hears this")
    assert heard == [("one", None), ("two", 0.5)]


def test_a_step_called_by_hand_has_no_listener() -> None:
    with listening(None) as spent:
        progress("one")
        with measuring():
            pass
    assert len(spent) == 1


def test_a_listener_ends_with_its_step_also_when_that_fails() -> None:
    outer: list[str] = []
    with listening(lambda message, _: outer.append(message)):
        with pytest.raises(ZeroDivisionError), listening(lambda _message, _done: None):
            progress(f"inner {1 // 0}")
        progress("outer")
    assert outer == ["outer"]


def test_measuring_is_timed_also_when_it_fails() -> None:
    with listening(None) as spent:
        with measuring():
            pass
        with pytest.raises(ZeroDivisionError), measuring():
            raise ZeroDivisionError
    assert len(spent) == 2
    assert all(seconds >= 0 for seconds in spent)
    with measuring():  # outside a step nothing collects it
        pass
    assert len(spent) == 2
