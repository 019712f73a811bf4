"""A clock that leaps: everything that asks Python for the time is told another one, and only that."""

import subprocess
import sys

from shiplift.runtime.guest.python import clock

ASKS = """
import runpy, sys, pickle, time
clock = runpy.run_path(sys.argv[1])["LeapingClock"](400 * 86400)
from datetime import date, datetime, timedelta, timezone
from time import time as now

def seen():
    return [now(), time.time_ns() / 1e9, time.clock_gettime(time.CLOCK_REALTIME), time.mktime(time.localtime()),
        time.mktime(time.strptime(time.ctime())), time.mktime(time.strptime(time.asctime())),
        int(time.strftime("%s")), datetime.now().timestamp(), datetime.now(timezone.utc).timestamp(),
        datetime.utcnow().replace(tzinfo=timezone.utc).timestamp(), datetime.today().timestamp()]

before, day, measured = seen(), date.today(), time.monotonic()
clock.leap()
ahead = [later - earlier - 400 * 86400 for earlier, later in zip(before, seen())]
assert max(map(abs, ahead)) < 3700, ahead  # seconds; mktime may see another season's hour
assert (date.today() - day).days in (400, 401)
assert time.monotonic() - measured < 3600
assert time.gmtime(0).tm_year == datetime.fromtimestamp(86400).year == 1970
moment = datetime.now()
assert type(moment) is datetime and pickle.loads(pickle.dumps(moment)) == moment
assert moment - timedelta(days=1) < datetime.now()
"""


def test_every_clock_of_the_calendar_is_ahead_and_no_other() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-W", "ignore", "-c", ASKS, clock.__file__], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
