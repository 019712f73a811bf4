"""What `shiplift lab` writes and asks for, before JupyterLab starts."""

from pathlib import Path

import pytest

from shiplift.pipelines.commands.releases import laboratory
from shiplift.runtime.base.errors import MissingTool, UsageError
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.serving.discovery import ServedModel

ROWS = TensorSpec(name="x", datatype="FP32", shape=(-1, 4))
SERVED = ServedModel(
    model="a `b`",
    name="a-b-0123456789",
    version=3,
    grpc="127.0.0.1:1",
    http="http://127.0.0.1:2",
    invocations="http://127.0.0.1:3/invocations",
    signature=Signature(inputs=(ROWS,), outputs=(ROWS,)),
)


@pytest.mark.parametrize(("idle", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200)])
def test_idle_is_a_time(idle: str, seconds: int) -> None:
    assert laboratory.seconds_of(idle) == seconds


@pytest.mark.parametrize("idle", ["", "30", "5s", "-1h", "200h", "1d", "999999h"])
def test_other_times_are_refused(idle: str) -> None:
    with pytest.raises(UsageError, match="is not a time from 60s to 168h"):
        laboratory.seconds_of(idle)


def test_without_jupyterlab_the_message_says_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laboratory, "find_spec", lambda _: None)
    with pytest.raises(MissingTool, match=r"pip install 'shiplift\[lab\]'"):
        laboratory.require_jupyter()


def test_every_cell_is_python_and_a_name_is_text(tmp_path: Path) -> None:
    cells = list(laboratory._cells(SERVED, tmp_path, ("example.npz", "valid.npz")))
    for kind, text in cells:
        if kind == "code":
            compile(text, "cell", "exec")
    assert cells[0] == ("text", "# a \\`b\\`\n\nVersion 3 served when this was written.")
    assert any("tritonclient.grpc" in text for _, text in cells)
