"""The export of models that generate text, for OpenVINO GenAI, and the proof that both generate the same tokens.

As for other models, one sandbox converts and another compares. What is compared are the tokens that come next if the
most likely one is always taken: of random draws, no two engines make the same.
"""

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

from shiplift.runtime.base.errors import MissingTool, NotAdmitted, SpecInvalid
from shiplift.runtime.base.progress import measuring
from shiplift.runtime.confinement.policy import EVALUATE, Entry, Limits
from shiplift.runtime.confinement.workplace import workplace
from shiplift.runtime.host.outputs import require_regular
from shiplift.runtime.model.generation.signature import SIGNATURE
from shiplift.runtime.records.model import Contract, Exported, ModelVersion, ParityCase
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.model import Conversion
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore

CONVERT = Entry("shiplift.runtime.model.generation.entry:convert")
VERIFY = Entry("shiplift.runtime.model.generation.entry:verify", EVALUATE)
_EXTRA = "Install the `generation` extra: pip install 'shiplift[generation]'."
_FILES = ("openvino_model.xml", "openvino_model.bin", "tokenizer.json", "generation.json")


def check_generation(site: Site, spec: ReleaseSpec) -> None:
    """Whether a site and a spec let a model that generates text be released, before time is spent on it.

    Raises:
        NotAdmitted: the site serves none.
        SpecInvalid: the spec asks for something that such a model has not.
        MissingTool: OpenVINO GenAI is not installed here.
    """
    if not site.place.generation:
        raise NotAdmitted(
            "models that generate text are served on one machine, not on a cluster yet",
            do="Release it with the local engine; or serve it with Triton's vLLM or TensorRT-LLM backend.",
        )
    conversion, serving = spec.export, spec.serving
    asked = {
        "export.outputs": conversion.outputs, "export.postprocess": conversion.postprocess,
        "export.torchscript": conversion.torchscript, "serving.sequence_batching": serving.sequence_batching,
        "serving.response_cache": serving.response_cache, "serving.preferred_batch_size": serving.preferred_batch_size,
        "load.shapes": spec.load.shapes,
    }  # fmt: skip
    if name := next((name for name, value in asked.items() if value), ""):
        raise SpecInvalid(f"`{name}` is set, but a model that generates text has none of that", do="Leave it out.")
    if spec.load.protocol != "grpc":
        raise SpecInvalid("`load.protocol` is http, but text is streamed over gRPC", do="Leave it out.")
    for target in spec.targets:
        if isinstance(target, Target):
            check_generating(target)
    missing = [name for name in ("openvino_genai", "openvino_tokenizers") if find_spec(name) is None]
    if missing:
        raise MissingTool(f"the model generates text, and {missing[0]} is not installed here", do=_EXTRA)


def check_generating(target: Target) -> None:
    """Whether a target serves models that generate text.

    Raises:
        SpecInvalid: it does not.
    """
    fits = not target.gpu and target.server == "bundled" and "fp32" in target.precisions
    if not fits or target.engine not in ("auto", "openvino") or target.accelerator == "cpu-arm64":
        raise SpecInvalid(
            f"target {target.name} can't serve a model that generates text: only the bundled server on an x86 CPU "
            "does, in fp32, with `engine: auto` or `openvino`",
            do="Choose such a target; or serve the model with Triton's vLLM or TensorRT-LLM backend.",
        )


def export_generation(site: Site, version: ModelVersion, contract: Contract, conversion: Conversion) -> Exported:
    """Converts the version, and compares the tokens that both models generate after the example's prompts.

    Raises:
        ExportFailed: the model does not load, generate or convert.
        SandboxLimit: it needs more memory or time than the spec allows.
    """
    store, home = ArtifactStore(site.artifacts_uri), Path(site.home)
    with (
        workplace(CONVERT, home, site.sandbox) as converting,
        workplace(VERIFY, home, site.sandbox) as verifying,
        measuring(),
    ):
        source = store.fetch(version.files, converting.folder / "source")
        example = store.fetch(contract.example, converting.folder / "example.npz")
        work = converting.sandbox.work
        order = {"folder": str(source), "example": str(example), "out": str(work)}
        converted, isolation = converting.sandbox.run(
            order, _limits(site, conversion, "loading or converting the model")
        )
        require_regular(work, *(f"model/{name}" for name in _FILES), "answers.json")
        written = verifying.folder / "written"
        written.mkdir()
        for name in ("model", "answers.json"):
            (work / name).rename(written / name)
        result, _ = verifying.sandbox.run(
            {
                "model": str(written / "model"),
                "answers": str(written / "answers.json"),
                "threads": len(os.sched_getaffinity(0)),
                "out": str(verifying.sandbox.work),
            },
            _limits(site, conversion, "comparing both models"),
        )
        require_regular(verifying.sandbox.work, "reference.npz")
        return Exported(
            model=store.put_tree(written / "model"),
            signature=SIGNATURE,
            opset=0,
            graph=hashlib.sha256((written / "model" / _FILES[0]).read_bytes()).hexdigest(),
            generates=True,
            parity=tuple(ParityCase.model_validate(case) for case in result["parity"]),
            reference=store.put_file(verifying.sandbox.work / "reference.npz"),
            isolation=isolation,
            notes=(*contract.notes, f"The model takes {int(converted['context'])} tokens, prompt and answer together."),
        )


def _limits(site: Site, conversion: Conversion, task: str) -> Limits:
    return Limits(
        memory_mb=min(conversion.memory_mb, site.policy.memory_mb),
        timeout_s=min(conversion.timeout_s, site.policy.timeout_s), task=task, settings="export",
    )  # fmt: skip
