"""Authors who know only their own script and what a refusal says: each gets further, until the model is admitted.

`Author` is such a script: the statements before the training, the arguments of `log_model`, the spec and the data. What
a refusal says to write is found in its text and applied as it stands, so a message that lacks the line, or whose line
does not help, fails here.
"""

import ast
import io
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml

from shiplift.runtime.admission import scan
from shiplift.runtime.admission.conversion import convert
from shiplift.runtime.admission.entry import inspect
from shiplift.runtime.admission.logged_files import resolve_spec
from shiplift.runtime.admission.policy import check_site, check_size
from shiplift.runtime.admission.scan import objections, refusal
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.model.datasets import load_columns, load_samples
from shiplift.runtime.records.model import Scan
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import SitePolicy
from shiplift.runtime.records.tensor import Signature
from tests.unit.examples import perceptron, site

MODEL = "followed"
_ROUNDS = 3
_LIGHT = {"pip_requirements": "['scikit-learn==1.9.1']"}  # MLflow would load the model in a process to infer them
_INFERRED = {"signature": "infer_signature(x, model.predict(x))", "input_example": "x"}
_FRAME = "x = pd.DataFrame({'age': np.arange(40), 'size': np.arange(40) % 7, 'town': ['Bonn', 'Oslo'] * 20})"
_LINEAR = "model = LinearRegression().fit(x, y)"
_TRAINED = (
    "trained = rng.normal(size=(40, 4))",
    "y = trained.sum(axis=1)",
    "model = LinearRegression().fit(trained, y)",
)
_ON_TRAINED = {"signature": "infer_signature(trained, y)", "input_example": "trained"}
_OF_NUMBERS = "x = pd.DataFrame({'age': np.arange(40.0), 'size': np.arange(40.0) % 7})"
_ENCODED = (
    "model = make_pipeline("
    "make_column_transformer((OneHotEncoder(), ['town']), remainder='passthrough'), LinearRegression()).fit(x, y)"
)


@dataclass(kw_only=True)
class Author:
    """A script that logs a model, as sources; a fix of the data goes before its last statement, the training.

    `refused` is in the first refusal. `fill` says how the author reads each placeholder of a line: the group of a
    pattern in what the refusal says, which is an array's name in the data if the placeholder is VALUES. `by_spec`: of a
    message's ways out the author takes that of the spec.
    """

    refused: str
    script: tuple[str, ...] = ("x = rng.normal(size=(40, 4))", "y = x.sum(axis=1)", _LINEAR)
    flavor: str = "sklearn"
    options: dict[str, str] = field(default_factory=lambda: dict(_INFERRED))
    spec: dict[str, Any] = field(default_factory=dict)
    admits: str = "{pickle: sandbox, python: sandbox}"
    data: str = ""
    fill: Mapping[str, str] = field(default_factory=dict)
    by_spec: bool = False
    policy: SitePolicy = field(default_factory=SitePolicy)
    exported: bool = False


