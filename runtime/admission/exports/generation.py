"""The export of models that generate text, for OpenVINO GenAI, and the proof that both generate the same tokens.

As for other models, one sandbox converts and another compares. What is compared are the tokens that come next if the
most likely one is always taken: of random draws, no two engines make the same.
"""

import hashlib
import os
from pathlib import Path

from shiplift.runtime.base.progress import measuring
from shiplift.runtime.confinement.policy import EVALUATE, Entry, SandboxLimits
from shiplift.runtime.confinement.workplace import workplace
from shiplift.runtime.guest.generation.chat import CHAT
from shiplift.runtime.host.outputs import require_regular
from shiplift.runtime.model.generation.signature import CHAT_SIGNATURE, SIGNATURE
from shiplift.runtime.records.model import Contract, Exported, ModelVersion, ParityCase
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.model import Conversion
from shiplift.runtime.store.artifacts import ArtifactStore

CONVERT = Entry("shiplift.runtime.model.generation.entry:convert")
VERIFY = Entry("shiplift.runtime.model.generation.entry:verify", EVALUATE)
_ANSWERS = ("answers.json", "chats.json")
_FILES = ("openvino_model.xml", "openvino_model.bin", "tokenizer.json", "generation.json")


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
        chats = (work / "model" / CHAT).exists()
        require_regular(work, *(f"model/{name}" for name in (*_FILES, *([CHAT] if chats else []))), *_ANSWERS)
        written = verifying.folder / "written"
        written.mkdir()
        for name in ("model", *_ANSWERS):
            (work / name).rename(written / name)
        result, _ = verifying.sandbox.run(
            {
                "model": str(written / "model"),
                "answers": str(written / "answers.json"),
                "chats": str(written / "chats.json"),
                "threads": len(os.sched_getaffinity(0)),
                "out": str(verifying.sandbox.work),
            },
            _limits(site, conversion, "comparing both models"),
        )
        require_regular(verifying.sandbox.work, "reference.npz")
        if not result["chats"]:
            (written / "model" / CHAT).unlink(missing_ok=True)
        return Exported(
            model=store.put_tree(written / "model"),
            signature=CHAT_SIGNATURE if result["chats"] else SIGNATURE,
            opset=0,
            graph=hashlib.sha256((written / "model" / _FILES[0]).read_bytes()).hexdigest(),
            generates=True,
            parity=tuple(ParityCase.model_validate(case) for case in result["parity"]),
            reference=store.put_file(verifying.sandbox.work / "reference.npz"),
            isolation=isolation,
            notes=(*contract.notes, *_notes(int(converted["context"]), str(result["chat_problem"]))),
        )


def _notes(context: int, chat_problem: str) -> tuple[str, ...]:
    """What a reader of the report should know of a model that takes so many tokens."""
    notes = (f"The model takes {context} tokens, prompt and answer together.",)
    return (*notes, f"It takes prompts alone, no conversations: {chat_problem}.") if chat_problem else notes


def _limits(site: Site, conversion: Conversion, task: str) -> SandboxLimits:
    return SandboxLimits(
        memory_mb=min(conversion.memory_mb, site.policy.memory_mb),
        timeout_s=min(conversion.timeout_s, site.policy.timeout_s), task=task, settings="export",
    )  # fmt: skip
