"""The environment of a Python model as one file, a layer, which pods fetch by its digest.

On a cluster, no pod that serves can reach a package index, and none may write into its image. So the pod that resolved
the requirements installs them once, and packs them with an interpreter (`interpreter.py`). Packing the same environment
again gives the same file.
"""

import gzip
import posixpath
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from shiplift.runtime.base.errors import ArtifactCorrupt
from shiplift.runtime.base.storage import room_for
from shiplift.runtime.model.python.interpreter import PYTHON, copy_interpreter

FOLDER, SUFFIX = "environments", ".tar.gz"  # in a package: environments/DIGEST.tar.gz
INTERPRETER = "python"  # the folder of the interpreter, inside an environment
_SETTINGS = "pyvenv.cfg"
_LEVEL = 1  # of compression: it gives a third of the size in a fraction of the next levels' time


def name_of(digest: str) -> str:
    """The path in a package of the layer of the environment with this digest."""
    return f"{FOLDER}/{digest}{SUFFIX}"


def make_portable(folder: Path) -> None:
    """Makes an empty environment in the existing `folder`, with its own interpreter.

    Raises:
        MissingTool: `ldd` is not installed.
    """
    copy_interpreter(folder / INTERPRETER)
    (folder / "lib" / PYTHON / "site-packages").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(Path("..", INTERPRETER, "bin", PYTHON))
    _place(folder)


def pack(environment: Path, to: Path) -> Path:
    """Writes an environment into the new file `to`, and returns it.

    Raises:
        StorageFull: no space is left.
    """
    partial = to.with_name(f".{to.name}.new")
    try:
        with room_for("the environment's layer", to.parent):
            _write(environment, partial)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return partial.replace(to)


def unpack(layer: Path, to: Path) -> Path:
    """Unpacks a layer as the environment `to`, unless that exists, and returns it. It appears completely or not at all.

    Raises:
        ArtifactCorrupt: the file is not a layer, or would write outside of `to`.
        StorageFull: no space is left.
    """
    if to.is_dir():
        return to
    to.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=to.parent, prefix=f".{to.name}-"))
    try:
        with room_for("the model's environment", to.parent), tarfile.open(layer, mode="r:gz") as tar:
            tar.extraction_filter = _as_they_are  # checked here: Python has a filter only since 3.11.4
            tar.extractall(partial, _checked(tar))  # noqa: S202
        partial.chmod(0o755)
        _place(partial, to)
        try:
            partial.rename(to)
        except OSError:
            if not to.is_dir():  # otherwise another process has unpacked it meanwhile
                raise
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ArtifactCorrupt(f"the model's environment can't be unpacked: {error}", do="Rerun the release.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return to


def unpack_all(package: Path, to: Path) -> None:
    """Unpacks every layer of a fetched package into the folder `to`, each under its digest.

    Raises:
        ArtifactCorrupt, StorageFull: as `unpack`.
    """
    for layer in sorted((package / FOLDER).glob(f"*{SUFFIX}")):
        unpack(layer, to / layer.name.removesuffix(SUFFIX))


def _checked(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The entries of an archive, if it has only folders, files and links, all of which stay inside.

    Raises:
        TarError: another kind of entry, a name or a link that leads outside, or a name that leads through a link.
    """
    links: set[PurePosixPath] = set()
    for entry in tar:
        path = PurePosixPath(entry.name)
        if path.is_absolute() or ".." in path.parts:
            raise tarfile.TarError(f"{ascii(entry.name)[:100]} leads outside of it")
        if links & set(path.parents) or not (entry.isdir() or entry.isfile() or entry.issym()):
            raise tarfile.TarError(f"{ascii(entry.name)[:100]} is not a folder, a file or a link, or is behind a link")
        if entry.issym():
            target = posixpath.normpath(posixpath.join(path.parent, entry.linkname))
            if posixpath.isabs(target) or target.split("/")[0] == "..":
                raise tarfile.TarError(f"the link {ascii(entry.name)[:100]} leads outside of it")
            links.add(path)
        yield entry


def _as_they_are(entry: tarfile.TarInfo, _: str) -> tarfile.TarInfo:
    return entry


def _write(environment: Path, to: Path) -> None:
    with (
        to.open("wb") as file,
        gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0, compresslevel=_LEVEL) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(environment.rglob("*")):
            if "__pycache__" not in path.parts and path != environment / _SETTINGS:
                tar.add(path, path.relative_to(environment).as_posix(), recursive=False, filter=_anonymous)


def _place(environment: Path, final: Path | None = None) -> None:
    """Writes where the environment's interpreter is, or will be: Python takes only an absolute path."""
    home = (final or environment) / INTERPRETER / "bin"
    (environment / _SETTINGS).write_text(f"home = {home}\ninclude-system-site-packages = false\n")


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """An entry without anything that differs between machines."""
    entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry
