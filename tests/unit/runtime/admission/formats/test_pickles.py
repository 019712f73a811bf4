"""What a pickle would run, found without running it: names, calls, and every way to hide them."""

import collections
import contextlib
import io
import pickle
import struct
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.admission import judging
from shiplift.runtime.admission.allowed import GLOBALS, is_framework
from shiplift.runtime.admission.formats import pickles
from shiplift.runtime.admission.judging import Reader


class Calls:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


def objections(body: bytes, mode: Any = "refuse", reader: Reader = "python") -> list[str]:
    walked = pickles.walk(io.BytesIO(body), persistent=reader != "python")
    return [finding.what for finding in judging.findings(walked, "model.pkl", mode, reader)]


EVIL = {
    "protocol 0 with INST": b"(S'id'\nios\nsystem\n.",
    "protocol 0 with REDUCE": b"cos\nsystem\n(S'id'\ntR.",
    "no STOP": b"cos\nsystem\n(S'id'\ntR",
    "a hexadecimal INT first, which pickletools can't read": b"I0x10\n0cos\nsystem\n(S'id'\ntR.",
    "a STRING without quotes first": b"Sx\n0cos\nsystem\n(S'id'\ntR.",
    "a long line first": b"S'" + b"x" * (3 << 20) + b"'\n0cos\nsystem\n(S'id'\ntR.",
    "OBJ": b"\x80\x02(cos\nsystem\nU\x02ido.",
    "NEWOBJ": b"\x80\x02csubprocess\nPopen\nU\x02id\x85\x81.",
    "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.",
    "STACK_GLOBAL from the memo": b"\x80\x04\x8c\x02os\x940\x8c\x06system\x940h\x00h\x01\x93\x8c\x02id\x85R.",
    "STACK_GLOBAL through DUP and PUT": b"\x80\x04\x8c\x02osq\x050\x8c\x06system2\x940h\x05\x8c\x06system\x93.",
    "an extension code": b"\x80\x02\x82\x01.",
    "a persistent id": b"\x80\x02U\x02idQ.",
    "a name that is built": b"\x80\x04\x8c\x02osK\x01\x93.",
    "nested attributes": b"\x80\x04\x8c\x08builtins\x8c\x10object.__class__\x93.",
    "the call of a call": b"\x80\x02cnumpy\ndtype\nU\x02f8\x85RU\x02id\x85R.",
    "changes to a class": b"\x80\x02ccollections\nOrderedDict\n}b.",
}


@pytest.mark.parametrize("mode", ["refuse", "sandbox"])
@pytest.mark.parametrize("body", EVIL.values(), ids=EVIL)
def test_what_would_run_or_can_t_be_told_is_an_objection(body: bytes, mode: str) -> None:
    assert objections(body, mode)


LOADERS = [
    ("torch", "load"),
    ("torch.ops", "load_library"),
    ("torch.hub", "load"),
    ("torch.jit", "load"),
    ("mlflow.pyfunc", "load_model"),
    ("sklearn.utils._joblib", "load"),
    ("joblib", "load"),
    ("pickle", "loads"),
    ("numpy", "load"),
    ("numpy", "fromfile"),
    ("pandas", "read_pickle"),
    ("lightgbm.basic", "ctypes.CDLL"),
    ("sklearn.datasets", "load_files"),
    ("builtins", "eval"),
    ("builtins", "getattr"),
    ("__builtin__", "__import__"),
    ("importlib", "import_module"),
    ("operator", "attrgetter"),
    ("operator", "methodcaller"),
    ("torch.fx.graph_module", "reduce_graph_module"),
    ("numpy.testing._private.utils", "runstring"),
    ("torch.utils.cpp_extension", "load_inline"),
    ("cloudpickle.cloudpickle", "loads"),
    ("__main__", "Net"),
    ("torch.serialization", "load"),
    ("scipy.io", "loadmat"),
    ("xgboost.core", "_LIB"),
    ("unheard.of", "Thing"),
]


@pytest.mark.parametrize("mode", ["refuse", "sandbox"])
@pytest.mark.parametrize(("module", "name"), LOADERS)
def test_what_loads_runs_or_imports_is_never_on_the_list(module: str, name: str, mode: str) -> None:
    text = f"\x80\x02c{module}\n{name}\nU\x01x\x85R.".encode("latin-1")
    assert any(f"{module}.{name}" in what for what in objections(text, mode))


