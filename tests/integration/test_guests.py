"""Guest code that the server's Python runs: each file is imported there, in Triton's Python backend or beside it.

It lies in a folder as in a package, and finds the packages of the server's environment, where there is no Shiplift. The
rest of the files is in `tests/project/test_where_it_runs.py`.
"""

import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc

from shiplift.runtime.serving.machine.server import Server
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import variables
from tests.guests import FILES, FOLDER, SERVER, TRITON, Guest, guest_of
from tests.integration.backends import ENVIRONMENT, server_for

IMPORT = """
import importlib, importlib.util, os, sys

def imported(folder, name):
    sys.path.insert(0, folder)
    module = importlib.import_module(name.removesuffix(".py").replace("/", "."))
    assert module.__file__ == os.path.join(folder, name), module.__file__
    assert "shiplift" not in sys.modules and importlib.util.find_spec("shiplift") is None
"""
MODEL = """
class TritonPythonModel:
    def initialize(self, args):
        name = {name!r}
        if name == "model.py":
            sys.modules.pop("model", None)  # this one
        else:  # a `model.py` that imports it has found the server's packages
            sys.path[:0] = os.environ["SHIPLIFT_SERVER_SITE"].split(os.pathsep)
        imported(os.path.join(args["model_repository"], args["model_version"], "package"), name)

    def execute(self, requests):
        import numpy as np
        import triton_python_backend_utils as pb_utils

        told = pb_utils.Tensor("told", np.array([np.__file__.encode()], dtype=object))
        return [pb_utils.InferenceResponse([told]) for _ in requests]
"""
CONFIG = """backend: "python" instance_group [{kind: KIND_CPU}]
input [{name: "x" data_type: TYPE_UINT8 dims: [1]}] output [{name: "told" data_type: TYPE_STRING dims: [1]}]
"""
GUESTS = [each for each in map(guest_of, FILES) if each.python == SERVER]


def _name(says: Guest) -> str:
    return says.file.relative_to(FOLDER).as_posix()


def _lay_out(says: Guest, to: Path) -> None:
    needed = {name for each in (says, *says.neighbours()) for name in each.brought}
    if missing := [name for name in needed if find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    says.lay_out(to)


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, TritonClient]]:
    with server_for(tmp_path_factory.mktemp("triton")) as served:
        yield served


@pytest.mark.parametrize("says", [each for each in GUESTS if each.process.startswith(TRITON)], ids=_name)
def test_what_runs_in_triton_is_imported_there(says: Guest, triton: tuple[Server, TritonClient]) -> None:
    server, client = triton
    name = _name(says).removesuffix(".py").replace("/", "-")
    version = server.repository / name / "1"
    (version / "package").mkdir(parents=True)
    _lay_out(says, version / "package")
    (version / "model.py").write_text(IMPORT + MODEL.format(name=says.names[0]))
    (version.parent / "config.pbtxt").write_text(CONFIG)
    client.load(name)
    asked = grpc.InferInput("x", [1], "UINT8").set_data_from_numpy(np.zeros(1, np.uint8))
    answer: Any = grpc.InferenceServerClient(server.grpc).infer(name, [asked]).as_numpy("told")
    client.unload(name)
    assert Path(answer[0].decode()).is_relative_to(ENVIRONMENT.site)


@pytest.mark.parametrize("says", [each for each in GUESTS if not each.process.startswith(TRITON)], ids=_name)
def test_what_runs_beside_triton_is_imported_by_the_server_s_python(says: Guest, tmp_path: Path) -> None:
    _lay_out(says, tmp_path)
    beside = (tmp_path / says.names[0]).parent  # the folder of a program is on its path
    program = f"{IMPORT}\nsys.path.insert(0, {str(beside)!r})\nimported({str(tmp_path)!r}, {says.names[0]!r})"
    python = ENVIRONMENT.root / "bin" / "python"
    done = subprocess.run(
        [python, "-I", "-B", "-c", program], env=variables(ENVIRONMENT), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
