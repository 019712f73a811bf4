import collections
import io
import json
import os
import pickle
import subprocess
import zipfile
import zlib
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from shiplift.runtime.admission.formats import onnx_files
from shiplift.runtime.admission.judging import NOT_ALLOWED
from shiplift.runtime.admission.scan import objections, refusal, scan_files
from shiplift.runtime.confinement import sandbox
from shiplift.runtime.records.model import Finding
from tests.unit.examples import perceptron


def finding(severity: Any = "critical", names: str = "", file: str = "model.pkl") -> Finding:
    return Finding(severity=severity, file=file, what="it calls something", names=names)


def test_a_refusal_names_the_first_objections_and_how_to_log_a_model_without_code() -> None:
    error = refusal([finding(file=f"{n}.pkl") for n in range(5)])
    assert error.what.startswith(
        "the scan found code or data that must not be loaded: 0.pkl: it calls something; 1.pkl:"
    )
    assert error.what.endswith("(and 2 more)")
    assert "pt2" in error.do
    assert "pickle: sandbox" in error.do
    unknown = refusal([Finding(severity="critical", file="model.pkl", what=f"it uses x.y, {NOT_ALLOWED}")])
    assert "best_estimator_" in unknown.do
    assert "pickle: sandbox" not in unknown.do


# --- the scanner itself, on real files ---


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in the sandbox, the scanner sends no telemetry about what it scans."""
    for name, value in sandbox._environment(tmp_path).items():
        if name not in ("PATH", "LANG"):
            monkeypatch.setenv(name, value)


class Evil:
    def __reduce__(self) -> Any:
        return eval, ("1 + 1",)


META = "flavors: {onnx: {data: model.onnx, code: null}}\n"


def scanned(folder: Path, mode: Any = "refuse") -> dict[str, list[str]]:
    """Critical findings by file."""
    if not (folder / "MLmodel").exists():
        (folder / "MLmodel").write_text(META)
    examples = folder.parent / f"{folder.name}-examples"
    examples.mkdir(exist_ok=True)
    scan = scan_files(folder, examples, pickle=mode, unpacked_mb=64)
    by: dict[str, list[str]] = {}
    for objection in objections(scan):
        by.setdefault(objection.file, []).append(objection.what)
    return by


def test_a_harmless_onnx_model_is_let_in(tmp_path: Path) -> None:
    perceptron(tmp_path / "model.onnx")
    (tmp_path / "MLmodel").write_text("flavors: {}\n")
    assert scanned(tmp_path) == {}


def test_a_pickle_that_calls_something_is_found(tmp_path: Path) -> None:
    perceptron(tmp_path / "model.onnx")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "model.pkl").write_bytes(pickle.dumps(Evil()))
    assert any("data/model.pkl" in file for file in scanned(tmp_path))


def test_numbers_of_a_pickle_are_searched_for_pickles_and_may_resemble_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    resembling = b"".join(head + rng.bytes(3000) for head in [b"\x80\x04\x82\x23)R.", b"\x80\x04K\x01\x85."] * 5)
    for name, middle in (("trees", resembling), ("evil", pickle.dumps(Evil()))):
        (tmp_path / name).mkdir()
        numbers = np.frombuffer(rng.bytes(1001) + middle + rng.bytes(1000), np.uint8).copy()
        (tmp_path / name / "model.pkl").write_bytes(pickle.dumps(numbers))
    assert scanned(tmp_path / "trees", "sandbox") == {}
    assert any(
        "hide a pickle that uses builtins.eval" in what for what in scanned(tmp_path / "evil", "sandbox")["model.pkl"]
    )


def test_words_and_bytes_in_a_pickle_that_was_walked_to_its_end_refuse_nothing(tmp_path: Path) -> None:
    for number, held in enumerate(
        ["check_in", "http://beacon.example/check_in", b"gASVIAAAAAAAAACMBXBvc2l4lIwGc3lzdGVt"]
    ):
        (folder := tmp_path / str(number)).mkdir()
        (folder / "model.pkl").write_bytes(pickle.dumps(collections.OrderedDict(names=[held] * 3, w=np.ones(3))))
        assert scanned(folder, "sandbox") == {}


def test_the_sources_of_accepted_names_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """modelaudit would read torch's sources for 3 s, to tell what our own lists have decided."""
    api = pytest.importorskip("modelaudit_picklescan.api")
    follow = Mock(return_value=())
    monkeypatch.setattr(api, "find_dangerous_call_graphs", follow)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(collections.OrderedDict(w=np.ones(3, np.float32))))
    assert scanned(tmp_path, "sandbox") == {}
    follow.assert_not_called()


