"""Versions registered by an attacker, through the real registry and engine: refused within seconds, and nothing ran."""

import io
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
from mlflow.models import infer_signature

from shiplift.pipelines.engines.local import stack
from shiplift.runtime.store.registry.terms import CHALLENGER, CHAMPION
from tests.integration.conftest import FAST, Lab, Released, digits, until


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What an attacker changes in a logged model, and how the release must end."""

    prepare: Callable[[Path, Path], None]  # the model's folder, and the file that its code would write
    stage: str
    exit_code: int
    messages: tuple[str, ...]
    data: Callable[[], bytes] | None = None  # as the validation set


def code_folder(folder: Path, canary: Path) -> None:
    """Code of its own, which MLflow would import to find the flavor's model class."""
    (folder / "code").mkdir()
    (folder / "code" / "evil.py").write_text(f"open({str(canary)!r}, 'w')\nclass Model: pass\n")
    text = (folder / "MLmodel").read_text()
    (folder / "MLmodel").write_text(
        text.replace("  sklearn:\n", "  lightgbm:\n    model_class: evil.Model\n").replace("code: null", "code: code")
    )


def protocol_0(folder: Path, canary: Path) -> None:
    """The opcode INST imports and calls in one step."""
    (folder / "model.pkl").write_bytes(f"(S'touch {canary}'\nios\nsystem\n.".encode())


def alias_bomb(folder: Path, _canary: Path) -> None:
    """2 KB of YAML that stand for 10^24 strings."""
    levels = ["bomb0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"bomb{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 24)]
    with (folder / "MLmodel").open("a") as file:
        file.write("\n".join(levels) + "\n")


def unchanged(_folder: Path, _canary: Path) -> None:
    """The model is honest."""


def inflated() -> bytes:
    """A small NPZ whose arrays, as its directory says, have 12 GiB."""
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in (("input", np.zeros((64, 64), np.float32)), ("label", np.zeros(64, np.int64))):
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)
        archive.infolist()[0].file_size = 12 << 30
    return body.getvalue()


ATTACKS = {
    "code": Attack(prepare=code_folder, stage="admit", exit_code=30, messages=("code/evil.py",)),
    "inst": Attack(prepare=protocol_0, stage="admit", exit_code=30, messages=("model.pkl", "os.system")),
    "aliases": Attack(prepare=alias_bomb, stage="admit", exit_code=30, messages=("MLmodel", "anchor &a0")),
    "npz": Attack(
        prepare=unchanged, stage="export", exit_code=33, messages=("validation.npz", "unpacks to"), data=inflated
    ),
}


VARIANTS = ("inst", "npz")


@pytest.mark.parametrize(
    "attack", [pytest.param(name, marks=pytest.mark.slow if name in VARIANTS else ()) for name in ATTACKS]
)
def test_a_hostile_version_is_refused_by_name_and_changes_nothing(
    lab: Lab, champion: Released, tmp_path: Path, attack: str
) -> None:
    images, canary, hostile = {"input": digits()[0][:3]}, tmp_path / "it-ran", ATTACKS[attack]
    model, served = champion.model, lab.ask(champion.model, images)
    before = descendants(lab)
    version = register(lab, model, hostile, tmp_path / "model", canary)
    report = lab.wait(model, version)
    assert report.exit_code == hostile.exit_code, report.reason
    for message in hostile.messages:
        assert message in report.reason
    (failed,) = (stage for stage in report.stages if stage.outcome == "failed")
    assert failed.name == hostile.stage
    assert not canary.exists()
    until(lambda: descendants(lab) <= before)
    assert not list(lab.home.glob("shiplift-*"))
    assert (lab.registry.alias(model, CHAMPION), lab.registry.alias(model, CHALLENGER)) == (champion.version, 0)
    assert lab.ask(model, images) == served


def register(lab: Lab, name: str, attack: Attack, folder: Path, canary: Path) -> int:
    """Registers the attacker's version, unchecked by MLflow's client; returns its number."""
    images, _ = digits()
    model = lab.classifier()
    lab.mlflow.sklearn.save_model(
        model,
        str(folder),
        signature=infer_signature(images[:4], model.predict(images[:4])),
        input_example=images[:4],
        serialization_format="pickle" if attack.prepare is protocol_0 else "skops",
        pip_requirements=[],
    )
    attack.prepare(folder, canary)
    with lab.mlflow.start_run() as run:
        lab.mlflow.log_text(FAST, "shiplift/shiplift.yaml")
        lab.mlflow.log_artifacts(str(folder), "model")
        if attack.data:
            file = folder.parent / "validation.npz"
            file.write_bytes(attack.data())
            lab.mlflow.log_artifact(str(file), "shiplift")
    client = lab.mlflow.MlflowClient()
    source = f"{run.info.artifact_uri}/model"
    return int(client.create_model_version(name, source, run.info.run_id).version)


def descendants(lab: Lab) -> set[int]:
    """The processes that the dispatcher has started, the watchdog among them."""
    running = stack.read(lab.home)
    assert running is not None
    there = set()
    for child in psutil.Process(running.processes["dispatcher"].pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended just now
            if child.status() != psutil.STATUS_ZOMBIE:
                there.add(child.pid)
    return there