@pytest.fixture(autouse=True)
def our_lists_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second opinion takes seconds, and gives no other advice."""
    monkeypatch.setattr(scan, "_modelaudit", lambda *_: ())


class Script:
    """The author's script while it is being corrected."""

    def __init__(self, author: Author, folder: Path) -> None:
        self.author, self.folder, self.logged = author, folder, 0
        self.statements, self.options, self.data = [*author.script], dict(author.options), author.data
        self.flavor, self.spec = author.flavor, {"admission": yaml.safe_load(author.admits)} | dict(author.spec)

    def refused(self) -> tuple[int, ShipliftError] | None:
        """Logs the model and admits it: the stage that refuses it and how; None if nothing does."""
        self.logged += 1
        names, model = self._names(), self.folder / f"model-{self.logged}"
        for statement in self.statements:
            exec(statement, names)
        self._log(model, names)
        stage = 0
        try:
            spec = resolve_spec(
                Request(model=MODEL, version=1, spec=yaml.safe_dump(self.spec)), cast("Any", None), "", model, model
            )
            check_site(site(self.folder, policy=self.author.policy), spec)
            check_size(model, spec.admission.max_size_mb)
            stage, work = 1, self.folder / f"work-{self.logged}"
            (work / "examples").mkdir(parents=True)
            for file in model.glob("*input_example.json"):
                file.rename(work / "examples" / file.name)
            answer = inspect(
                folder=str(model),
                examples=str(work / "examples"),
                out=str(work),
                pickle=spec.admission.pickle,
                python=spec.admission.python,
                own_library=False,
                unpacked_mb=1024,
                states=None,
            )
            if found := objections(Scan.model_validate(answer["scan"])):
                raise refusal(found)
            stage, signature = 2, Signature.model_validate(answer["signature"])
            if self.data:
                body, name = self._saved(names), spec.data.validation
                inputs, _ = load_samples(body, name, signature.inputs, spec.data.label, spec.data.slices)
                load_columns(body, name, spec.data.slices, len(next(iter(inputs.values()))))
            stage = 3
            if self.author.exported:
                convert(
                    folder=str(model),
                    flavor=answer["flavor"],
                    signature=answer["signature"],
                    example=str(work / "example.npz"),
                    out=str(work / "out"),
                    settings=spec.export.model_dump(mode="json"),
                    tabular=answer["tabular"],
                    seed=1,
                )
        except ShipliftError as error:
            return stage, error
        return None

    def follow(self, error: ShipliftError) -> None:
        """Writes what the first way out of a refusal says that the author can take.

        Raises:
            AssertionError: none of them has a line that can be written here.
        """
        for way in re.split(r"[,;.] [oO]r ", error.do):
            lines = [self._filled(line, error) for line in re.findall(r"`([^`]+)`", way)]
            written = [self._write(line) for line in lines]
            if any(written):
                return
        raise AssertionError(f"no line to write: {error.do}")

    def _write(self, line: str) -> bool:
        """Writes a line where it belongs; False if it belongs nowhere in this script."""
        call, section = _call(line), _section(line)
        if section:
            for name, fields in section.items():
                self.spec[name] = self.spec.get(name, {}) | fields if isinstance(fields, dict) else fields
        elif self.author.by_spec:
            return False
        elif re.match(r"\w+(\.\w+)? = ", line):
            self.statements.insert(len(self.statements) - (not self.data), line)
        elif call and ast.unparse(call.func) == "numpy.savez":
            self.data = line
        elif call and ast.unparse(call.func) in ("log_model", f"mlflow.{self.flavor}.log_model"):
            given = {str(each.arg): ast.unparse(each.value) for each in call.keywords}
            self.options |= {name: source for name, source in given.items() if name not in ("name", "python_model")}
        else:
            return False
        return True

    def _filled(self, line: str, error: ShipliftError) -> str:
        for name, pattern in self.author.fill.items():
            if found := re.search(pattern, str(error)):
                value = self._array(found.group(1)) if name == "VALUES" else found.group(1)
                line = re.sub(rf"\b{name}\b", value, line)
        return re.sub(r"\bINPUT\b", "input", line)

    def _array(self, name: str) -> str:
        """What the author logged under a name."""
        call = cast("ast.Call", ast.parse(self.data, mode="eval").body)
        return next(ast.unparse(each.value) for each in call.keywords if each.arg == name)

    def _names(self) -> dict[str, Any]:
        import mlflow
        import pandas as pd
        from mlflow.models import ModelSignature, infer_signature
        from mlflow.types.schema import ColSpec, Schema, TensorSpec
        from sklearn.compose import make_column_transformer
        from sklearn.impute import SimpleImputer
        from sklearn.linear_model import LinearRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

        class Rows(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
            def predict(self, context: Any, model_input: Any) -> Any:
                return np.asarray(model_input).real.reshape(len(model_input), -1).sum(axis=1)

        used: tuple[Any, ...] = (
            ModelSignature,
            infer_signature,
            ColSpec,
            Schema,
            TensorSpec,
            make_column_transformer,
            SimpleImputer,
        )
        used += (LinearRegression, make_pipeline, FunctionTransformer, OneHotEncoder, Rows)
        return {each.__name__: each for each in used} | {
            "operator": operator,
            "np": np, "numpy": np, "pd": pd, "mlflow": mlflow, "rng": np.random.default_rng(0), "graph": _graph
        }  # fmt: skip

    def _log(self, model: Path, names: dict[str, Any]) -> None:
        import mlflow

        options = {name: eval(source, names) for name, source in (_LIGHT | self.options).items()}
        if self.flavor == "pyfunc":
            mlflow.pyfunc.save_model(model, python_model=names["model"], **options)
        elif self.flavor == "onnx":
            mlflow.onnx.save_model(names["model"], model, **options)
        else:
            mlflow.sklearn.save_model(names["model"], model, serialization_format="cloudpickle", **options)

    def _saved(self, names: dict[str, Any]) -> bytes:
        call, body = cast("ast.Call", ast.parse(self.data, mode="eval").body), io.BytesIO()
        np.savez(body, **{str(each.arg): eval(ast.unparse(each.value), names) for each in call.keywords})
        return body.getvalue()


def _call(line: str) -> ast.Call | None:
    """The line as a call; None if it is another expression."""
    try:
        call = ast.parse(line, mode="eval").body
    except SyntaxError:
        return None
    return call if isinstance(call, ast.Call) else None


def _section(line: str) -> dict[str, Any] | None:
    """The line as sections of a spec; None if it is no mapping."""
    try:
        section = yaml.safe_load(line)
    except yaml.YAMLError:
        return None
    return section if isinstance(section, dict) else None


def _graph() -> Any:
    import onnx

    return onnx.load(perceptron(Path.cwd() / "model.onnx"))


_ONNX: dict[str, Any] = {
    "flavor": "onnx",
    "script": ("x = rng.normal(size=(5, 4)).astype('float32')", "model = graph()"),
    "options": {"input_example": "x"},
    "exported": True,
}
AUTHORS = {
    "a signature of one batch size": Author(
        refused="has the fixed shape (8, 4)",
        options={
            "signature": "ModelSignature(*(Schema([TensorSpec(np.dtype('float64'), s)]) for s in ((8, 4), (8,))))",
            "input_example": "x",
        },
    ),
    "a signature of inputs alone": Author(
        refused="does not name both inputs and outputs",
        options={"signature": "infer_signature(x)", "input_example": "x"},
    ),
    "an example of fewer features": Author(
        refused="has shape (40, 3), the signature says (-1, 4)",
        options={"signature": "infer_signature(x, model.predict(x))", "input_example": "x[:, :3]"},
    ),
    "an example with infinity": Author(
        refused="holds infinity",
        script=(
            "x = rng.normal(size=(40, 4))",
            "y = x.sum(axis=1)",
            "trained = x.copy()",
            "x[3, 1] = np.inf",
            "model = LinearRegression().fit(trained, y)",
        ),
        options={"signature": "infer_signature(trained, y)", "input_example": "x"},
    ),
    "a missing integer": Author(
        refused="has no value in the column 'age'",
        script=(
            _OF_NUMBERS,
            "y = np.arange(40.0)",
            "x['age'] = pd.array([1, None] * 20, dtype='Int64')",
            "model = make_pipeline(SimpleImputer(), LinearRegression()).fit(x.astype('float64'), y)",
        ),
        options={
            "signature": "ModelSignature(Schema([ColSpec('long', 'age'), ColSpec('double', 'size')]), "
            "Schema([TensorSpec(np.dtype('float64'), (-1,))]))",
            "input_example": "x",
        },
    ),
    "texts without an example": Author(
        refused="has no input example, and its signature determines none: 'town' is text",
        script=(_FRAME, "y = np.arange(40.0)", _ENCODED),
        options={"signature": "infer_signature(x, model.predict(x))"},
    ),
    "a column without a name": Author(
        refused="an input has an empty name",
        script=(_OF_NUMBERS, "y = np.arange(40.0)", "x.columns = ['', 'size']", _LINEAR),
    ),
    "complex numbers": Author(
        refused="complex64, which Triton can't carry",
        flavor="pyfunc",
        script=("x = rng.normal(size=(5, 4)).astype('complex64')", "model = Rows()"),
        options={"signature": "infer_signature(x, model.predict(None, x))"},
    ),
    "a pickle": Author(refused="the scan found code", admits="{}", by_spec=True),
    "a pickle that names a function": Author(
        refused="the scan found code",
        admits="{pickle: sandbox}",
        by_spec=True,
        script=(
            "x = rng.normal(size=(40, 4))",
            "y = x.sum(axis=1)",
            "model = make_pipeline(FunctionTransformer(operator.pos), LinearRegression()).fit(x, y)",
        ),
    ),
    "a Python model": Author(
        refused="the spec says `python: refuse`",
        admits="{}",
        flavor="pyfunc",
        script=("x = rng.normal(size=(5, 4))", "model = Rows()"),
        options={"signature": "infer_signature(x, model.predict(None, x))", "input_example": "x"},
    ),
    "requirements with an option": Author(
        refused="has the option '--no-deps'",
        flavor="pyfunc",
        script=("x = rng.normal(size=(5, 4))", "model = Rows()"),
        options={
            "signature": "infer_signature(x, model.predict(None, x))",
            "input_example": "x",
            "pip_requirements": "['--no-deps', 'numpy==2.1.0']",
        },
        fill={"NAME": r"'([a-z]+)==", "VERSION": r"==(\d[\d.]*)"},
    ),
    "a model beyond the spec's size": Author(
        refused="the limit is 1 MiB",
        admits="{pickle: sandbox, max_size_mb: 1}",
        script=("x = rng.normal(size=(40, 4))", "y = np.repeat(x.sum(axis=1)[:, None], 40_000, axis=1)", _LINEAR),
    ),
    "memory beyond the site's policy": Author(
        refused="export.memory_mb is 9000, the limit is 2000",
        spec={"export": {"memory_mb": 9000}},
        policy=SitePolicy(memory_mb=2000),
    ),
    "the spec of another model": Author(refused="the spec is for model 'other'", spec={"model": "other"}),
    "labels of another length": Author(
        refused="has arrays of different lengths: [30, 40]",
        data="numpy.savez('validation.npz', input=x, label=y[:30])",
        fill={"N": r"\[(\d+),"},
    ),
    "data under another name": Author(
        refused="has the arrays other, values",
        data="numpy.savez('validation.npz', other=y, values=x, label=y)",
    ),
    "flattened data": Author(
        refused="has shape (160, 1), the model takes (-1, 4)",
        script=(*_TRAINED, "x = trained.reshape(-1, 1)"),
        options=_ON_TRAINED,
        data="numpy.savez('validation.npz', input=x, label=y)",
        fill={"SHAPE": r"the model takes (\([-\d, ]+\))"},
    ),
    "labels with NaN": Author(
        refused="'label' holds 1 NaN or infinite values",
        script=(
            "x = rng.normal(size=(40, 4))",
            _LINEAR.replace("y", "x.sum(axis=1)"),
            "y = x.sum(axis=1)",
            "y[3] = np.nan",
        ),
        data="numpy.savez('validation.npz', input=x, label=y)",
        fill={"VALUES": r"'(\w+)' holds"},
    ),
    "a slice that was not logged": Author(
        refused="has no 'region', which `data.slices` names",
        script=("x = rng.normal(size=(40, 4))", "y = x.sum(axis=1)", "region = np.arange(40) % 3", _LINEAR),
        spec={"data": {"slices": ["region"]}},
        data="numpy.savez('validation.npz', input=x, label=y)",
        fill={"SLICE": r"has no '(\w+)'", "values": r"has no '(\w+)'"},
    ),
    "data in a pickle": Author(
        refused="validation.pkl is not a .npz, .csv or .parquet file",
        spec={"data": {"validation": "shiplift/validation.pkl"}},
        data="numpy.savez('validation.pkl', input=x, label=y)",
    ),
    "arrays of objects": Author(
        refused="can't be read as an NPZ file",
        script=(*_TRAINED, "x = trained.astype(object)"),
        options=_ON_TRAINED,
        data="numpy.savez('validation.npz', input=x, label=y)",
    ),
    "texts for numbers": Author(
        refused="has dtype <U",
        script=(*_TRAINED, "x = trained.astype(str)"),
        options=_ON_TRAINED,
        data="numpy.savez('validation.npz', input=x, label=y)",
        fill={"DTYPE": r"FP64 \((\w+)\)"},
    ),
    "outputs that the model has not": Author(
        refused="export.outputs names logits; the model has output",
        spec={"export": {"outputs": ["logits"]}},
        fill={"NAME": r"the model has (\w+)"},
        **_ONNX,
    ),
    "more classes than there are": Author(
        refused="export.top_k is 9, the model has 3 classes",
        spec={"export": {"postprocess": ["top_k"], "top_k": 9}},
        fill={"N": r"has (\d+) classes"},
        **_ONNX,
    ),
    "TorchScript of a graph": Author(
        refused="only PyTorch models have a TorchScript form", spec={"export": {"torchscript": True}}, **_ONNX
    ),
}


@pytest.mark.parametrize("author", AUTHORS.values(), ids=list(AUTHORS))
def test_who_follows_only_what_refusals_say_gets_further_each_time(
    author: Author, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script, told, reached = Script(author, tmp_path), list[str](), 0
    while refused := script.refused():
        stage, error = refused
        assert error.what not in told, f"in a circle: {error}"
        assert stage >= reached, f"further back: {error}"
        assert told or author.refused in error.what
        assert len(told) < _ROUNDS, told
        told.append(error.what)
        reached = stage
        script.follow(error)
    assert told, "nothing was refused"


_ROOM = Path(scan.__file__).parents[1]
_OF_AUTHORS = ("model/contracts.py", "model/datasets.py", "model/tables.py", "model/python", "admission/examples.py")


@pytest.mark.parametrize("place", _OF_AUTHORS)
def test_whatever_is_refused_of_what_the_author_logged_names_a_line_to_write(place: str) -> None:
    """Of a signature, an example, requirements and data, each advice has code."""
    files = [_ROOM / place] if place.endswith(".py") else sorted((_ROOM / place).glob("*.py"))
    advice = (each for file in files for each in _advice_in(ast.parse(file.read_text())))
    assert [each for each in advice if "`" not in each and not each.startswith("Log it with Python")] == []


def _advice_in(module: ast.Module) -> Iterator[str]:
    constants = {
        target.id: statement.value
        for statement in module.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("NotAdmitted", "DataInvalid"):
            (given,) = (keyword.value for keyword in node.keywords if keyword.arg == "do")
            written = constants.get(given.id, given) if isinstance(given, ast.Name) else given
            if isinstance(written, ast.Constant | ast.JoinedStr):
                yield (
                    str(ast.literal_eval(written)) if isinstance(written, ast.Constant) else ast.unparse(written)[2:-1]
                )
