"""`shiplift init`: the files that it writes."""

import json
import re
import shlex
import shutil
from importlib.resources import as_file, files
from pathlib import Path

from shiplift.pipelines.engines.local import stack
from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.spec import document

STARTERS = ("torch", "sklearn", "xgboost", "onnx", "transformers", "pyfunc", "pipeline")  # templates/starters
SCHEMA = "shiplift.schema.json"
_SPECS = {"pyfunc": ("\n  python: refuse  ", "\n  python: sandbox ")}  # changes that a starter needs in the spec
_BESIDE = {"pipeline": {"pipeline.yaml": "starters/pipeline.yaml"}}  # files that a starter has beside its script
_WORKFLOW = {".github/workflows/shiplift-release.yaml": "github/shiplift-release.yaml"}


def write(folder: Path, *, force: bool, starter: str = STARTERS[0], github_actions: bool = False) -> list[Path]:
    """Writes the commented spec, its schema and a training script that uses the library `starter`; returns their paths.

    With `github_actions`, writes only a GitHub Actions workflow that releases models whose spec changed.

    Raises:
        UsageError: the starter does not exist, a file exists and `force` is not set, or the folder can't be created.
            Then nothing is written.
    """
    if starter not in STARTERS:
        raise UsageError(f"there is no starter for {starter!r}", do=f"Choose one of {', '.join(STARTERS)}.")
    starting = {
        "shiplift.yaml": "shiplift.yaml",
        "train.py": f"starters/train_{starter}.py",
        SCHEMA: "",
        **_BESIDE.get(starter, {}),
    }
    sources = _WORKFLOW if github_actions else starting
    paths = [folder / name for name in sources]
    existing = [str(path) for path in paths if path.exists()]
    if existing and not force:
        raise UsageError(f"already exists: {', '.join(existing)}", do="Use --force to overwrite, or another folder.")
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} can't be created: {error.strerror}", do="Choose another folder.") from error
    for name, source in sources.items():
        if source:
            with as_file(files("shiplift.templates").joinpath(source)) as file:
                shutil.copyfile(file, folder / name)
        else:
            (folder / name).write_text(json.dumps(document.schema(), indent=2) + "\n")
    if not github_actions and starter in _SPECS:
        spec = folder / "shiplift.yaml"
        spec.write_text(spec.read_text().replace(*_SPECS[starter]))
    return paths


def next_commands(folder: Path, starter: str, home: Path) -> tuple[str, str]:
    """The next two commands for what was written: a stack that runs already is not started again."""
    enter = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    running = stack.read(home)
    if running is None or not all(running.runs(name) for name in running.names):
        return f"{enter}shiplift up", "python train.py"
    where = f"SHIPLIFT_HOME={shlex.quote(str(home))} " if enter else ""  # else it looks below the current folder
    return f"{enter}{where}python train.py", f"{where}shiplift release {_model(starter)}"


def _model(starter: str) -> str:
    """The registered model of a starter's script; of a pipeline, the member that is registered last."""
    script = files("shiplift.templates").joinpath(f"starters/train_{starter}.py").read_text()
    found = re.search(r'"--name", default="([a-z-]+)"', script)
    name = found[1] if found else "MODEL"
    return f"{name}-large" if starter == "pipeline" else name
