"""The messages between a front's model on NVIDIA's server and the process that it hosts.

`tests/integration/test_fronts_for_nvidia.py` runs both in a real server.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from shiplift.runtime.guest import graphs
from shiplift.runtime.guest.fronts.hosted_front import HostedFront
from shiplift.runtime.guest.fronts.text_front import BadText
from shiplift.runtime.guest.python import host
from tests.unit.runtime.guest.fronts.test_text_front import front


class PythonModel:
    """Stands in for the class that needs Triton."""


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`front_model.py` as in a package, with stand-ins for the modules that only Triton has."""
    beside = ModuleType("python_model")
    beside.TritonPythonModel = PythonModel  # type: ignore[attr-defined]
    beside.error_of = str  # type: ignore[attr-defined]
    for name, module in (
        ("python_model", beside),
        ("triton_python_backend_utils", ModuleType("triton_python_backend_utils")),
        ("python_host", ModuleType("python_host")),
        ("python_host.host", host),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("model", Path(graphs.__file__).with_name("front_model.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_requests_are_read_together_and_answered_apart(tmp_path: Path, model: Any) -> None:
    hosted = HostedFront(front(tmp_path), BadText)
    read = hosted.answer(model.packed([{"input": [b"a film", b""]}, {"input": [b"\xff"]}, {"input": [b"a"]}]))
    assert [bool(why) for why in read["refused"]] == [False, True, False]
    assert "not UTF-8" in read["refused"][1]
    assert read["feed/attention_mask"].sum(axis=1).tolist() == [4, 2, 3]
    scores = np.array([[0.2, 0.8], [0.6, 0.4], [0.3, 0.7]], np.float32)
    answers = hosted.answer({"output/probabilities": scores})
    assert [answers[f"{at}/label"].tolist() for at in range(2)] == [[["B-PER"], ["O"]], [["B-PER"]]]
    refused = hosted.answer(model.packed([{"input": [b"a " * 99]}]))
    assert (list(refused), "the model takes 12" in refused["refused"][0]) == (["refused"], True)


def test_a_model_of_several_texts_gets_those_of_a_sample_together(tmp_path: Path, model: Any) -> None:
    hosted = HostedFront(front(tmp_path, inputs=["text", "text_pair"]), BadText)
    one, other = {"text": [b"a"], "text_pair": [b"film"]}, {"text": [b"a film"], "text_pair": [b""]}
    read = hosted.answer(model.packed([one, other]))
    assert read["feed/attention_mask"].sum(axis=1).tolist() == [5, 4]


def test_what_is_too_large_to_be_sent_is_refused(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MAX_BYTES", 3)
    assert model.packed([{"input": [b"ab", b"c"]}])["sizes/input"].tolist() == [2, 1]
    with pytest.raises(host.Raised, match="has 4 bytes, the limit is 3"):
        model.packed([{"input": [b"ab"]}, {"input": [b"cd"]}])
