"""Members of a pipeline that decode images: packages that are made here and never registered.

On the bundled server Pillow decodes, with libjpeg-turbo and libpng in native code. NVIDIA's image has DALI, with nvJPEG
on GPUs. Both are members like any other: the bundle names and loads them, they are counted, and a golden request proves
them.
"""

import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tritonclient.grpc import model_config_pb2 as pb

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.composition.checked import Unusable
from shiplift.runtime.guest import fronts, pipelines
from shiplift.runtime.model.tensors import dump_npz
from shiplift.runtime.records.base import identity
from shiplift.runtime.records.kinds.package import DecoderPackage, Package
from shiplift.runtime.records.serving import Nodes, ServingConfig
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.serving.triton.config import datatype_value, render
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.spec.images import ImageDecoder
from shiplift.runtime.spec.pipeline import PipelineMember, PipelineSpec
from shiplift.runtime.store.artifacts import ArtifactStore

IMAGE, PIXELS = "image", "pixels"
_MODEL = Path(pipelines.__file__).with_name("image_model.py")
_ENCODED = Path(fronts.__file__).with_name("encoded.py")
_FRONT = Path(fronts.__file__).with_name("pixel_front.py")
_GRAY = 128  # the value of each pixel of the golden request, which every decoder agrees on
_JPEG = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgGBgcGBQgHBwcJCQgKDBQNDAsLDBkSEw8UHRofHh0aHBwgJC4nICIsIxwcKDcpLDAxNDQ0Hyc5PTgy"
    "PC4zNDL/2wBDAQkJCQwLDBgNDRgyIRwhMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjL/wAARCAAQABADASIA"
    "AhEBAxEB/8QAFAABAAAAAAAAAAAAAAAAAAAAAP/EABQQAQAAAAAAAAAAAAAAAAAAAAD/xAAUAQEAAAAAAAAAAAAAAAAAAAAA/8QAFBEBAAAAAAAAAAAA"
    "AAAAAAAAAP/aAAwDAQACEQMRAD8AAA//2Q=="
)  # 16 x 16
_BATCH = 32  # images that DALI decodes together
_INTERPOLATION = {"nearest": "NN", "bilinear": "LINEAR", "bicubic": "CUBIC", "lanczos": "LANCZOS3"}
_DALI = '''"""{about}"""

from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.triton import autoserialize


@autoserialize
@pipeline_def(batch_size={batch}, num_threads={threads}, device_id={device_id})
def decoded():
    files = fn.external_source(device="cpu", name="{image}", dtype=types.UINT8, ndim=1)
    pixels = fn.decoders.image(files, device="{device}", output_type=types.{colors})
    pixels = fn.resize(pixels, {resize}, interp_type=types.INTERP_{filter}, antialias=True)
    return fn.crop_mirror_normalize(
        pixels, dtype=types.{dtype}, output_layout="{layout}", crop={size}, rounding="truncate",
        mean={mean}, std={std},
    )
'''


def members_of(
    spec: PipelineSpec, find: Callable[[PipelineMember], Package | Unusable], store: ArtifactStore
) -> dict[str, Package | Unusable]:
    """A pipeline's members by its names for them: `find` returns the registered ones, the decoders are made here.

    A decoder is for the server that the other members are for.
    """
    found = {name: find(member) for name, member in spec.members.items() if member.image is None}
    beside = next((each for each in found.values() if isinstance(each, Package)), None)
    made = {name: decoder_package(member.image, beside, store) for name, member in spec.members.items() if member.image}
    return {name: made.get(name) or found[name] for name in spec.members}


def decoder_package(decoder: ImageDecoder, beside: Package | None, store: ArtifactStore) -> Package:
    """The package of a decoder, stored, for the server of the package `beside` it (None: the bundled one)."""
    model = f"image{hashlib.sha256(json.dumps(identity(decoder), sort_keys=True).encode()).hexdigest()[:10]}"
    name = serving_name(model)
    server, nodes = (beside.server, beside.nodes) if beside else ("bundled", Nodes())
    with TemporaryDirectory() as folder:
        tree = Path(folder)
        version = tree / name / "1"
        version.mkdir(parents=True)
        if server == "nvidia":
            (version / "dali.py").write_text(dali_source(decoder, gpu=nodes.gpus > 0))
        else:
            shutil.copyfile(_MODEL, version / "model.py")
            shutil.copyfile(_FRONT, version / "front.py")
            shutil.copyfile(_ENCODED, version / _ENCODED.name)
        config = dali_config(name, decoder) if server == "nvidia" else bundled_config(name, decoder)
        (tree / name / "config.pbtxt").write_text(render(config))
        (tree / GOLDEN).write_bytes(dump_npz(golden(decoder)))
        repository = store.put_tree(tree)
    batch = -1 if server == "nvidia" else 1
    return DecoderPackage(
        target=beside.target if beside else "local-cpu",
        server=server,
        model=model,
        version=1,
        precision="fp32",
        engine="python",
        repository=repository,
        nodes=nodes,
        config=ServingConfig(max_batch=1, queue_delay_us=0, instances=decoder.workers, threads=1),
        signature=Signature(
            inputs=(TensorSpec(name=IMAGE, datatype="UINT8", shape=(batch, -1)),),
            outputs=(TensorSpec(name=PIXELS, datatype=decoder.datatype, shape=(batch, *decoder.shape[1:])),),
        ),
    )


