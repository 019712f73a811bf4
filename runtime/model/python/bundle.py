"""The code for a model's own process and its host, as a folder: for a sandbox, and for a package.

It contains the confinement of that process, with the two libraries that this uses, because the process runs in the
model's environment, on servers without Shiplift.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path

import shiplift
from shiplift.runtime.base.errors import MissingTool
from shiplift.runtime.guest import python

NAME = "python_host"  # the code's package name, wherever it is copied
HOST = Path(python.__file__).with_name("host.py")
HOSTED = Path(python.__file__).with_name("hosted.py")
KEEPER = Path(python.__file__).with_name("keeper.py")
PROCESS = Path(python.__file__).with_name("process.py")
WIRE = Path(python.__file__).with_name("wire.py")
WORKER = Path(python.__file__).with_name("worker.py")
VALUES = Path(python.__file__).with_name("values.py")
OUTPUTS = Path(python.__file__).with_name("outputs.py")
CATEGORIES = Path(python.__file__).with_name("categories.py")
AGENTS = Path(python.__file__).with_name("agents.py")
CLOCK = Path(python.__file__).with_name("clock.py")
PYFUNC = Path(python.__file__).with_name("pyfunc.py")
_SERVED = "served.py"  # the module that answers in the process; `worker.py` imports it by this name
GUARD = (
    Path(__file__).parent.parent.parent / "base" / "errors.py",
    Path(__file__).parent.parent.parent / "base" / "text.py",
    Path(__file__).parent.parent.parent / "confinement" / "arguments.py",
    Path(__file__).parent.parent.parent / "confinement" / "calls.py",
    Path(__file__).parent.parent.parent / "confinement" / "kernel.py",
    Path(__file__).parent.parent.parent / "confinement" / "landlock.py",
    Path(__file__).parent.parent.parent / "confinement" / "policy.py",
    Path(__file__).parent.parent.parent / "confinement" / "seccomp.py",
)
_LIBRARIES = ("landlockpy", "seccompy")


def write_bundle(to: Path, served: Path = PYFUNC) -> Path:
    """Writes the code as a package into the folder `to`; returns the package's folder. `served` is what answers.

    Raises:
        MissingTool: a library is not installed here.
    """
    package = to / NAME
    guard = package / "guard"
    guard.mkdir(parents=True)
    (package / "__init__.py").touch()
    for file in (HOST, HOSTED, KEEPER, PROCESS, WIRE, WORKER, VALUES, OUTPUTS, CATEGORIES, AGENTS, CLOCK):
        shutil.copyfile(file, package / file.name)
    shutil.copyfile(served, package / _SERVED)
    for file in GUARD:
        at = guard / shiplift.__name__ / "runtime" / file.parent.name / file.name
        at.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, at)
    for folder in (guard / shiplift.__name__, *(guard / shiplift.__name__).rglob("*/")):
        (folder / "__init__.py").touch()
    for library in _LIBRARIES:
        found = find_spec(library)
        if found is None or found.origin is None:
            raise MissingTool(f"the package `{library}` is not installed here", do="Install Shiplift again.")
        unneeded = shutil.ignore_patterns("__pycache__", "*.pyi")
        shutil.copytree(Path(found.origin).parent, guard / library, ignore=unneeded)
    return package
