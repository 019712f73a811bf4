"""Python models from registration to production: equal to `mlflow.pyfunc`, and contained whatever their code does."""

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mlflow.models import infer_signature

from shiplift.pipelines.engines.local import stack
from shiplift.runtime.base.errors import NotAdmitted, PolicyRefused, ServerFailed, SpecInvalid, Temporary
from shiplift.runtime.guest.python.values import texts
from shiplift.runtime.model.python.resolving import resolve
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.steps.admit import admit
from tests.integration.conftest import FAST, Lab, request, until

SPEC = f"{FAST}\nadmission: {{python: sandbox}}\nserving: {{request_timeout_s: 4}}\nexport: {{memory_mb: 1024}}"
REQUIREMENTS = ["numpy==2.4.6"]
CODE = Path(__file__).with_name("python_model.py")
COLUMNS = Path(__file__).with_name("python_columns.py")
AGAIN = "is starting again"  # what a batch whose process ended is told if the next one takes longer than a request may
# What the first value of a row, less 1000, makes the model do; and what its client is told.
ATTACKS = {
    "raises": (1, "ValueError: no answer to that row"),
    "sleeps": (2, "was stopped after 4 s, its limit"),
    "forks": (3, "PermissionError"),
    "starts a program": (4, "PermissionError"),
    "connects": (5, "PermissionError"),
    "asks for too much memory": (14, "MemoryError"),
    "takes ever more memory": (6, f"MemoryError|used .* MiB, the limit is 1024 MiB|was stopped|{AGAIN}"),
    "ends its process": (7, f"the model's process ended: exit code 7|{AGAIN}"),
    "writes a file": (8, "PermissionError"),
    "kills others": (9, "PermissionError"),
    "looks at other models": (10, "PermissionError"),
    "forges an answer": (11, f"is not a message|was stopped|{AGAIN}"),
    "reads another process": (12, "PermissionError|FileNotFoundError"),
    "listens": (13, "PermissionError"),
}


def log_python(lab: Lab, name: str, model: Any, example: Any, *, spec: str = SPEC, **options: Any) -> int:
    """Logs and registers a Python model with its requirements; returns the version."""
    with lab.mlflow.start_run():
        lab.mlflow.log_text(spec, "shiplift/shiplift.yaml")
        info = lab.mlflow.pyfunc.log_model(
            name="model",
            python_model=model,
            input_example=example,
            registered_model_name=name,
            **{"pip_requirements": REQUIREMENTS} | options,
        )
    return int(info.registered_model_version)