def golden(decoder: ImageDecoder) -> dict[str, Any]:
    """A gray image and its pixels, which no decoder, filter or order of colors changes."""
    image = np.frombuffer(base64.b64decode(_JPEG), np.uint8)[None]
    pixels = np.full(decoder.shape, _GRAY, np.uint8)
    if decoder.datatype == "FP32":
        pixels = normalized(pixels, decoder)
    return {f"input/{IMAGE}": image, f"output/{PIXELS}": pixels}


def normalized(pixels: Any, decoder: ImageDecoder) -> Any:
    """Pixels as FP32, of the decoder's shape: scaled, less the mean, over the deviation."""
    along = (1, -1, 1, 1) if decoder.layout == "NCHW" else (1, 1, 1, -1)
    mean, std = (
        np.reshape(values or (default,), along).astype(np.float32)
        for values, default in ((decoder.mean, 0.0), (decoder.std, 1.0))
    )
    return (pixels.astype(np.float32) * np.float32(1.0 if decoder.scale is None else decoder.scale) - mean) / std


def bundled_config(name: str, decoder: ImageDecoder) -> pb.ModelConfig:
    """The configuration for the bundled server: `guest/pipelines/image_model.py` decodes, a file at a time."""
    config = pb.ModelConfig(name=name, backend="python")
    _tensor(config.input.add(), IMAGE, "UINT8", (1, -1))
    _tensor(config.output.add(), PIXELS, decoder.datatype, decoder.shape)
    config.instance_group.add(count=decoder.workers, kind=pb.ModelInstanceGroup.KIND_CPU)
    config.parameters["image"].string_value = json.dumps(decoder_settings(decoder), sort_keys=True)
    return config


def decoder_settings(decoder: ImageDecoder) -> dict[str, Any]:
    """The settings that `pixel_front` decodes with."""
    return decoder.model_dump(mode="json", exclude={"workers"}) | {"datatype": decoder.datatype}


def dali_config(name: str, decoder: ImageDecoder) -> pb.ModelConfig:
    """The configuration for NVIDIA's image: DALI decodes the files of many requests together, whatever their sizes."""
    config = pb.ModelConfig(name=name, backend="dali", max_batch_size=_BATCH)
    image = config.input.add()
    _tensor(image, IMAGE, "UINT8", (-1,))
    image.allow_ragged_batch = True
    _tensor(config.output.add(), PIXELS, decoder.datatype, decoder.shape[1:])
    config.dynamic_batching.SetInParent()
    return config


def dali_source(decoder: ImageDecoder, *, gpu: bool) -> str:
    """DALI's pipeline, which its backend serializes when it loads the model.

    DALI's normalization has no scale, so mean and deviation absorb it: (x s - m) / d = (x - m / s) / (d / s).
    """
    scale = 1.0 if decoder.scale is None else decoder.scale
    means, deviations = decoder.mean or (0.0,) * decoder.channels, decoder.std or (1.0,) * decoder.channels
    return _DALI.format(
        about=f"{decoder.size[0]} x {decoder.size[1]} pixels of JPEG and PNG files.",
        image=IMAGE,
        batch=_BATCH,
        threads=decoder.workers,
        device_id=0 if gpu else None,
        device="mixed" if gpu else "cpu",
        colors=decoder.colors.upper(),
        size=list(decoder.size),
        filter=_INTERPOLATION[decoder.filter],
        resize=f"resize_shorter={to}" if isinstance(to := decoder.resize, int) else f"size={list(to)}",
        dtype="FLOAT" if decoder.datatype == "FP32" else "UINT8",
        layout=decoder.layout[1:],
        mean=[round(mean / scale, 6) for mean in means],
        std=[round(std / scale, 6) for std in deviations],
    )


def _tensor(entry: Any, name: str, datatype: Any, dims: tuple[int, ...]) -> None:
    entry.name = name
    entry.data_type = datatype_value(datatype)
    entry.dims.extend(dims)
