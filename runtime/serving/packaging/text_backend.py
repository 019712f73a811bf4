"""What the bundled server needs to run a text model: a `model.py`, the code around the graph, the tokenizer library.

The library (12 MB) works with every Python from 3.10 on and needs no other package. It comes with the model: servers
need not have it installed, and they tokenize with the version that the model was checked with.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path

from shiplift.runtime.base.errors import MissingTool
from shiplift.runtime.guest import fronts, graphs
from shiplift.runtime.model.text.fronts import front_file, takes_images
from shiplift.runtime.model.text.tasks import EXTRA
from shiplift.runtime.serving.triton.repository import ONNX_MODEL

_MODEL = Path(graphs.__file__).with_name("text_model.py")


def write_text_backend(to: Path, front: Path) -> Path:
    """Writes the files into the new folder `to`, and returns it; `front` has `tokenizer.json` and `text.json`.

    A model of images has `image.json` or `pixels.json` instead, and needs no library: the server's environment has
    Pillow.

    Raises:
        MissingTool: the tokenizer library is not installed here.
    """
    library = None if takes_images(front) else _library()
    to.mkdir()
    for file in (*front.iterdir(), ONNX_MODEL):
        shutil.copyfile(file, to / file.name)
    shutil.copyfile(Path(fronts.__file__).with_name(front_file(front)), to / "front.py")
    shutil.copyfile(_MODEL, to / "model.py")
    if library is None:
        return to
    unneeded = shutil.ignore_patterns("__pycache__", "*.pyi", "tools")
    shutil.copytree(library, to / "tokenizers", ignore=unneeded)
    return to


def _library() -> Path:
    library = find_spec("tokenizers")
    if library is None or library.origin is None:
        raise MissingTool("the package `tokenizers` is not installed here", do=EXTRA)
    return Path(library.origin).parent