def with_external_data(folder: Path, location: str) -> None:
    weights = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    onnx.external_data_helper.set_external_data(weights, location)
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [weights],
    )
    (folder / "model.onnx").write_bytes(helper.make_model(graph).SerializeToString())


@pytest.mark.parametrize(
    ("location", "problem"),
    [
        ("../../etc/passwd", "outside the model"),
        ("/etc/passwd", "outside the model"),
        ("..\\secret", "outside the model"),
        ("gone.bin", "are missing"),
        ("link.bin", "are missing"),
    ],
)
def test_an_onnx_model_that_reaches_outside_its_folder_is_refused(tmp_path: Path, location: str, problem: str) -> None:
    with_external_data(tmp_path, location)
    if location == "link.bin":
        (tmp_path / "link.bin").symlink_to("/etc/passwd")
        assert scanned(tmp_path) == {"(all files)": ["link.bin is a symbolic link"]}
    else:
        assert any(problem in what for what in scanned(tmp_path)["model.onnx"])


@pytest.mark.parametrize("size", [0, 10, 200])
def test_a_truncated_onnx_model_is_refused(tmp_path: Path, size: int) -> None:
    whole = perceptron(tmp_path / "model.onnx").read_bytes()
    (tmp_path / "model.onnx").write_bytes(whole[:size])
    assert any("truncated" in what for what in scanned(tmp_path)["model.onnx"])


# --- no code, whatever it is called ---


def unheard_of(folder: Path, name: str, body: bytes = b"x = 1\n") -> dict[str, list[str]]:
    perceptron(folder / "model.onnx")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(body)
    return scanned(folder, "sandbox")


@pytest.mark.parametrize(
    "name",
    [
        "code/net.py",
        "evil.py",
        "a/b/evil.PYC",
        "lib.so",
        "lib.so.1",
        "x.dll",
        "x.dylib",
        "note.ipynb",
        "run.sh",
        "code/data.json",
        "x.whl",
        "a.tar.gz",
        "b.zip",
        "evil.pyd",
    ],
)
def test_a_file_that_is_code_by_its_name_is_refused(tmp_path: Path, name: str) -> None:
    assert name in unheard_of(tmp_path, name)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("weights.bin", b"\x7fELF" + bytes(100)),
        ("labels.txt", b"#!/bin/sh\nid\n"),
        ("weights.bin", b"\x1f\x8b\x08" + bytes(50)),
        ("weights.bin", b"MZ" + bytes(58) + b"\x40\x00\x00\x00PE\x00\x00"),
        ("model.pt", b"\x80\x02cos\nsystem\nU\x02id\x85R."),
        ("model.pt", pickle.dumps({"a": 1}, 2)),
        ("model.pth", b"cos\nsystem\n(S'id'\ntR."),
        ("weights.bin", pickle.dumps({"a": 1}, 4)),
        ("model.pkl", b"(S'id'\nios\nsystem\n."),
        ("model.pkl", zlib.compress(pickle.dumps({"a": 1}))),
        ("requirements.txt", b"cos\nsystem\n(S'id'\ntR."),
        ("data.npy", b"no array"),
        ("model.h5", b"\x89HDF\r\n\x1a\n" + bytes(50)),
        ("model.json", b"\x00\x01"),
    ],
)
def test_a_type_that_does_not_match_its_name_is_refused(tmp_path: Path, name: str, body: bytes) -> None:
    assert name in unheard_of(tmp_path, name, body)


def zipped(**members: bytes | str) -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), content)
    return body.getvalue()


