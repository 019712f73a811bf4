"""How long what failed waits until it is tried again, so that a fault that stays costs its neighbours little."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0


def pause_s(failures: int) -> float:
    """The pause after so many failures in a row: 1 s after the first, then twice as long each time, up to 5 min."""
    return float(min(FIRST_PAUSE_S * 2 ** min(failures - 1, 16), LONGEST_PAUSE_S)) if failures > 0 else 0.0
