"""`shiplift init`: the files to begin with."""

import json
import shutil
from importlib.resources import as_file, files
from pathlib import Path

from runtime import spec
from runtime.errors import UsageError

_COPIED = ("shiplift.yaml", "train.py")
SCHEMA = "shiplift.schema.json"


def write(folder: Path, *, force: bool) -> list[Path]:
    """Writes the commented spec, its schema and the example training script; gives their paths.

    Raises:
        UsageError: one of them is there already and `force` is not given, or there is no such folder and none can be
            made; nothing is written then.
    """
    paths = [folder / name for name in (*_COPIED, SCHEMA)]
    there = [str(path) for path in paths if path.exists()]
    if there and not force:
        raise UsageError(f"{', '.join(there)} is there already", do="Use --force to overwrite, or another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} can't be made: {error.strerror}", do="Give another folder.") from error
    for name in _COPIED:
        with as_file(files("templates").joinpath(name)) as source:
            shutil.copyfile(source, folder / name)
    (folder / SCHEMA).write_text(json.dumps(spec.schema(), indent=2) + "\n")
    return paths
