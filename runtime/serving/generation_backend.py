"""What the bundled server needs to generate text: a `model.py`, the code around the model, and OpenVINO GenAI.

For a model with a chat template also Jinja, and the process that renders conversations with it.
The libraries (70 MB) come with the model, so servers need not have them installed, and they generate with the versions
that the model was checked with. GenAI runs on the server's own OpenVINO.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path

from shiplift.runtime.base.errors import MissingTool
from shiplift.runtime.model import generation
from shiplift.runtime.model.generation.chat import CHAT
from shiplift.runtime.model.python.bundle import write_bundle

_MODEL = Path(__file__).parent / "triton" / "backends" / "generation_model.py"
_FRONT = Path(generation.__file__).with_name("front.py")
_ENGINE = Path(generation.__file__).with_name("engine.py")
_CHAT = Path(generation.__file__).with_name("chat.py")
_TEMPLATES = ("jinja2", "markupsafe")
_EXTRA = "Install the `generation` extra: pip install 'shiplift[generation]'."
_OPERATORS = "libopenvino_tokenizers.so"  # GenAI looks for it next to its own library, and does not start without it
_UNNEEDED = shutil.ignore_patterns(
    "__pycache__", "*.pyi", "tools", "cmake", "include", "docs", "*_c.so*", "_speedups.*"
)


def write_generation_backend(to: Path, model: Path) -> Path:
    """Writes the files for the exported `model` into the new folder `to`, and returns it.

    Raises:
        MissingTool: a library is not installed here.
    """
    chats = (model / CHAT).exists()
    libraries = [_library(name) for name in ("tokenizers", "openvino_genai", *(_TEMPLATES if chats else ()))]
    operators = next(_library("openvino_tokenizers").rglob(_OPERATORS))
    to.mkdir()
    shutil.copyfile(_MODEL, to / "model.py")
    for file in (_FRONT, _ENGINE):
        shutil.copyfile(file, to / file.name)
    for library in libraries:
        shutil.copytree(library, to / library.name, ignore=_UNNEEDED)
    shutil.copyfile(operators, to / "openvino_genai" / _OPERATORS)
    if chats:
        write_bundle(to, _CHAT)
    return to


def _library(name: str) -> Path:
    library = find_spec(name)
    if library is None or library.origin is None:
        raise MissingTool(f"the package `{name}` is not installed here", do=_EXTRA)
    return Path(library.origin).parent
