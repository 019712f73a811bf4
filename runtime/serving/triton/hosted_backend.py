"""What the bundled server needs to run a graph that its backends in C do not support: with texts, images or states.

Triton's Python backend starts a process for each instance, which is Triton's own and holds no model. It hosts another
one, which is confined and limited like a Python model's (`guest/python/worker.py`) and has the server's packages.
"""

import shutil
from pathlib import Path

from shiplift.runtime.guest import graphs, python
from shiplift.runtime.model.python.bundle import write_bundle

_MODEL = Path(graphs.__file__).with_name("hosted_model.py")
_GRAPH = Path(graphs.__file__).with_name("hosted_graph.py")
_BESIDE = (
    Path(graphs.__file__).with_name("packing.py"),
    Path(graphs.__file__).with_name("onnx_model.py"),
    Path(python.__file__).with_name("python_model.py"),
)
ONNX_MODEL = _BESIDE[1]
_INNER = "inner.py"  # as `hosted_graph.py` imports it


def write_hosted(to: Path, model: Path) -> None:
    """Writes the files into the existing folder `to`; `model` is a file of guest code with a `TritonPythonModel`.

    Raises:
        MissingTool: a library of the confinement is not installed here.
    """
    write_bundle(to, _GRAPH)
    shutil.copyfile(_MODEL, to / "model.py")
    shutil.copyfile(model, to / _INNER)
    for file in _BESIDE:
        shutil.copyfile(file, to / file.name)
