"""The folder of one model in a Triton repository: its configuration, its versions, and the backend that runs it."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from shiplift.runtime.base.files import read_regular
from shiplift.runtime.records.adopted import Mistake
from shiplift.runtime.records.tensor import Signature, TensorSpec

CONFIG = "config.pbtxt"
ENSEMBLE, PYTHON = "ensemble", "python"
MAX_CONFIG_BYTES = 1 << 20
MODEL_FILES = {
    "onnxruntime": "model.onnx",
    "openvino": "model.onnx",
    PYTHON: "model.py",
}  # of the backends that the bundled server has
_PLATFORMS = {
    "ensemble": ENSEMBLE,
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorrt_plan": "tensorrt",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}
_BY_FILE = {
    "model.onnx": "onnxruntime",
    "model.py": PYTHON,
    "model.pt": "pytorch",
    "model.plan": "tensorrt",
    "model.xml": "openvino",
    "model.savedmodel/saved_model.pb": "tensorflow",
    "model.graphdef": "tensorflow",
    "checkpoint.tl": "fil",
}
_ELSEWHERE = {"pytorch", "tensorrt", "tensorflow", "fil", "dali", "vllm", "tensorrtllm", "identity", "repeat", "square"}
KNOWN = {ENSEMBLE, *MODEL_FILES, *_ELSEWHERE}
_MOST_BATCH = 4  # what Triton takes for a graph that batches, if its configuration does not say
_INFER = (
    "Write one: name, backend, max_batch_size, input and output. Only an ONNX graph says these itself, and no author's "
    "code is run to ask it."
)

Infer = Callable[[Path], Signature | None]


@dataclass(kw_only=True)
class ModelFolder:
    """A model's folder as read so far. `files` are all files below it, by their paths in it."""

    name: str
    files: Mapping[str, Path]
    config: pb.ModelConfig = field(default_factory=pb.ModelConfig)
    backend: str = ""
    versions: tuple[int, ...] = ()
    completed: bool = False

    def where(self, file: str = CONFIG) -> str:
        """The name of a file of it, from the repository's folder."""
        return f"{self.name}/{file}"

    def file_of(self, version: int) -> str:
        """The path of a version's model file, in the model's folder."""
        return f"{version}/{self.config.default_model_filename or MODEL_FILES.get(self.backend, '')}"

    def of_version(self, version: int) -> Iterator[str]:
        """The paths of a version's files."""
        return (name for name in self.files if name.startswith(f"{version}/"))

    @property
    def signature(self) -> Signature:
        """What clients see, with the batch in front if Triton adds one."""
        batch = (-1,) if self.config.max_batch_size else ()
        return Signature(
            inputs=tuple(_spec(each, batch, optional=each.optional) for each in self.config.input),
            outputs=tuple(_spec(each, batch) for each in self.config.output),
        )


def read_folder(name: str, files: Mapping[str, Path], infer: Infer) -> tuple[ModelFolder, list[Mistake]]:
    """Reads a model's folder; `infer` tells the signature of a graph's file, None if it can't be read."""
    folder = ModelFolder(name=name, files=files)
    if mistake := _parse(folder):
        return folder, [mistake]
    mistakes = [*_versions(folder), *_backend(folder)]
    if not mistakes:
        mistakes += _complete(folder, infer)
    return folder, mistakes or list(_contents(folder))


def _parse(folder: ModelFolder) -> Mistake | None:
    if CONFIG not in folder.files:
        return None
    try:
        text_format.Parse(read_regular(folder.files[CONFIG], MAX_CONFIG_BYTES).decode(), folder.config)
    except text_format.ParseError as error:
        line = f":{error.GetLine()}" if error.GetLine() else ""
        what = str(error).partition(" : ")[2] or str(error)
        return Mistake(where=f"{folder.where()}{line}", what=what.rstrip("."), do="Correct it: Triton refuses it too.")
    except ValueError as error:
        return Mistake(where=folder.where(), what=f"it can't be read: {error}", do="It has to be UTF-8 text.")
    own = str(folder.config.name)
    if own and own != folder.name:
        return Mistake(
            where=line_of(folder, own),
            what=f"its name is {own!r}, and its folder's {folder.name!r}",
            do="Use one name.",
        )
    folder.config.name = folder.name
    return None


def _versions(folder: ModelFolder) -> Iterator[Mistake]:
    """Finds the versions that Triton would serve."""
    found: set[int] = set()
    for entry in sorted({name.partition("/")[0] for name in folder.files if "/" in name}):
        if re.fullmatch(r"[1-9][0-9]{0,17}", entry):
            found.add(int(entry))
        elif any(f"{entry}/{file}" in folder.files for file in _BY_FILE) or re.fullmatch(r"v?[0-9.]+", entry):
            yield Mistake(
                where=folder.where(entry),
                what="a version's folder is called by its number, 1 or higher and without zeros in front",
                do=f"Rename {entry!r}.",
            )
    if not found and _named_backend(folder) == ENSEMBLE:
        found = {1}  # its folder is empty, and git and archives keep no empty folders
    if not found:
        yield Mistake(where=folder.where(""), what="it has no version", do="Put the model's file into the folder 1.")
        return
    policy = folder.config.version_policy
    if policy.HasField("specific"):
        if missing := sorted(set(policy.specific.versions) - found):
            yield Mistake(
                where=line_of(folder, "version_policy"),
                what=f"it serves version {missing[0]}, which has no folder",
                do="Name versions that are there.",
            )
        found &= set(policy.specific.versions)
    most = len(found) if policy.HasField("specific") or policy.HasField("all") else policy.latest.num_versions or 1
    folder.versions = tuple(sorted(found)[-most:])


