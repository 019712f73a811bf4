"""What makes the suite fast.

Collection makes millions of objects and drops few: without the garbage collector it takes 60 % of the time. Afterwards
the collector runs rarely: each run looks at all that libraries hold. Compiled files are kept, so that the many
processes that tests start compile none again. Libraries compute on one thread: models are tiny, and threads that wait
for each other keep the cores busy that other tests need. No test module imports torch at its top: each
worker collects all of them.
"""

import gc
import os
import sys

import pytest

gc.disable()

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # what was imported and collected stays until the end
    gc.set_threshold(50_000, 20, 20)
    gc.enable()
