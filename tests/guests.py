"""Guest code where it runs: what each file says of that, its folder as in a package, environments without Shiplift."""

import re
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from shiplift.runtime import guest
from shiplift.runtime.model.python import bundle

FOLDER = Path(guest.__file__).parent
FILES = sorted(file for file in FOLDER.rglob("*.py") if file.stem != "__init__")
TRITON = "Triton's Python backend"
SERVER, MODEL, NVIDIA, IMAGE = "the server's", "the model's", "that of NVIDIA's image", "the image's"
_ELSEWHERE = {  # what lies beside a file under another name than here, or comes from another folder
    ("graphs", "front.py"): "fronts/text_front.py",
    ("graphs", "python_model.py"): "python/python_model.py",
    ("pipelines", "keeper.py"): "python/keeper.py",
    ("fronts", "front.py"): "fronts/text_front.py",
    ("pipelines", "front.py"): "fronts/pixel_front.py",
    ("pipelines", "encoded.py"): "fronts/encoded.py",
    ("generation", "panics.py"): "fronts/panics.py",
    ("graphs", "panics.py"): "fronts/panics.py",
    ("generation", "engine.py"): "generation/openvino_engine.py",
}
_SAYS = re.compile(
    r"^Process: (?P<process>.+\.)\nPython: (?P<python>.+)\nPackages: (?P<packages>.+)\n\"\"\"", re.MULTILINE
)
_HOST = "python_host"


@dataclass(frozen=True, kw_only=True)
class Guest:
    """A file of `runtime/guest`, and what the end of its docstring says. `packages` may come along (`brought`)."""

    file: Path
    process: str
    python: str
    packages: tuple[str, ...]
    brought: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The file's name in a package, and the names of what it imports there."""
        return re.findall(r"`([\w/]+(?:\.py)?)`", self.process.partition(";")[0].partition(", which")[0])

    def neighbours(self) -> list["Guest"]:
        """The files that it imports, but for the package `python_host`."""
        return [guest_of(self._source(name)) for name in self.names[1:] if name != _HOST]

    def _source(self, name: str) -> Path:
        other = _ELSEWHERE.get((self.file.parent.name, name))
        return FOLDER / other if other else self.file.with_name(name)

    def lay_out(self, to: Path) -> None:
        """Writes the file and what is beside it into a folder, as in a package, with what the package brings along."""
        if any(name.partition("/")[0] == _HOST for name in self.names):
            bundle.write_bundle(to)
        beside = (to / self.names[0]).parent
        beside.mkdir(exist_ok=True)
        shutil.copyfile(self.file, to / self.names[0])
        for name, each in zip((name for name in self.names[1:] if name != _HOST), self.neighbours(), strict=True):
            shutil.copyfile(each.file, beside / name)
        for library in {library for each in (self, *self.neighbours()) for library in each.brought}:
            if not list(to.rglob(f"guard/{library}")):
                shutil.copytree(_folder(library), beside / library, ignore=shutil.ignore_patterns("__pycache__"))


def guest_of(file: Path) -> Guest:
    """What a file says."""
    says = _SAYS.search(file.read_text())
    assert says, f"the docstring of {file.name} does not end with Process, Python and Packages, a line each"
    packages = dict(re.findall(r"(\w+)(?: \(([^)]+)\))?(?:, |$)", says["packages"].removesuffix("none")))
    return Guest(
        file=file,
        process=says["process"],
        python=says["python"],
        packages=tuple(packages),
        brought=tuple(name for name, where in packages.items() if where),
    )


def environment(to: Path, packages: tuple[str, ...]) -> Path:
    """An environment as `venv` makes it, with these packages of this one alone; returns its Python.

    MLflow needs so many others that it comes with everything but Shiplift.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    site = to / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    (to / "bin").mkdir()
    (to / "bin" / "python").symlink_to(base)
    (to / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    here = _folder("numpy").parent
    wanted = [here / name for name in packages] if "mlflow" not in packages else list(here.iterdir())
    for entry in (*wanted, *here.glob("*.libs")):
        if "shiplift" not in entry.name and entry.suffix != ".pth" and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    return to / "bin" / "python"


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec, f"the package {package} is not installed here"
    assert spec.origin
    return Path(spec.origin).parent
