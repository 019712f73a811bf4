"""When the next restart of a stuck server may come; no clock runs."""

from shiplift.runtime.serving.machine.restarts import FIRST_PAUSE_S, HEALTHY_S, LONGEST_PAUSE_S, Restarts


def test_the_first_restart_happens_at_once() -> None:
    assert Restarts().wait_s(5) == 0
    assert Restarts().wait_s(1e9) == 0


def test_each_restart_waits_twice_as_long_up_to_the_longest_pause() -> None:
    restarts, now, pauses = Restarts(), 100.0, []
    for _ in range(1200):
        now += restarts.wait_s(now)
        restarts = restarts.after(now)
        pauses.append(restarts.wait_s(now))
    assert pauses[:7] == [FIRST_PAUSE_S * factor for factor in (1, 2, 4, 8, 16, 30, 30)]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_a_pause_ends() -> None:
    restarts = Restarts().after(100)
    assert restarts.wait_s(130) == FIRST_PAUSE_S - 30
    assert restarts.wait_s(100 + FIRST_PAUSE_S) == 0


def test_a_server_that_stayed_healthy_starts_again_from_the_first_pause() -> None:
    restarts = Restarts().after(0).after(200).after(600)
    assert restarts.wait_s(600) == 4 * FIRST_PAUSE_S
    assert restarts.after(600 + HEALTHY_S).in_a_row == 4
    assert restarts.after(601 + HEALTHY_S) == Restarts(in_a_row=1, last_at=601 + HEALTHY_S)
