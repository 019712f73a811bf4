"""What each file of a model is, by its bytes and by its name: both must agree, and no file may be code."""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from shiplift.runtime.admission import judging
from shiplift.runtime.admission.allowed import Pickle
from shiplift.runtime.admission.formats import pickles
from shiplift.runtime.records.model import Finding

HEAD_BYTES = 4096
_CODE = re.compile(
    r"\.(py|pyc|pyo|pyd|pyi|pyx|ipynb|so(\.[0-9]+)*|dll|dylib|exe|com|bat|cmd|ps1|sh|bash|o|a|jar|class|whl|egg|js|"
    r"wasm|lua|r|rb|pl|desktop|pth\.py)$",
    re.IGNORECASE,
)
_ARCHIVE = re.compile(r"\.(zip|tar|tgz|gz|bz2|xz|lzma|lz4|zst|z|7z|rar)$", re.IGNORECASE)
_HEADS = (
    (b"\x7fELF", "a program or library"),
    (b"\xcf\xfa\xed\xfe", "a program or library"),
    (b"\xce\xfa\xed\xfe", "a program or library"),
    (b"\xca\xfe\xba\xbe", "a program or library"),
    (b"#!", "a script"),
    (b"\x1f\x8b", "compressed data"),
    (b"BZh", "compressed data"),
    (b"\xfd7zXZ\x00", "compressed data"),
    (b"\x04\x22\x4d\x18", "compressed data"),
    (b"\x28\xb5\x2f\xfd", "compressed data"),
    (b"7z\xbc\xaf\x27\x1c", "an archive"),
    (b"Rar!", "an archive"),
)
HDF5, ZIP = b"\x89HDF\r\n\x1a\n", b"PK"
# What a file must begin with, by the ending of its name. TensorFlow's `.pb` and plain weights have no mark.
_EXPECTED: dict[str, tuple[bytes, ...]] = {
    **dict.fromkeys(("pt2", "skops", "npz", "keras", "pt", "pth", "ckpt"), (b"PK\x03\x04",)),
    **dict.fromkeys(("pkl", "pickle", "joblib", "p"), tuple(b"\x80" + bytes([n]) for n in range(2, 6))),
    "npy": (b"\x93NUMPY",),
    **dict.fromkeys(("h5", "hdf5"), (HDF5,)),
    "parquet": (b"PAR1",),
    "png": (b"\x89PNG",),
    **dict.fromkeys(("jpg", "jpeg"), (b"\xff\xd8",)),
    "ubj": (b"{",),
}
_TEXT = {"json", "yaml", "yml", "txt", "md", "csv", "lgb", "cfg", "toml", "mlmodel"}
_PICKLES = {"pkl", "pickle", "joblib", "p"}


@dataclass(kw_only=True)
class ScanRules:
    """The rules for one scan, and the rest of its budget: the bytes to which archives may still unpack.

    `raw` are members of archives that are read only as numbers, as `FILE:MEMBER`. `walked` are the files that are
    pickles from beginning to end: every name and call in them has been judged.
    """

    pickle: Pickle
    budget_bytes: int
    raw: set[str] = field(default_factory=set)
    walked: set[str] = field(default_factory=set)


def suffix(name: str) -> str:
    """A file's type by its name, in lower case, such as `onnx`; the whole name if it has no dot."""
    last = name.rpartition("/")[2].lower()
    return last.rpartition(".")[2] if "." in last else last


def objection(file: str, what: str) -> Finding:
    """A finding that refuses the version."""
    return Finding(severity="critical", file=file, what=what)


def by_name(name: str) -> Iterator[Finding]:
    """Objections to a name alone: code, and archives that none of our loaders reads."""
    if _CODE.search(name):
        yield objection(name, "its name is that of a code file")
    elif _ARCHIVE.search(name):
        yield objection(name, "it is an archive, which no model needs")
    elif name.split("/", maxsplit=1)[0] == "code" or "/code/" in f"/{name}":
        yield objection(name, "it is in a folder `code`, from which MLflow imports modules")


def by_bytes(name: str, file: BinaryIO, judge: ScanRules, reader: judging.Reader = "python") -> Iterator[Finding]:
    """Objections to the bytes of a file that is not an archive: whether its type fits its name, and what it pickles."""
    head = file.read(HEAD_BYTES)
    if problem := _type_problem(name, head):
        yield objection(name, problem)
    file.seek(0)
    yield from _pickles(name, file, judge, reader)


def _type_problem(name: str, head: bytes) -> str:
    kind = suffix(name)
    actual = next((what for mark, what in _HEADS if head.startswith(mark)), "") or _subtle(head)
    if actual:
        return f"its bytes are those of {actual}"
    expected = _EXPECTED.get(kind)
    if expected and not head.startswith(expected):
        return f"its bytes are not those of a .{kind} file"
    if head.startswith(ZIP + b"\x03\x04") and not (expected and expected[0].startswith(ZIP)):
        return "its bytes are those of a zip archive"
    if kind in _TEXT and b"\x00" in head:
        return f"its bytes are not those of a .{kind} file: they are not text"
    return ""


def _subtle(head: bytes) -> str:
    """Types whose marks are so short, or so far in, that numbers could contain them: the rest must fit too."""
    if head.startswith(b"MZ") and len(head) >= 64:
        at = int.from_bytes(head[60:64], "little")
        if head[at : at + 4] == b"PE\x00\x00":
            return "a program or library"
    if head[257:262] == b"ustar":
        return "an archive"
    if head[2:4] == b"\r\n" and 3000 <= int.from_bytes(head[:2], "little") < 4000:
        return "compiled Python"
    if head[:1] == b"\x78" and len(head) > 2 and int.from_bytes(head[:2], "big") % 31 == 0 and _inflates(head):
        return "compressed data"
    return ""


def _inflates(head: bytes) -> bool:
    try:
        return bool(zlib.decompressobj().decompress(head, 64))
    except zlib.error:
        return False


def _pickles(name: str, file: BinaryIO, judge: ScanRules, reader: judging.Reader) -> Iterator[Finding]:
    """Walks the pickles at the beginning of the file, one after the other: torch's older files have several."""
    for position in range(100):
        walked = pickles.walk(file, persistent=reader != "python")
        if walked.dangerous:
            yield from judging.findings(walked, name, judge.pickle, reader)
        if position == 0 and walked.whole and walked.headed:
            judge.walked.add(name)
            if not _may_pickle(name, reader):
                yield objection(name, "its bytes are those of a pickle")
        if not walked.whole:
            return
    yield objection(name, "it has more than 100 pickles")


def _may_pickle(name: str, reader: judging.Reader) -> bool:
    return reader != "python" or suffix(name) in _PICKLES