def _named_backend(folder: ModelFolder) -> str:
    config = folder.config
    return str(config.backend) or _PLATFORMS.get(config.platform, str(config.platform))


def _backend(folder: ModelFolder) -> Iterator[Mistake]:
    """Finds the backend: the one that is named, or by the name of the model's file."""
    named = _named_backend(folder)
    newest = folder.versions[-1] if folder.versions else 1
    by_file = next((backend for file, backend in _BY_FILE.items() if f"{newest}/{file}" in folder.files), "")
    folder.backend = named or by_file
    if named and named not in KNOWN:
        key = "backend" if folder.config.backend else "platform"
        yield Mistake(
            where=line_of(folder, key), what=f"{key} {named!r} is unknown", do=f"Known are {', '.join(sorted(KNOWN))}."
        )
    elif not folder.backend:
        yield Mistake(where=folder.where(), what="neither it nor a file's name says which backend runs it", do=_INFER)


def _complete(folder: ModelFolder, infer: Infer) -> Iterator[Mistake]:
    """Completes the configuration as Triton does at its start."""
    config = folder.config
    if config.input and config.output:
        return
    graph = folder.files.get(folder.file_of(folder.versions[-1]), None)
    signature = infer(graph) if graph is not None and graph.suffix == ".onnx" else None
    if signature is None:
        if folder.backend in MODEL_FILES or folder.backend == ENSEMBLE:
            yield Mistake(where=folder.where(), what="it names no inputs and outputs", do=_INFER)
        return
    folder.completed = True
    _fill(folder, signature)


def _fill(folder: ModelFolder, signature: Signature) -> None:
    """Writes a graph's tensors into the configuration, and batches them if nothing says otherwise."""
    config, tensors = folder.config, (*signature.inputs, *signature.outputs)
    config.backend = folder.backend
    if CONFIG not in folder.files and all(spec.shape[:1] == (-1,) for spec in tensors):
        config.max_batch_size = _MOST_BATCH
        config.dynamic_batching.SetInParent()
    for entries, specs in ((config.input, signature.inputs), (config.output, signature.outputs)):
        for spec in () if len(entries) else specs:
            dims = spec.shape[1:] if config.max_batch_size else spec.shape
            entry = entries.add(name=spec.name, data_type=_type(spec), dims=dims or (1,))
            if not dims:
                entry.reshape.SetInParent()


def _contents(folder: ModelFolder) -> Iterator[Mistake]:
    """Files that the configuration names have to be there, in the model's own folder."""
    config = folder.config
    named = [each.label_filename for each in config.output if each.label_filename]
    named += [
        f"warmup/{each.input_data_file}"
        for warmup in config.model_warmup
        for each in warmup.inputs.values()
        if each.input_data_file
    ]
    if folder.backend in MODEL_FILES:
        named += [folder.file_of(version) for version in folder.versions]
    for name in named:
        if name not in folder.files:
            yield Mistake(
                where=line_of(folder, name.rpartition("/")[2]),
                what=f"the file {name!r} is not in the model's folder",
                do="Put it there, or leave it out of the configuration.",
            )
    for each in (*config.input, *config.output):
        if each.data_type in (pb.TYPE_INVALID, pb.TYPE_BF16):
            yield Mistake(
                where=line_of(folder, each.name),
                what=f"{each.name!r} has no type that clients can send",
                do="Name one.",
            )


def line_of(folder: ModelFolder, *texts: str) -> str:
    """The first line of the configuration with all of the texts, as a place; without a number if there is none."""
    if CONFIG not in folder.files:
        return folder.where()
    lines = read_regular(folder.files[CONFIG], MAX_CONFIG_BYTES).decode(errors="replace").splitlines()
    line = next((number for number, each in enumerate(lines, 1) if all(text in each for text in texts)), 0)
    return folder.where() + (f":{line}" if line else "")


def _type(spec: TensorSpec) -> int:
    return int(pb.DataType.Value("TYPE_STRING" if spec.datatype == "BYTES" else f"TYPE_{spec.datatype}"))


def _spec(entry: pb.ModelInput | pb.ModelOutput, batch: tuple[int, ...], *, optional: bool = False) -> TensorSpec:
    name = pb.DataType.Name(entry.data_type).removeprefix("TYPE_")
    known = {"STRING": "BYTES", "INVALID": "FP32", "BF16": "FP32"}.get(name, name)  # a mistake is told by `_contents`
    shape = (*batch, *entry.dims)
    return TensorSpec.model_validate({"name": entry.name, "datatype": known, "shape": shape, "optional": optional})
