"""The export of models that generate text, for OpenVINO GenAI, and the proof that both generate the same tokens.

As for other models, one sandbox converts and another one compares. The comparison is over the next tokens if the most
likely one is always taken, because no two engines draw the same random tokens.
"""

import hashlib
import time
from pathlib import Path

from shiplift.runtime.base.progress import measuring
from shiplift.runtime.confinement.policy import EVALUATE, Entry
from shiplift.runtime.confinement.workplace import workplace
from shiplift.runtime.families.work import Exporting
from shiplift.runtime.guest.generation.chat import CHAT
from shiplift.runtime.host.outputs import require_regular
from shiplift.runtime.host.processor import usable_cores
from shiplift.runtime.model.generation.signature import CHAT_SIGNATURE, SIGNATURE
from shiplift.runtime.records.kinds.contract import DeclaredGeneration
from shiplift.runtime.records.kinds.exported import ExportedGeneration
from shiplift.runtime.records.model import ParityCase

CONVERT = Entry("shiplift.runtime.model.generation.entry:convert")
VERIFY = Entry("shiplift.runtime.model.generation.entry:verify", EVALUATE)
_ANSWERS = ("answers.json", "chats.json")
_FILES = ("openvino_model.xml", "openvino_model.bin", "tokenizer.json", "generation.json")


def export_generation(work: Exporting[DeclaredGeneration]) -> ExportedGeneration:
    """Converts the version, and compares the tokens that both models generate after the example's prompts.

    Raises:
        ExportFailed: the model does not load, generate or convert.
        SandboxLimit: it needs more memory or time than the spec allows.
    """
    store, home, sandbox = work.store, Path(work.site.home), work.site.sandbox
    with (
        workplace(CONVERT, home, sandbox) as converting,
        workplace(VERIFY, home, sandbox) as verifying,
        measuring(),
    ):
        source = store.fetch(work.version.files, converting.folder / "source")
        example = store.fetch(work.contract.example, converting.folder / "example.npz")
        out = converting.sandbox.work
        order = {"folder": str(source), "example": str(example), "out": str(out)}
        converted, isolation = converting.sandbox.run(order, work.limits("loading or converting the model"))
        chats = (out / "model" / CHAT).exists()
        require_regular(out, *(f"model/{name}" for name in (*_FILES, *([CHAT] if chats else []))), *_ANSWERS)
        written = verifying.folder / "written"
        written.mkdir()
        for name in ("model", *_ANSWERS):
            (out / name).rename(written / name)
        started = time.monotonic()
        result, _ = verifying.sandbox.run(
            {
                "model": str(written / "model"),
                "answers": str(written / "answers.json"),
                "chats": str(written / "chats.json"),
                "threads": usable_cores(),
                "out": str(verifying.sandbox.work),
            },
            work.limits("comparing both models"),
        )
        require_regular(verifying.sandbox.work, "reference.npz")
        if not result["chats"]:
            (written / "model" / CHAT).unlink(missing_ok=True)
        return ExportedGeneration(
            model=store.put_tree(written / "model"),
            signature=CHAT_SIGNATURE if result["chats"] else SIGNATURE,
            graph=hashlib.sha256((written / "model" / _FILES[0]).read_bytes()).hexdigest(),
            parity=tuple(ParityCase.model_validate(case) for case in result["parity"]),
            reference=store.put_file(verifying.sandbox.work / "reference.npz"),
            isolation=isolation,
            proof_seconds=round(time.monotonic() - started, 3),
            notes=(*work.contract.notes, *_notes(int(converted["context"]), str(result["chat_problem"]))),
        )


def _notes(context: int, chat_problem: str) -> tuple[str, ...]:
    """What a reader of the report should know about a model with this context, in tokens."""
    notes = (f"The model takes {context} tokens, prompt and answer together.",)
    return (*notes, f"It takes prompts only, no conversations: {chat_problem}.") if chat_problem else notes
