"""Refusals, one after the other, each repaired by what it or its section in `docs/howto/refusals.md` says."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from shiplift.pipelines.commands.app import main
from tests.integration.conftest import ONE_FORM, Lab, digits

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SECTIONS = (Path(__file__).parents[2] / "docs/howto/refusals.md").read_text()
MODEL = "followed"
RERUN = f"rerun {MODEL}/2 --spec shiplift.yaml"

Shiplift = Callable[..., str]


@pytest.fixture
def shiplift(lab: Lab, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shiplift:
    """Runs a command, which ends with `code`; returns what it said.

    `repairs` is the exit code in whose section the command stands; without, the refusal has named it.
    """

    def run(command: str, *, code: int = 0, repairs: int = 0, home: Path = lab.home) -> str:
        if repairs:
            section = SECTIONS.partition(f"## Exit code {repairs}\n")[2].partition("\n## ")[0]
            generic = re.sub(rf"{MODEL}/\d", "MODEL/VERSION", f"shiplift {command}")
            assert re.sub(rf"{MODEL}\b", "MODEL", generic) in section
        with monkeypatch.context() as changed:
            changed.setattr(sys, "argv", ["shiplift", "--home", str(home), *command.split()])
            with pytest.raises(SystemExit) as ended:
                main()
        said = " ".join("".join(capfd.readouterr()).split())
        assert ended.value.code == code, said
        return said

    return run


def spec_of(**changes: Any) -> str:
    """A spec of one form with these sections, or fields of sections that it has."""
    document = yaml.safe_load(ONE_FORM)
    for name, section in changes.items():
        document[name] = document.get(name, {}) | section
    return yaml.safe_dump(document)


def log_data(lab: Lab, version: int, folder: Path, **arrays: NDArray[Any]) -> None:
    """Logs validation data in the run of a version, in place of what was there."""
    file = folder / "validation.npz"
    np.savez(file, **arrays)  # type: ignore[arg-type]
    run_id = lab.mlflow.MlflowClient().get_model_version(MODEL, str(version)).run_id
    lab.mlflow.log_artifact(str(file), "shiplift", run_id=run_id)


def log_unmeasured(lab: Lab, spec: str) -> int:
    """Logs the classifier with a signature and an example, and without validation data."""
    from mlflow.models import infer_signature

    model, example = lab.classifier(), digits()[0][:4]
    contract = {"signature": infer_signature(example, model.predict(example)), "input_example": example}
    return lab.log(MODEL, lambda **options: lab.mlflow.sklearn.log_model(model, **contract, **options), spec=spec)


def test_who_follows_each_refusal_gets_further_until_the_version_serves_and_is_retired(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shiplift: Shiplift
) -> None:
    monkeypatch.chdir(tmp_path)
    images, labels = digits()

    def write(**sections: Any) -> None:
        (tmp_path / "shiplift.yaml").write_text(spec_of(**sections))

    assert "shiplift up" in shiplift(f"release {MODEL}/1", code=69, home=tmp_path / "nowhere")
    assert "MODEL/VERSION" in shiplift("report", code=64)
    shiplift(f"release {MODEL}/1", code=66)
    shiplift("status", repairs=66)

    # Neither signature nor example: the arguments of `log_model` to add.
    assert lab.log_classifier(MODEL, signature=False, input_example=None) == 1
    lab.wait(MODEL, 1)
    said = shiplift(f"release {MODEL}/1", code=30)
    assert "infer_signature" in said
    assert "input_example" in said

    # A field that the spec has not: the one that it has, and `rerun` with it.
    assert log_unmeasured(lab, spec_of(quality={"min_scor": 0.5})) == 2
    lab.wait(MODEL, 2)
    said = shiplift(f"release {MODEL}/2", code=65)
    assert "did you mean 'min_score'?" in said
    assert f"shiplift {RERUN}" in said
    write(quality={"min_score": 0.5}, slo={"memory_mb": 1})

    # No validation data, then data under other names: what to log, and where.
    said = shiplift(RERUN, code=21)
    assert "shiplift/validation.npz" in said
    assert "what to do about accuracy: Log more validation data at `data.validation` in the version's run" in said
    assert f"shiplift {RERUN}" in said
    log_data(lab, 2, tmp_path, images=images[1200:], digit=labels[1200:])
    said = shiplift(RERUN, code=33)
    log_data(lab, 2, tmp_path, input=images[1200:], label=labels[1200:])

    # A limit that nothing holds: the field to raise.
    said = shiplift(RERUN, code=20)
    assert "what to do about memory: " in said
    assert "raise `slo.memory_mb`" in said
    assert f"shiplift {RERUN}" in said
    write(quality={"min_score": 0.5}, promotion={"approval": "required"})

    # A person decides, once.
    shiplift(RERUN, code=23)
    shiplift(f"approve {MODEL}/2 --reason TEXT", repairs=23)
    assert "approved by" in shiplift(f"approve {MODEL}/2 --reason TEXT", code=60)
    assert f"{MODEL} version 2" in shiplift(f"report {MODEL}/2", repairs=60)

    # Nothing to return to, until another version was released.
    shiplift(f"rollback {MODEL}", code=45)
    assert lab.log_classifier(MODEL, spec=ONE_FORM) == 3
    assert lab.wait(MODEL, 3).exit_code == 0
    write(quality={"min_score": 0.5})
    shiplift(RERUN, code=44)
    shiplift(f"release {MODEL}/2 --allow-older --spec shiplift.yaml")
    shiplift(f"abort {MODEL}", code=58)
    assert "3" in shiplift(f"rollback {MODEL}", repairs=58)

    # What serves is retired as a whole.
    shiplift(f"retire {MODEL}/3", code=61)
    shiplift(f"retire {MODEL}", repairs=61)