EVIL = b"\x80\x02cos\nsystem\nU\x02id\x85R."


@pytest.mark.parametrize(
    ("name", "body", "what"),
    [
        ("model.onnx", zipped(a=b"1"), "zip archive"),
        ("weights.bin", zipped(a=b"1"), "zip archive"),
        ("weights.bin", b"12345678" + zipped(a=b"1"), "hides a zip archive"),
        ("model.pt", zipped(model__data_dot_pkl=EVIL), "os.system"),
        ("model.pth", zipped(model__data_dot_pkl=b"(S'id'\nios\nsystem\n."), "os.system"),
        ("model.pt", zipped(model__data_dot_pkl=b"N.", model__evil_dot_so=b"x"), "its name is that of a code file"),
        ("model.pt", zipped(model__data_dot_pkl=b"N.", **{"../x": b"1"}), "outside itself"),
        ("model.npz", zipped(a_dot_npy=EVIL), "not those of a .npy file"),
        ("model.npz", zipped(a_dot_pkl=EVIL), "os.system"),
        ("model.pt2", zipped(model__models__model_dot_json="{}", model__x_dot_pt=zipped(m__data_dot_pkl=EVIL)), "os.s"),
        (
            "model.skops",
            zipped(schema_dot_json='{"__class__": "system", "__module__": "os", "__loader__": "TypeNode"}'),
            "os.system",
        ),
        (
            "model.skops",
            zipped(schema_dot_json='{"__class__": "dict", "__module__": "builtins", "__loader__": "MethodNode"}'),
            "MethodNode",
        ),
        ("model.skops", zipped(schema_dot_json="{}", evil_dot_pkl=EVIL), "it holds evil.pkl"),
        ("model.keras", zipped(config_dot_json='{"module": "os", "class_name": "system"}'), "os.system"),
        ("model.keras", zipped(config_dot_json='{"module": "keras.layers", "class_name": "Lambda"}'), "Lambda"),
    ],
)
def test_an_archive_is_judged_member_by_member(tmp_path: Path, name: str, body: bytes, what: str) -> None:
    refused = unheard_of(tmp_path, name, body)
    assert any(what in text for texts in refused.values() for text in texts), refused


def test_an_archive_that_unpacks_to_more_than_its_budget_is_refused_unread(tmp_path: Path) -> None:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/data.pkl", bytes(80 << 20))
    refused = unheard_of(tmp_path, "model.pt", body.getvalue())
    assert "the archive unpacks to 80 MiB, the limit is 64 MiB" in refused["model.pt"]