def rows(count: int) -> Any:
    return np.random.default_rng(count).normal(size=(count, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def version(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> int:
    """A promoted version of the model `scaled`."""
    factor = tmp_path_factory.mktemp("artifacts") / "factor.txt"
    factor.write_text("2.5")
    example = rows(6)
    version = log_python(
        lab,
        "scaled",
        str(CODE),
        example,
        artifacts={"factor": str(factor)},
        signature=infer_signature(example, example),
    )
    report = lab.wait("scaled", version, seconds=900)
    assert report.outcome == "promoted", report.reason
    return version


def expected(asked: Any) -> Any:
    return asked * np.float32(2.5) + asked.sum(axis=1, keepdims=True)


def served(lab: Lab) -> ServedModel:
    return lab.engine.discover("scaled")


def answered(model: ServedModel, asked: Any) -> Any:
    """The answers, or nothing while the next process starts."""
    with contextlib.suppress(ServerFailed):
        return model.infer({"input": asked})
    return None


@pytest.mark.slow
def test_a_python_model_is_served_and_answers_what_pyfunc_answers(lab: Lab, version: int) -> None:
    asked = rows(5)
    pyfunc = lab.mlflow.pyfunc.load_model(f"models:/scaled/{version}").predict(asked)
    np.testing.assert_array_equal(served(lab).infer({"input": asked})["output"], pyfunc)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_request_on_which_the_code_misbehaves_fails_alone(lab: Lab, version: int, attack: str) -> None:
    code, told = ATTACKS[attack]
    model, server = served(lab), stack.require(lab.home).processes["triton"]  # other tests restart it
    bad, good = rows(1), rows(3)
    bad[0, 0] = 1000 + code
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(model.infer, {"input": bad if at == 2 else good}) for at in range(6)]
        with pytest.raises(ServerFailed, match=told):
            answers[2].result()
    for answer in (*answers[:2], *answers[3:]):
        if (error := answer.exception()) is not None:
            # It was in the batch that took too long or ended the process, or came before the next one started.
            assert re.search(f"was stopped after 4 s|the model's (worker|process)|{told}", str(error))
        else:
            np.testing.assert_array_equal(answer.result()["output"], expected(good))
    np.testing.assert_array_equal(until(lambda: answered(model, good))["output"], expected(good))
    assert stack.require(lab.home).runs("triton")
    assert stack.require(lab.home).processes["triton"] == server


# --- other ways to log one -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_earlier_versions_answer_those_who_name_them_if_they_run_in_the_same_environment(
    lab: Lab, tmp_path: Path
) -> None:
    asked, versions = rows(3), []
    for factor in (2.0, 3.0, 4.0):
        (tmp_path / "factor.txt").write_text(str(factor))
        logged = ["numpy==2.4.6", *(["colorama==0.4.6"] if factor == 4 else [])]
        version = log_python(
            lab,
            "factors",
            str(CODE),
            rows(6),
            artifacts={"factor": str(tmp_path / "factor.txt")},
            signature=infer_signature(rows(6), rows(6)),
            pip_requirements=logged,
            spec=SPEC.replace("serving: {", "serving: {version_policy: all, "),
        )
        versions.append(version)
        report = lab.wait("factors", version, seconds=900)
        assert report.outcome == "promoted", report.reason
        model = lab.engine.discover("factors")
        for at, number in enumerate(versions if factor < 4 else ()):
            answer = model.infer({"input": asked}, version=number)["output"]
            np.testing.assert_array_equal(answer, asked * np.float32(2 + at) + asked.sum(axis=1, keepdims=True))
    with pytest.raises(ServerFailed, match=r"unknown|version"):
        model.infer({"input": asked}, version=versions[0])
    assert any("runs in another environment" in event.message for event in lab.events("factors", versions[-1]))


@pytest.mark.slow
def test_a_model_of_named_columns_takes_and_answers_columns(lab: Lab) -> None:
    frame = pd.DataFrame(
        {
            "name": ["Ada", None, "Eve"],
            "amount (€ / day)": [1.5, 2.0, 7.25],
            "count": [1, 2, 3],
            "when": pd.to_datetime(["2024-01-31 12:00", None, "2024-02-28 00:00"]),
            "tags": [["a"], ["b", "c"], ["d"]],
        }
    )
    version = log_python(lab, "greeting", str(COLUMNS), frame)
    report = lab.wait("greeting", version, seconds=900)
    assert report.outcome == "promoted", report.reason
    model, served = lab.mlflow.pyfunc.load_model(f"models:/greeting/{version}"), lab.engine.discover("greeting")
    asked = {name: frame[name].to_numpy().reshape(-1, 1) for name in ("amount (€ / day)", "count")}
    asked |= {name: texts(frame[name]).reshape(-1, 1) for name in ("name", "when", "tags")}
    for left_out in ([], ["when"]):
        pyfunc = model.predict(frame.drop(columns=left_out))
        answer = served.infer({name: array for name, array in asked.items() if name not in left_out})
        np.testing.assert_array_equal(answer["total"].reshape(-1), pyfunc["total"])
        for name in ("text", "due", "tags"):
            assert [text.decode() for text in answer[name].reshape(-1)] == texts(pyfunc[name]).tolist()


@pytest.mark.slow
def test_a_pickled_model_whose_answers_depend_on_the_batch_is_scored_and_served_one_sample_at_a_time(lab: Lab) -> None:
    class Centred(lab.mlflow.pyfunc.PythonModel):  # type: ignore[name-defined,misc]
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            return np.abs(model_input - model_input.mean(axis=0, keepdims=True) + 1)

    inputs, name = rows(200), "centred"
    with lab.mlflow.start_run():
        lab.mlflow.log_text(f"{SPEC}\ndata: {{metric: mae}}", "shiplift/shiplift.yaml")
        file = lab.home / "validation.npz"
        np.savez(file, input=inputs, label=np.ones_like(inputs))
        lab.mlflow.log_artifact(str(file), "shiplift")
        info = lab.mlflow.pyfunc.log_model(
            name="model",
            python_model=Centred(),
            input_example=inputs[:6],
            registered_model_name=name,
            pip_requirements=REQUIREMENTS,
        )
    report = lab.wait(name, int(info.registered_model_version), seconds=900)
    assert report.outcome == "promoted", report.reason
    served = lab.engine.discover(name)
    np.testing.assert_array_equal(served.infer({"input": inputs[:1]})["output"], np.ones((1, 4), np.float32))
    with pytest.raises(ServerFailed, match="batch"):
        served.infer({"input": inputs[:2]})


# --- what is refused, before anything of it runs ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "options", "error", "told"),
    [
        (FAST, {}, NotAdmitted, "is a Python model, which is its author's code, and the spec says `python: refuse`"),
        (SPEC, {"pip_requirements": ["https://example.org/a.whl"]}, NotAdmitted, "names a URL or a path"),
        pytest.param(
            SPEC,
            {"pip_requirements": ["git+https://example.org/a"]},
            NotAdmitted,
            "names a URL or a path",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            SPEC,
            {"pip_requirements": ["-e ."]},
            NotAdmitted,
            "only names with versions are allowed",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            f"{SPEC.replace('export: {', 'export: {postprocess: softmax, ')}",
            {},
            SpecInvalid,
            "export.postprocess",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_cannot_be_taken_is_refused_at_admission(
    lab: Lab, spec: str, options: dict[str, Any], error: type[Exception], told: str
) -> None:
    with lab.unannounced():
        version = log_python(
            lab, "refused", str(COLUMNS), None, spec=spec, signature=infer_signature(rows(2), rows(2)), **options
        )
    with pytest.raises(error, match=told):
        admit(lab.site, request("refused", version))


@pytest.mark.parametrize(
    ("requirements", "told"),
    [
        pytest.param(["numpy==1.26.4", "numpy==2.1.0"], "the model's requirements conflict", marks=pytest.mark.slow),
        (["docopt==0.6.2"], "there is no wheel of docopt==0.6.2 .* needs compiling"),
        pytest.param(
            ["shiplift-has-no-such-package==1"],
            "there is no wheel of shiplift-has-no-such-package==1",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_requirements_that_no_wheels_meet_are_refused(lab: Lab, requirements: list[str], told: str) -> None:
    with pytest.raises(NotAdmitted, match=told):
        resolve(lab.site, requirements)


@pytest.mark.slow
def test_an_index_that_cannot_be_reached_is_told_as_temporary(lab: Lab) -> None:
    policy = lab.site.policy.model_copy(update={"package_index": "http://127.0.0.1:9/simple"})
    with pytest.raises(Temporary, match="the package index can't be reached"):
        resolve(lab.site.model_copy(update={"policy": policy}), ["numpy==2.4.6"])


@pytest.mark.slow
def test_a_package_that_the_site_does_not_allow_is_refused(lab: Lab) -> None:
    policy = lab.site.policy.model_copy(update={"packages": ("pandas",)})
    with pytest.raises(PolicyRefused, match="does not allow: numpy"):
        resolve(lab.site.model_copy(update={"policy": policy}), ["numpy==2.4.6"])
