"""Archives in a model's files: torch's, skops', numpy's and Keras' zips, member by member, within a budget."""

import io
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from shiplift.runtime.admission.contents import ScanRules, by_bytes, by_name, objection, suffix
from shiplift.runtime.admission.formats import programs, skops_files, torchscript
from shiplift.runtime.admission.judging import Reader
from shiplift.runtime.records.model import Finding

MAX_MEMBERS = 20_000
MAX_JSON_BYTES = 64 << 20
_MAX_NESTED_BYTES = 256 << 20
_TORCH = {"pt", "pth", "pt2", "ckpt"}
_UNREADABLE = (  # what zipfile and its decompressors raise of damaged files
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    NotImplementedError,
    RuntimeError,
    OSError,
    ValueError,
    EOFError,
)
_STORAGE = re.compile(r"[^/]+/(data|constants)/[0-9]+")  # the record of a tensor's numbers, to which its pickle refers


def findings(name: str, file: BinaryIO, judge: ScanRules, *, nested: bool = False) -> Iterator[Finding]:
    """Objections to a zip archive and to each of its members."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            problem = _shape(members, judge)
            if problem:
                yield objection(name, problem)
                return
            yield from _members(name, archive, judge, nested=nested)
            yield from _kind(name, archive)
    except _UNREADABLE as error:
        yield objection(name, f"the archive can't be read: {' '.join(str(error).split())[:200]}")


def is_archive(file: BinaryIO) -> bool:
    """Whether a zip reader would accept the file as an archive, wherever in it the archive begins."""
    file.seek(0)
    answer = zipfile.is_zipfile(file)
    file.seek(0)
    return answer


def is_torchscript(names: list[str]) -> bool:
    """Whether TorchScript's own loader reads an archive with these members."""
    return any(name.endswith("/constants.pkl") for name in names)


def _shape(members: list[zipfile.ZipInfo], judge: ScanRules) -> str:
    names = [member.filename for member in members]
    if len(names) > MAX_MEMBERS:
        return f"the archive has {len(names)} members, the limit is {MAX_MEMBERS}"
    if len(set(names)) < len(names):
        return "the archive has two members of the same name"
    if not all(names):
        return "the archive has a member without a name"
    if bad := next((n for n in names if n.startswith("/") or ".." in n.split("/") or "\\" in n), ""):
        return f"the archive has a member outside itself: {bad[:100]!r}"
    size = sum(member.file_size for member in members)
    if size > judge.budget_bytes:
        return f"the archive unpacks to {size >> 20} MiB, the limit is {judge.budget_bytes >> 20} MiB"
    judge.budget_bytes -= size
    return ""


def _members(name: str, archive: zipfile.ZipFile, judge: ScanRules, *, nested: bool) -> Iterator[Finding]:
    names = archive.namelist()
    script = suffix(name) in _TORCH and is_torchscript(names)
    raw = _raw(name, archive, script=script)
    judge.raw |= {f"{name}:{member}" for member in raw}
    for member in archive.infolist():
        if member.is_dir():
            continue
        inner = f"{name}:{member.filename}"
        if script and _is_script(member.filename):
            continue  # torchscript.problems reads it as text
        if not (script and "/code/" in member.filename):
            yield from _named(inner, member.filename)
        if member.filename in raw:
            continue
        reader = _reader(name, member.filename, script=script)
        with archive.open(member) as file:
            if reader == "python" and file.read(4) == b"PK\x03\x04":
                yield from _inner(inner, archive, member, judge, nested=nested)
                continue
        yield from _judged(inner, archive, member, judge, reader)


def _named(inner: str, member: str) -> Iterator[Finding]:
    for finding in by_name(member):
        yield finding.model_copy(update={"file": inner})


def _judged(
    inner: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo, judge: ScanRules, reader: Reader
) -> Iterator[Finding]:
    with archive.open(member) as file:
        yield from by_bytes(inner, file, judge, reader)  # type: ignore[arg-type] # ZipExtFile reads like a file


def _inner(
    inner: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo, judge: ScanRules, *, nested: bool
) -> Iterator[Finding]:
    """An archive inside an archive, as in pt2 files: only one level, and only torch's."""
    if nested or suffix(member.filename) not in _TORCH:
        yield objection(inner, "it is an archive in an archive")
    elif member.file_size > _MAX_NESTED_BYTES:
        yield objection(inner, f"it has {member.file_size >> 20} MiB, the limit is {_MAX_NESTED_BYTES >> 20} MiB")
    else:
        yield from findings(inner, io.BytesIO(archive.read(member)), judge, nested=True)


def _reader(name: str, member: str, *, script: bool) -> Reader:
    if suffix(name) not in _TORCH:
        return "python"
    if script and member.endswith(("pkl", ".debug_pkl")):
        return "torchscript"
    return "torch" if member.endswith(".pkl") else "python"


def _raw(name: str, archive: zipfile.ZipFile, *, script: bool) -> frozenset[str]:
    """The members of a torch file that are read only as numbers: what else they resemble is chance."""
    if suffix(name) not in _TORCH:
        return frozenset()
    storages = frozenset(inner for inner in archive.namelist() if _STORAGE.fullmatch(inner))
    return storages if script or suffix(name) != "pt2" else storages | programs.raw_members(archive, MAX_JSON_BYTES)


def _is_script(member: str) -> bool:
    return "/code/" in member and member.endswith(".py")


def _kind(name: str, archive: zipfile.ZipFile) -> Iterator[Finding]:
    """Rules for archives of one kind."""
    kind, names = suffix(name), archive.namelist()
    if kind in _TORCH and is_torchscript(names):
        problems = torchscript.problems(archive)
    elif kind == "pt2":
        problems = programs.problems(archive, MAX_JSON_BYTES)
    elif kind == "skops":
        problems = skops_files.problems(archive, MAX_JSON_BYTES)
    elif kind == "keras":
        problems = programs.keras_problems(archive, MAX_JSON_BYTES)
    elif kind == "npz":
        problems = (f"{inner} is not an array" for inner in names if suffix(inner) != "npy")
    elif any(inner.endswith("data.pkl") for inner in names):
        problems = iter(())
    else:
        problems = iter((f"it is not an archive that torch writes (.{kind})",))
    for problem in problems:
        yield objection(name, problem)
