"""A process that dies is started again at once; one that goes on dying waits."""

from shiplift.pipelines.daemons.deaths import Deaths


def test_pauses_double_until_the_process_has_lived_for_a_minute() -> None:
    deaths, now, pauses = Deaths(), 0.0, []
    for _ in range(11):
        ((count, pause),) = deaths.note(["triton"], now).values()
        pauses.append(pause)
        assert count == len(pauses)
        now += pause
        assert deaths.due(now) == {"triton"}
        now += 30
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert deaths.note(["triton"], now + 61) == {"triton": (1, 0.0)}


def test_others_do_not_wait_and_one_that_somebody_started_is_forgotten() -> None:
    deaths = Deaths()
    deaths.note(["triton"], 0.0)
    assert deaths.due(0.0) == {"triton"}
    assert deaths.note(["triton", "receiver"], 1.0) == {"receiver": (1, 0.0), "triton": (2, 1.0)}
    assert deaths.due(1.0) == {"receiver"}
    assert deaths.note(["triton"], 1.5) == {}
    deaths.note([], 1.7)
    assert deaths.due(9.0) == frozenset()
