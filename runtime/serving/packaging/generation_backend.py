"""What a server needs to generate text: a `model.py`, the code around the model, and an engine that continues tokens.

A model with a chat template also needs Jinja, and the process that renders conversations with it. For the bundled
server the engine is OpenVINO GenAI, in a process of the model's own. The libraries (70 MB) come with the model: servers
need not have them installed, and they generate with the versions that the model was checked with. GenAI runs on the
server's own OpenVINO. For NVIDIA's server the engine is what its image has, vLLM or TensorRT-LLM. It reads the model's
own weights, which the package then contains.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path

from shiplift.runtime.base.errors import ExportFailed, MissingTool
from shiplift.runtime.guest import fronts, generation
from shiplift.runtime.guest.generation.chat import CHAT
from shiplift.runtime.model.python.bundle import write_bundle
from shiplift.runtime.records.precision import TEXT_ENGINES, Engine

_MODEL = Path(generation.__file__).with_name("generation_model.py")
_CODE = tuple(Path(generation.__file__).with_name(name) for name in ("front.py", "generator.py", "writer.py"))
_HOSTED, _WRITER = (Path(generation.__file__).with_name(name) for name in ("hosted_text.py", "writer.py"))
_PANICS = Path(fronts.__file__).with_name("panics.py")
_ENGINES: dict[Engine, Path] = {
    "openvino": Path(generation.__file__).with_name("openvino_engine.py"),
    "vllm": Path(generation.__file__).with_name("vllm_engine.py"),
    "tensorrt-llm": Path(generation.__file__).with_name("tensorrt_llm_engine.py"),
}
_CHAT = Path(generation.__file__).with_name("chat.py")
_TEMPLATES = ("jinja2", "markupsafe")
_AROUND = ("tokenizer.json", "generation.json", CHAT)  # spelled out: importing `front` needs a library of the extra
_LOGGED = "model"  # where mlflow.transformers keeps what `save_pretrained` wrote
_WEIGHTS = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json")
_EXTRA = "Install the `generation` extra: pip install 'shiplift[generation]'."
_OPERATORS = "libopenvino_tokenizers.so"  # GenAI looks for it next to its own library, and does not start without it
_UNNEEDED = shutil.ignore_patterns(
    "__pycache__", "*.pyi", "tools", "cmake", "include", "docs", "*_c.so*", "_speedups.*"
)


def write_generation_backend(to: Path, model: Path, engine: Engine, logged: Path | None = None) -> Path:
    """Writes the files for the exported `model` into the new folder `to`, and returns it.

    `logged` is MLflow's folder of the model, for an engine that reads the model's own weights.

    Raises:
        MissingTool: a library is not installed here.
        ExportFailed: the weights are not where `mlflow.transformers` keeps them.
    """
    chats = (model / CHAT).exists()
    genai = () if engine in TEXT_ENGINES else ("openvino_genai",)
    libraries = [_library(name) for name in ("tokenizers", *genai, *(_TEMPLATES if chats else ()))]
    operators = [next(_library("openvino_tokenizers").rglob(_OPERATORS))] if genai else []
    to.mkdir()
    shutil.copyfile(_MODEL, to / "model.py")
    for file in (*_CODE, _PANICS):
        shutil.copyfile(file, to / file.name)
    shutil.copyfile(_ENGINES[engine], to / "engine.py")
    for library in libraries:
        shutil.copytree(library, to / library.name, ignore=_UNNEEDED)
    for library in operators:
        shutil.copyfile(library, to / "openvino_genai" / library.name)
    if engine in TEXT_ENGINES:
        _write_weights(to, model, logged)
    if genai:
        shutil.copyfile(_HOSTED, to / _HOSTED.name)
        write_bundle(to, _WRITER)
    if chats:
        (to / "chats").mkdir()
        write_bundle(to / "chats", _CHAT)
    return to


def _write_weights(to: Path, model: Path, logged: Path | None) -> None:
    """Writes the exported model's files around the weights, and the weights as they were logged."""
    for name in _AROUND:
        if (model / name).exists():
            shutil.copyfile(model / name, to / name)
    source = logged / _LOGGED if logged else to
    files = sorted(file for pattern in _WEIGHTS for file in source.glob(pattern))
    if not any(file.suffix == ".safetensors" for file in files):
        raise ExportFailed(
            f"the model's folder {_LOGGED}/ has no safetensors file with its weights",
            do="Log it with `mlflow.transformers.log_model(pipeline, ...)`, which keeps them there.",
        )
    (to / "weights").mkdir()
    for file in files:
        shutil.copyfile(file, to / "weights" / file.name)


def _library(name: str) -> Path:
    library = find_spec(name)
    if library is None or library.origin is None:
        raise MissingTool(f"the package `{name}` is not installed here", do=_EXTRA)
    return Path(library.origin).parent
