"""Damaged archives are refused: found by `make fuzz`."""

import io
import zipfile

import pytest

from shiplift.runtime.admission.contents import ScanRules
from shiplift.runtime.admission.formats import archives


def zipped(name: str, kind: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive.writestr(name, b"numbers" * 40)
    return file.getvalue()


def damaged(kind: int) -> bytes:
    body = bytearray(zipped("a.npy", kind))
    at = body.index(b"a.npy") + len("a.npy")
    body[at : at + 12] = b"\xff" * 12
    return bytes(body)


def nameless() -> bytes:
    """Its only member's name ends before its first letter, as the archive's own directory has it."""
    return zipped("a", zipfile.ZIP_STORED).replace(b"a", b"\0")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (damaged(zipfile.ZIP_STORED), "can't be read"),
        (damaged(zipfile.ZIP_DEFLATED), "can't be read"),
        (damaged(zipfile.ZIP_BZIP2), "can't be read"),
        (damaged(zipfile.ZIP_LZMA), "can't be read"),
        (nameless(), "a member without a name"),
    ],
)
def test_a_damaged_archive_is_an_objection(body: bytes, told: str) -> None:
    rules = ScanRules(pickle="sandbox", budget_bytes=1 << 20)
    (found,) = archives.findings("a.npz", io.BytesIO(body), rules)
    assert told in found.what