PROGRAM = {"graph_module": {"graph": {"nodes": [{"target": "torch.ops.aten.relu.default", "inputs": []}]}}}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({}, ""),
        ({"range": {"expr_str": "Symbol('s31', positive=True, integer=True)"}}, ""),
        ({"range": {"expr_str": "Max(1, 2*s0 + 3) // 2"}}, ""),
        ({"guards_code": ["L['x'].size()[0] >= 2"]}, ""),
        *(  # what torch writes of a size that only the data decide, as after `torch.nonzero`
            ({"as_expr": {"expr_str": f"{relation}(Symbol('u0', integer=True), Integer(3))"}}, "")
            for relation in (
                "GreaterThan",
                "LessThan",
                "StrictGreaterThan",
                "StrictLessThan",
                "Equality",
                "Unequality",
            )
        ),
        ({"range": {"expr_str": "__import__('os').system('id')"}}, "an expression of a shape is code"),
        ({"range": {"expr_str": "(lambda: 1)()"}}, "an expression of a shape is code"),
        ({"range": {"expr_str": "x.__class__.__bases__"}}, "an expression of a shape is code"),
        ({"range": {"expr_str": "9**9**9"}}, "an expression of a shape is code"),
        ({"guards_code": ["exec('import os')"]}, "an expression of a shape is code"),
        ({"guards_code": ["True\nimport os"]}, "an expression of a shape is code"),
        ({"nodes": [{"target": "torch.ops.load_library", "inputs": []}]}, "torch.ops.load_library"),
        ({"nodes": [{"target": "torch.hub.load", "inputs": []}]}, "torch.hub.load"),
        ({"nodes": [{"target": "torch.ops.aten.from_file.default", "inputs": []}]}, "aten.from_file"),
        ({"arg": {"as_operator": "torch.load"}}, "torch.load"),
        ({"arg": {"as_custom_obj": {"name": "x", "class_fqn": "y"}}}, "custom class"),
    ],
)
def test_a_pt2_program_only_computes(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    """torch evaluates shapes and guards as Python, and looks operators up by name."""
    body = zipped(model__models__model_dot_json=json.dumps({**PROGRAM, **change}))
    refused = unheard_of(tmp_path, "model.pt2", body)
    assert any(what in text for text in refused.get("model.pt2", [])) == bool(what), refused


SCRIPT = "class Net(Module):\n  def forward(self: __torch__.Net,\n    x: Tensor) -> Tensor:\n    {}\n    return x\n"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("_0 = torch.relu(x)", ""),
        ("_0 = torch.add(x, ops.prim.NumToTensor(1), alpha=1)", ""),
        ("_0 = torch.mul((self.a).forward(x, ), -inf)", ""),
        ("_0 = torch.from_file('/etc/passwd', False, 10)", "torch.from_file"),
        ("torch.save(x, 'out')", "torch.save"),
        ("x.save('out')", "x.save"),
        ("_0 = ops.aten.from_file('/etc/passwd')", "ops.aten.from_file"),
        ("_0 = ops.mine.evil(x)", "ops.mine.evil"),
        ("_0 = ops.prim.PythonOp(x)", "ops.prim.PythonOp"),
        ("_0 = torch.ops.load_library('x')", "torch.ops.load_library"),
        ("_0 = torch", "uses torch,"),
        ("_0 = ops.aten", "uses ops.aten,"),
        ("_0 = __import__('os')", "__import__"),
        ("import os", "an import"),
        ("_0 = getattr(x, 'save')", "getattr"),
        ("_0 = (lambda: 1)()", "a method of a value"),
        ("  oops", "can't be read"),
    ],
)
def test_a_torchscript_program_uses_only_listed_operators(tmp_path: Path, line: str, what: str) -> None:
    members = {"m/code/__torch__.py": SCRIPT.format(line), "m/data.pkl": "N.", "m/constants.pkl": "N."}
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    refused = unheard_of(tmp_path, "model.pt", body.getvalue())
    assert any(what in text for text in refused.get("model.pt", [])) == bool(what), refused


def with_operator(path: Path, operator: str, domain: str, *, inside: str = "") -> Path:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", 4]) for name in "xy"]
    node = helper.make_node(operator, ["x"], ["y"], domain=domain)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(domain, 1)] if domain else [helper.make_opsetid("", 20)]
    functions = []
    if inside == "If":
        branch = helper.make_graph([helper.make_node(operator, ["x"], ["z"], domain=domain)], "b", [], value[1:])
        flag = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True)))
        node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
        graph = helper.make_graph([flag, node], "g", value[:1], value[1:])
    elif inside == "function":
        inner = helper.make_node(operator, ["x"], ["y"], domain=domain)
        functions = [helper.make_function("local", "F", ["x"], ["y"], [inner], opsets)]
        graph = helper.make_graph([helper.make_node("F", ["x"], ["y"], domain="local")], "g", value[:1], value[1:])
    else:
        graph = helper.make_graph([node], "g", value[:1], value[1:])
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, functions=functions).SerializeToString())
    return path


@pytest.mark.parametrize("inside", ["", "If", "function"])
@pytest.mark.parametrize(
    ("operator", "domain", "refused"),
    [
        ("Tanh", "", False),
        ("FusedMatMul", "com.microsoft", False),
        ("Scaler", "ai.onnx.ml", False),
        ("EPContext", "com.microsoft", True),
        ("Snpe", "com.microsoft", True),
        ("Evil", "my.domain", True),
        ("Unheard", "", True),
        ("ImageDecoder", "", True),
        ("Tanh", "ai.onnx.ml", True),
        ("SentencepieceTokenizer", "ai.onnx.contrib", True),
    ],
)
def test_an_onnx_model_uses_only_listed_operators(
    tmp_path: Path, inside: str, operator: str, domain: str, refused: bool
) -> None:
    problems = list(onnx_files.problems(with_operator(tmp_path / "model.onnx", operator, domain, inside=inside)))
    assert any(operator in what for what in problems) == refused, problems


