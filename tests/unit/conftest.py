"""Collection makes millions of objects and drops few: without the garbage collector it takes 60 % of the time."""

import gc

import pytest

gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # what was imported and collected stays until the end
    gc.enable()
