"""Guest code imports no more than it says, and runs in an environment that has no more, without Shiplift.

What runs in the server's environment is in `tests/integration/test_guests.py`.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shiplift.runtime.guest.python.host import Host
from shiplift.runtime.model.python import bundle
from tests.guests import FILES, FOLDER, IMAGE, MODEL, NVIDIA, SERVER, TRITON, Guest, environment, guest_of

IMPORT = """
import importlib, importlib.util, sys
folder, name = sys.argv[1:]
sys.path.insert(0, folder)
module = importlib.import_module(name.removesuffix(".py").replace("/", "."))
assert module.__file__ == f"{folder}/{name}", module.__file__
assert "shiplift" not in sys.modules and importlib.util.find_spec("shiplift") is None
print("imported")
"""
STAND_IN = "import sys\nclass Any:\n    def __getattr__(self, name): return Any()\n__getattr__ = Any().__getattr__\n"
ECHO = "class Echo:\n    def answer(self, arrays): return arrays\ndef load(settings): return Echo()\n"


def ids(file: Path) -> str:
    return file.relative_to(FOLDER).as_posix()


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that a file imports, also inside functions; those beside it with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


@pytest.mark.parametrize("file", FILES, ids=ids)
def test_a_file_says_where_it_runs_and_imports_nothing_else(file: Path) -> None:
    says = guest_of(file)
    assert says.python in (SERVER, MODEL, NVIDIA, IMAGE)
    beside = {name.removesuffix(".py") for name in says.names[1:]}
    triton = {"triton_python_backend_utils"} if says.process.startswith(TRITON) else set()
    known = {*sys.stdlib_module_names, *says.packages, *beside, *triton}
    modules = set(imported(ast.parse(file.read_text())))
    others = {module for module in modules if module.rpartition(".")[2] not in beside}
    assert {module for module in others if module.partition(".")[0] not in known} == set()
    ours = {module for module in modules if module.partition(".")[0] == "shiplift"}
    assert ours <= {"shiplift.runtime.confinement", "shiplift.runtime.confinement.policy"}
    assert not ours or says.names[0].endswith("/worker.py")
    assert all(each.file in FILES for each in says.neighbours())


@pytest.mark.parametrize("file", [file for file in FILES if guest_of(file).python != SERVER], ids=ids)
def test_it_can_be_imported_where_it_runs(file: Path, tmp_path: Path) -> None:
    says = guest_of(file)
    folder = tmp_path / "package"
    folder.mkdir()
    says.lay_out(folder)
    installed = () if says.python == NVIDIA else tuple(set(says.packages) - set(says.brought))
    if says.python == NVIDIA:  # no machine that tests has its libraries
        stand_in(says, folder)
    python = environment(tmp_path / "environment", installed)
    done = subprocess.run(
        [python, "-I", "-B", "-c", IMPORT, folder, says.names[0]], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("imported\n", 0), done.stderr


def stand_in(says: Guest, folder: Path) -> None:
    for package in says.packages:
        (folder / package).mkdir()
        for module in ("__init__", "sampling_params"):
            (folder / package / f"{module}.py").write_text(STAND_IN)


def test_the_worker_answers_its_host_in_an_environment_that_has_numpy_and_nothing_else(tmp_path: Path) -> None:
    served = tmp_path / "served.py"
    served.write_text(ECHO)
    code = bundle.write_bundle(tmp_path / "package", served)
    folder = tmp_path / "environment"
    environment(folder, ("numpy",))
    numpys = Path(np.__file__).resolve().parents[1]  # the environment links to it
    readable = [str(path) for path in (code, folder, numpys, Path(sys.base_prefix).resolve())]
    settings = {"model": "", "read": readable, "memory_mb": 512, "allow_without": []}
    host = Host(code, folder, settings)
    try:
        assert host.ask({"x": np.arange(3)}, 30)["x"].tolist() == [0, 1, 2]
    finally:
        host.close()