@pytest.mark.parametrize(
    ("flavor", "what"),
    [
        ("sklearn: {code: code}", "MLflow imports modules"),
        ("python_function: {loader_module: evil}", "loader_module: evil"),
        ("pytorch: {pickle_module_name: evil}", "pickle_module_name: evil"),
        ("lightgbm: {model_class: evil.Booster}", "evil.Booster is not on the list"),
        ("sklearn: {skops_trusted_types: [os.system]}", "os.system is not on the list"),
        ("onnx: {data: ../../etc/passwd}", "not a path in the model"),
        ("onnx: {data: /etc/passwd}", "not a path in the model"),
    ],
)
def test_an_mlmodel_file_that_makes_mlflow_import_or_open_is_refused(tmp_path: Path, flavor: str, what: str) -> None:
    perceptron(tmp_path / "model.onnx")
    (tmp_path / "MLmodel").write_text(f"flavors: {{{flavor}}}\n")
    assert any(what in text for text in scanned(tmp_path)["MLmodel"])


def test_folders_that_are_nested_too_deep_are_an_objection(tmp_path: Path) -> None:
    perceptron(tmp_path / "model.onnx")
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    try:
        assert "folders deep, the limit is 32" in scanned(tmp_path)["(all files)"][0]
    finally:  # pytest's own cleaning up would be a RecursionError
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


def test_a_fifo_never_blocks_the_scan(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.onnx")
    assert scanned(tmp_path) == {"(all files)": ["model.onnx is a FIFO"]}


LOOKALIKES = (b"\x80\x04\x93.", b"#!/b", b"\x1f\x8b\x08\x00", b"\x80\x02}q", b"PK\x03\x04")


@pytest.mark.slow
def test_numbers_that_look_like_something_else_are_numbers(tmp_path: Path) -> None:
    """A hundred weights begin with any two bytes now and then; torch reads them as nothing but numbers."""
    import torch

    class Scaled(torch.nn.Module):  # type: ignore[misc] # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            for at, beginning in enumerate(LOOKALIKES):
                numbers = torch.frombuffer(bytearray(beginning * 4), dtype=torch.float32).clone()
                self.register_parameter(f"weight{at}", torch.nn.Parameter(numbers))

        def forward(self, x: Any) -> Any:
            for weight in self.parameters():
                x = x * weight
            return x

    file = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Scaled(), (torch.ones(4),)), file)
    with zipfile.ZipFile(file) as archive:
        stored = [archive.read(name)[:4] for name in archive.namelist() if "data/weights/weight_" in name]
    assert sorted(stored) == sorted(LOOKALIKES)
    assert unheard_of(tmp_path, file.name, file.read_bytes()) == {}
    torch.save(Scaled().state_dict(), tmp_path / "weights.pt")
    assert unheard_of(tmp_path, "weights.pt", (tmp_path / "weights.pt").read_bytes()) == {}


def test_a_tensor_that_is_pickled_is_judged_as_a_pickle_whatever_else_is_said_of_it(tmp_path: Path) -> None:
    payload = {"path_name": "weight_0", "is_param": True, "tensor_meta": {}}
    configs = (
        {"a": {**payload, "use_pickle": True}},
        {"a": {**payload, "use_pickle": False}, "b": {**payload, "use_pickle": True}},
    )
    for config in configs:
        body = zipped(
            model__models__model_dot_json="{}",
            model__data__weights__weight_0=EVIL,
            model__data__weights__model_weights_config_dot_json=json.dumps({"config": config}),
        )
        refused = unheard_of(tmp_path, "model.pt2", body)
        assert any("os.system" in text or "posix.system" in text for texts in refused.values() for text in texts), (
            refused
        )