def test_the_list_names_nothing_that_loads_runs_or_imports() -> None:
    words = GLOBALS.read_text().replace(":", " ").split()
    assert not {"load", "loads", "eval", "exec", "getattr", "system", "open", "import_module", "load_model"} & set(
        words
    )
    assert not is_framework(("cloudpickle.cloudpickle", "loads"))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_data_are_no_code(protocol: int) -> None:
    data = {
        "array": np.arange(6, dtype=np.float32).reshape(2, 3),
        "text": "größe",
        "set": {1, 2},
        "none": None,
        "ordered": collections.OrderedDict(a=1),
        "scalar": np.float64(3),
        "bytes": b"\x00\xff" * 500,
        "big": 2**100,
        "nested": [(1, 2), [3, {"x": (4,)}]],
        "objects": np.array(["a", None], dtype=object),
    }
    assert objections(pickle.dumps(data, protocol)) == []


def test_a_pickled_estimator_needs_the_spec_s_consent() -> None:
    from sklearn.linear_model import LogisticRegression

    body = pickle.dumps(LogisticRegression().fit([[0.0], [1.0]], [0, 1]))
    assert any("LogisticRegression" in what and "pickle: refuse" in what for what in objections(body))
    assert objections(body, "sandbox") == []


def test_an_estimator_that_holds_a_call_is_refused_all_the_same() -> None:
    from sklearn.preprocessing import FunctionTransformer

    body = pickle.dumps(FunctionTransformer(Calls(eval, ("1",))))
    assert any("builtins.eval" in what for what in objections(body, "sandbox"))


def test_a_class_pickled_by_value_imports_only_listed_modules() -> None:
    head = b"\x80\x02ccloudpickle.cloudpickle\nsubimport\nX"
    for module, refused in (("torch", False), ("os", True), ("idlelib.idle", True)):
        body = head + struct.pack("<I", len(module)) + module.encode() + b"\x85R."
        assert bool(objections(body, "sandbox")) == refused


@pytest.mark.parametrize("text", [b"", b"channels:\n- conda-forge\n", b"cat\ndog\nbird\n", bytes(100), b"N."])
def test_text_that_only_looks_like_a_pickle_is_none(text: bytes) -> None:
    assert objections(text) == []


def test_random_bytes_never_crash_the_walk() -> None:
    rng = np.random.default_rng(0)
    for size in rng.integers(1, 400, 3000):
        objections(rng.bytes(int(size)))
        objections(b"\x80\x04" + rng.bytes(int(size)))


def test_whatever_python_s_unpickler_would_import_the_walk_has_seen() -> None:
    """Mutations of a pickle that calls something: what the real unpickler looks up must be among the walk's names."""
    rng = np.random.default_rng(1)
    originals = [pickle.dumps([Calls(eval, ("1",)), "text", 1.5, {"k": (1,)}], n) for n in range(6)]
    originals += [body for name, body in EVIL.items() if "long" not in name]
    for _ in range(4000):
        body = bytearray(originals[rng.integers(len(originals))])
        for _ in range(rng.integers(1, 4)):
            body[rng.integers(len(body))] = rng.integers(256)
        looked_up: list[tuple[str, str]] = []

        class Watched(pickle._Unpickler):  # the one in Python, which can be watched
            def find_class(self, module: str, name: str) -> Any:
                looked_up.append((module, name))  # noqa: B023 - read before the next round
                return lambda *_, **__: None

        with contextlib.suppress(Exception):
            Watched(io.BytesIO(bytes(body))).load()
        seen = {name.key for name in pickles.walk(io.BytesIO(bytes(body))).globals}
        walked = pickles.walk(io.BytesIO(bytes(body)))
        missed = [n for n in looked_up if n not in seen and n[0].replace(".", "").isidentifier()]
        assert not missed or walked.problems, (bytes(body), missed)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_hides_among_numbers_is_an_objection(protocol: int) -> None:
    rng = np.random.default_rng(0)
    hidden = pickle.dumps(Calls(eval, ("1",)), protocol)
    for before in (0, 1001, (1 << 20) - 20, 3 << 20):  # also across two windows
        numbers = np.frombuffer(rng.bytes(before) + hidden + rng.bytes(500), np.uint8).copy()
        for body in (pickle.dumps({"w": numbers}), pickle.dumps([numbers.tobytes()])):
            assert any("hide a pickle" in what and ".eval" in what for what in objections(body, "sandbox"))


def test_numbers_that_only_resemble_a_pickle_are_none() -> None:
    rng = np.random.default_rng(0)
    heads = [b"\x80\x04\x82\x23R.", b"\x80\x02cqx\nyz\n.", b"cat\ndog\nR.", b"\x80\x05\x95", b"cos\nsin\ntan\n"]
    numbers = b"".join(head + rng.bytes(40_000) for head in heads * 20)
    assert objections(pickle.dumps(np.frombuffer(numbers, np.uint8).copy()), "sandbox") == []


def test_a_harmless_pickle_among_numbers_is_none() -> None:
    assert objections(pickle.dumps([pickle.dumps(np.arange(3.0))]), "sandbox") == []
