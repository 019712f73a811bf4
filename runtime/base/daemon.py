"""What long-running processes share: how they log, how they are stopped, and how they report why they ended."""

import signal
import sys
import threading
from collections.abc import Callable

from shiplift.runtime.base.errors import ShipliftError


def log_as_json() -> None:
    """Makes structlog write JSON lines with a time and a level to stdout, exceptions included."""
    import structlog  # noqa: PLC0415 - only long-running processes have it

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ]
    )


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def run_main(main: Callable[[], object]) -> None:
    """Runs a process's main function. An error is printed, and its own exit code ends the process."""
    try:
        main()
    except ShipliftError as error:
        print(f"{error.title}: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from error
