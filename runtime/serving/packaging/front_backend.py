"""What a server needs to run the front of a model of texts or images: a `model.py`, the front, and its libraries.

The bundled server runs the graph in the same process (`triton/hosted_backend.py`). The tokenizer library (12 MB) works
with every Python from 3.10 on and needs no other package. It comes with the model: servers need not have it installed,
and they tokenize with the version that the model was checked with. The server's environment has Pillow.

In NVIDIA's image, the graph is a model of its own, in the backend of its engine, and the front calls it. Each release
of the image has another Python, and none has Pillow, whose wheels work with one Python only. So the front runs in its
own process, with the interpreter and the libraries that it was checked with: a layer in the package.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path

from shiplift.runtime.base.errors import MissingTool
from shiplift.runtime.guest import fronts, graphs
from shiplift.runtime.model.python.bundle import write_bundle
from shiplift.runtime.model.python.interpreter import PYTHON
from shiplift.runtime.model.python.layers import make_portable, pack
from shiplift.runtime.model.text.fronts import front_file, takes_images
from shiplift.runtime.model.text.tasks import EXTRA
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.packaging.python_backend import PYTHON_MODEL, write_settings
from shiplift.runtime.serving.triton.hosted_backend import write_hosted

_BUNDLED_MODEL = Path(graphs.__file__).with_name("text_model.py")
_NVIDIA_MODEL = Path(graphs.__file__).with_name("front_model.py")
_PANICS = Path(fronts.__file__).with_name("panics.py")
_ENCODED = Path(fronts.__file__).with_name("encoded.py")
_HOSTED = Path(fronts.__file__).with_name("hosted_front.py")
_TOKENIZERS = "tokenizers"
_LIBRARIES = ("numpy", "numpy.libs", "PIL", "pillow.libs", _TOKENIZERS)  # `.libs`: shared libraries of wheels
_UNNEEDED = shutil.ignore_patterns("__pycache__", "*.pyi", "tools", "tests", "include", "f2py", "*.a")
_MEMORY_MB = 4096  # of a front's process: room for a batch of large images, and for one while Pillow decodes it


def write_front_backend(to: Path, front: Path) -> Path:
    """Writes the files for the bundled server into the new folder `to`, and returns it.

    `front` has `tokenizer.json` and `text.json`, or for images `image.json` or `pixels.json`.

    Raises:
        MissingTool: the tokenizer library is not installed here.
    """
    library = None if takes_images(front) else _tokenizers()
    to.mkdir()
    _write_front(to, front)
    write_hosted(to, _BUNDLED_MODEL)
    if library:
        shutil.copytree(library, to / _TOKENIZERS, ignore=_UNNEEDED)
    return to


def write_hosted_front_backend(to: Path, front: Path, signature: Signature, environment: str) -> Path:
    """Writes the files for NVIDIA's server into the new folder `to`, and returns it.

    `front` is as for `write_front_backend`; `environment` names the layer that `pack_front_environment` made.

    Raises:
        MissingTool: a library of the confinement is not installed here.
    """
    to.mkdir()
    _write_front(to, front)
    write_bundle(to, _HOSTED)
    shutil.copyfile(PYTHON_MODEL, to / PYTHON_MODEL.name)
    shutil.copyfile(_NVIDIA_MODEL, to / "model.py")
    write_settings(to, signature, environment, _MEMORY_MB)
    return to


def pack_front_environment(folder: Path, *, images: bool) -> Path:
    """Makes the environment of fronts in the empty `folder`, and packs it there; returns the file.

    If the libraries for texts and for images are both installed, all fronts have the same environment.

    Raises:
        MissingTool: `ldd` is not installed, or for a model of texts, the tokenizer library.
        StorageFull: no space is left.
    """
    if not images:
        _tokenizers()
    environment = folder / "environment"
    environment.mkdir()
    make_portable(environment)
    numpy = find_spec("numpy")
    here = Path(str(numpy and numpy.origin)).parents[1]
    for library in filter(Path.is_dir, (here / name for name in _LIBRARIES)):
        shutil.copytree(library, environment / "lib" / PYTHON / "site-packages" / library.name, ignore=_UNNEEDED)
    return pack(environment, folder / "layer")


def _write_front(to: Path, front: Path) -> None:
    for file in front.iterdir():
        shutil.copyfile(file, to / file.name)
    shutil.copyfile(Path(fronts.__file__).with_name(front_file(front)), to / "front.py")
    beside = _PANICS if front_file(front) == "text_front.py" else _ENCODED
    shutil.copyfile(beside, to / beside.name)


def _tokenizers() -> Path:
    library = find_spec(_TOKENIZERS)
    if library is None or library.origin is None:
        raise MissingTool("the package `tokenizers` is not installed here", do=EXTRA)
    return Path(library.origin).parent
