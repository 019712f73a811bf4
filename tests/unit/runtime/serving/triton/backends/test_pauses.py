"""The backends' rules after a crash, which are in C: how long a worker waits, and which requests are refused."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shiplift.runtime.serving.triton.building import native

SOURCE = f"""
#include <stdlib.h>
#include "{native.COMMON / "pauses.h"}"
static Crashes crashes;
static Suspects suspects;
double pause(double now) {{ return count_crash(&crashes, now); }}
uint32_t count(void) {{ return crashes.count; }}
void accuse(uint64_t digest, uint64_t worker) {{ suspect(&suspects, digest, worker); }}
void clear(uint64_t digest) {{ acquit(&suspects, digest); }}
uint32_t record(uint64_t digest) {{ return crashes_of(&suspects, digest); }}
uint64_t digest(uint64_t a, uint64_t b, const char *text, size_t size, size_t split) {{
  uint64_t key[] = {{a, b}};
  Digest made = new_digest(key);
  add_bytes(&made, text, split), add_bytes(&made, text + split, size - split);
  return digest_of(made);
}}
"""
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "pause": (ctypes.c_double, ctypes.c_double),
    "count": (ctypes.c_uint32,),
    "accuse": (None, ctypes.c_uint64, ctypes.c_uint64),
    "clear": (None, ctypes.c_uint64),
    "record": (ctypes.c_uint32, ctypes.c_uint64),
    "digest": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t),
}


@pytest.fixture
def rules(tmp_path: Path) -> Callable[..., Any]:
    """The functions of `SOURCE`, by name."""
    compiler = shutil.which("cc") or shutil.which("gcc") or pytest.skip("no C compiler on this machine")
    (tmp_path / "rules.c").write_text(SOURCE)
    command: list[str | Path] = [compiler, *native.FLAGS, "-shared", "-fPIC", "-o", tmp_path / "rules.so"]
    subprocess.run([*command, tmp_path / "rules.c"], check=True)
    library = ctypes.CDLL(str(tmp_path / "rules.so"))
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return lambda name, *arguments: getattr(library, name)(*arguments)


def test_each_pause_is_twice_as_long_up_to_five_minutes_until_a_healthy_hour(rules: Callable[..., Any]) -> None:
    pauses = [rules("pause", 1000.0 + at) for at in range(40)]
    assert pauses[:10] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert set(pauses[10:]) == {300}
    assert rules("count") == 40
    assert rules("pause", 1039.0 + 3601) == 1
    assert rules("count") == 1


def test_requests_are_counted_acquitted_and_forgotten_the_oldest_first(rules: Callable[..., Any]) -> None:
    for digest, worker in ((7, 1), (8, 1), (8, 1), (7, 2)):
        rules("accuse", digest, worker)
    assert [rules("record", digest) for digest in (7, 8, 9)] == [2, 1, 0]
    rules("clear", 8)
    rules("clear", 9)
    assert [rules("record", digest) for digest in (7, 8)] == [2, 0]
    for digest in range(100, 164):
        rules("accuse", digest, 3)
    assert [rules("record", digest) for digest in (7, 100, 163)] == [0, 1, 1]


def test_a_digest_is_siphash_of_all_parts_together(rules: Callable[..., Any]) -> None:
    key = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
    text = bytes(range(15))
    assert {rules("digest", *key, text, 15, split) for split in range(16)} == {0xA129CA6149BE45E5}
    assert rules("digest", 1, 2, text, 15, 3) != 0xA129CA6149BE45E5
