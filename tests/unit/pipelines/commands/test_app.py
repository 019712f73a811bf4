import io
import json
import os
import re
import subprocess
import sys
import tomllib
import webbrowser
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import yaml

from docs.generator.commands import every_command
from shiplift.pipelines.commands import completion
from shiplift.pipelines.commands.app import COMMANDS as NAMES
from shiplift.pipelines.commands.app import PANELS, main
from shiplift.pipelines.engines.local import stack
from shiplift.runtime.base.errors import StackDown, UsageError
from shiplift.runtime.spec import document
from tests.project.docs.pages import ROOT
from tests.unit.examples import Golden
from tests.unit.pipelines.engines.local.test_stack import GONE, ME, all_of, started
from tests.unit.pipelines_of_models import STATIC

COMMAND = Path(sys.executable).with_name("shiplift")
COMMANDS = every_command()


class Done(NamedTuple):
    """The exit code and output of a command."""

    returncode: int
    stdout: str
    stderr: str


Shiplift = Callable[..., Done]


@pytest.fixture
def shiplift(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shiplift:
    """The command's entry point, in this process: `shiplift("status", home=folder)`."""
    for name in [name for name in os.environ if name.startswith("SHIPLIFT_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str | Path, home: Path | None = None) -> Done:
        options = ["--home", str(home)] if home else []
        monkeypatch.setattr(sys, "argv", ["shiplift", *options, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, *capfd.readouterr())

    return run


def test_the_commands_are_these() -> None:
    assert set(COMMANDS) == {
        "up",
        "down",
        "status",
        "open",
        "release",
        "rerun",
        "push",
        "cancel",
        "abort",
        "adopt",
        "approve",
        "reject",
        "rollback",
        "retire",
        "report",
        "card",
        "check",
        "gate",
        "ask",
        "logs",
        "captured",
        "drift",
        "events",
        "infer",
        "lab",
        "predict",
        "init",
        "openai",
        "invocations",
        "schema",
        "targets",
        "doctor",
        "calibrate",
        "demo",
        "install",
        "render",
        "uninstall",
        "values",
        "pipeline check",
        "pipeline release",
        "pipeline build",
        "pipeline plan",
    }


def test_every_command_has_help_with_an_example() -> None:
    for name, command in sorted(COMMANDS.items()):
        with redirect_stdout(io.StringIO()) as shown:
            command.main(["--help"], prog_name=f"shiplift {name}", standalone_mode=False)
        assert "Example" in shown.getvalue(), name
        assert f"shiplift {name}" in command.help, name


def test_every_option_is_explained() -> None:
    bare = [
        (name, option.name)
        for name, command in COMMANDS.items()
        for option in command.params
        if option.param_type_name == "option" and not option.help and "port" not in option.name
    ]
    assert bare == []


def test_the_command_s_help_lists_every_command() -> None:
    done = subprocess.run([COMMAND, "--help"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert all(name.split()[0] in done.stdout for name in NAMES)
    assert all(panel in done.stdout for panel in PANELS)
    assert "<" not in done.stdout


def test_a_flag_takes_nothing_and_an_option_says_what(shiplift: Shiplift) -> None:
    shown = shiplift("release", "--help").stdout
    assert "<bool>" not in shown
    assert re.search(r"--spec +FILE", shown)
    assert re.search(r"--engine +local\|argo", shown)


def test_names_of_models_are_completed_and_an_error_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SimpleNamespace(versions=(SimpleNamespace(version=12),))
    engine = SimpleNamespace(champions=lambda: {"digits": 1, "films": 0}, status=lambda model: known)
    monkeypatch.setattr("shiplift.pipelines.commands.edge.engine", lambda *_: engine)
    assert completion.models("d") == ["digits"]
    assert completion.versions("fi") == ["films/"]
    assert completion.versions("digits/1") == ["digits/12"]

    def down(*_: object) -> None:
        raise StackDown("no stack", do="Run `shiplift up`.")

    monkeypatch.setattr("shiplift.pipelines.commands.edge.engine", down)
    assert completion.versions("digits/") == completion.models("") == []


def test_the_version_is_printed_and_is_the_newest_of_the_changelog(shiplift: Shiplift) -> None:
    done = shiplift("--version")
    assert done.returncode == 0
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert done.stdout == f"{version}\n", "the installed package is another version: `make setup` installs this one"
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == version


@pytest.mark.parametrize(
    "words",
    [["frobnicate"], ["release"], ["report", "--odd", "digits/1"], ["logs", "--lines", "0"], ["cancel", "digits"]],
)
def test_a_wrong_command_line_exits_with_64_and_prints_no_result(
    shiplift: Shiplift, words: list[str], tmp_path: Path
) -> None:
    done = shiplift(*words, home=tmp_path)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr


@pytest.mark.parametrize(
    "words", [["release", "digits/1"], ["rerun", "digits/1"], ["rollback", "digits"], ["status", "digits"]]
)
def test_without_a_stack_the_error_says_how_to_start_one(shiplift: Shiplift, words: list[str], tmp_path: Path) -> None:
    done = shiplift(*words, home=tmp_path / "home")
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == f"stack is down: no stack was started in {tmp_path / 'home'}. Run `shiplift up`.\n"
    assert not (tmp_path / "home").exists()


def test_a_pipeline_whose_members_are_profiled_is_planned_without_a_stack(
    shiplift: Shiplift, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "shiplift.runtime.planning.search.REQUESTS", 500
    )  # how well it holds is tested with the planner
    monkeypatch.setattr("shiplift.runtime.planning.plan.CONFIRMING", 1000)
    (tmp_path / "pipeline.yaml").write_text(STATIC)
    profiles = tmp_path / "profiles.yaml"
    profiles.write_text("members: {encode: [{batch_ms: {1: 4}}], classify: [{batch_ms: {1: 1}}]}")
    words = ("pipeline", "plan", tmp_path / "pipeline.yaml", "--profiles", profiles, "--rate", "50")
    done = shiplift(*words, "--p99-ms", "40", "--json", home=tmp_path / "home")
    assert (done.returncode, done.stderr) == (0, "")
    assert {member["name"] for member in json.loads(done.stdout)["members"]} == {"encode", "classify"}
    refused = shiplift(*words, "--p99-ms", "3", home=tmp_path / "home")
    assert (refused.returncode, refused.stdout) == (56, "")
    assert "no plan: no settings hold a p99 of 3 ms at 50/s" in refused.stderr


def test_with_json_an_error_is_one_line_of_json(shiplift: Shiplift, tmp_path: Path) -> None:
    done = shiplift("status", "digits", "--json", home=tmp_path)
    (line,) = done.stdout.splitlines()
    assert json.loads(line) == {
        "error": "StackDown",
        "exit_code": 69,
        "what": f"no stack was started in {tmp_path}",
        "do": "Run `shiplift up`.",
    }
    assert done.returncode == 69


def test_the_status_without_a_stack_is_shown_without_an_error(shiplift: Shiplift, tmp_path: Path) -> None:
    done = shiplift("status", home=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"no stack in {tmp_path}; `shiplift up` starts one\n")
    status = json.loads(shiplift("status", "--json", home=tmp_path).stdout)
    assert (status["home"], status["running"], status["parts"]) == (str(tmp_path), False, [])


def test_stopping_nothing_is_reported_without_an_error(shiplift: Shiplift, tmp_path: Path) -> None:
    done = shiplift("down", home=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "nothing was running\n")


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("slo: {p99_ms: -1}", 65, "spec not valid: slo.p99_ms"),
        (None, 64, "can't be read"),
        (b"\xff", 64, "can't be read"),
    ],
)
def test_a_wrong_spec_is_reported_before_anything_else(
    shiplift: Shiplift, text: Any, code: int, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "spec.yaml"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = shiplift("release", "digits/1", "--spec", file, home=tmp_path)
    assert done.returncode == code
    assert message in done.stderr


def test_a_wrong_variable_is_named(shiplift: Shiplift, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIPLIFT_HTTP_PORT", "x")
    done = shiplift("status", home=tmp_path)
    assert done.returncode == 64
    assert "SHIPLIFT_HTTP_PORT" in done.stderr


def test_init_writes_a_spec_its_schema_and_an_example_and_overwrites_nothing(
    shiplift: Shiplift, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    done = shiplift("init", folder)
    assert done.returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == ["shiplift.schema.json", "shiplift.yaml", "train.py"]
    assert document.parse((folder / "shiplift.yaml").read_text()) == document.ReleaseSpec()
    (folder / "train.py").write_text("mine")
    again = shiplift("init", folder)
    assert again.returncode == 64
    assert "already exists" in again.stderr
    assert (folder / "train.py").read_text() == "mine"
    assert shiplift("init", folder, "--force").returncode == 0
    assert (folder / "train.py").read_text() != "mine"


def test_init_into_a_path_that_is_no_folder_is_a_usage_error(shiplift: Shiplift, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = shiplift("init", tmp_path / "file")
    assert done.returncode == 64
    assert "Traceback" not in done.stderr


def test_the_schema_printed_is_the_schema_promised(shiplift: Shiplift, golden: Golden) -> None:
    done = shiplift("schema")
    assert done.returncode == 0
    golden("shiplift.schema.json", done.stdout)


def test_the_schema_of_a_pipeline_is_the_schema_promised(shiplift: Shiplift, golden: Golden) -> None:
    done = shiplift("schema", "pipeline")
    assert done.returncode == 0
    golden("pipeline.schema.json", done.stdout)


def test_a_pipeline_needs_a_stack_that_knows_its_members(shiplift: Shiplift, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(STATIC)
    done = shiplift("pipeline", "check", file, home=tmp_path / "home")
    assert (done.returncode, done.stdout) == (69, "")
    file.write_text("name: [")
    done = shiplift("pipeline", "check", file, home=tmp_path / "home")
    assert done.returncode == 65
    assert "the pipeline is not YAML" in done.stderr


def test_files_are_checked_without_a_stack_all_of_them(shiplift: Shiplift, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("slo: {p99_ms: 10}")
    (tmp_path / "pipeline.yaml").write_text(STATIC)
    good = (tmp_path / "good.yaml", tmp_path / "pipeline.yaml")
    assert shiplift("check", *good, home=tmp_path / "home")[:2] == (0, "")
    (tmp_path / "bad.yaml").write_text("slo: {p99_ms: -1}")
    (tmp_path / "graph.yaml").write_text(STATIC.replace("steps:", "steps: [", 1))
    done = shiplift("check", *good, tmp_path / "bad.yaml", tmp_path / "graph.yaml", tmp_path / "none.yaml")
    assert done.returncode == 65
    for said in ("bad.yaml: slo.p99_ms", "graph.yaml: ", "none.yaml can't be read", "3 of the files"):
        assert said in done.stderr
    assert "good.yaml" not in done.stderr


def test_the_hook_for_commits_is_valid_and_runs_that_command() -> None:
    manifest = Path(".pre-commit-hooks.yaml")
    done = subprocess.run([sys.executable, "-m", "pre_commit", "validate-manifest", manifest], check=False)
    assert done.returncode == 0
    (hook,) = yaml.safe_load(manifest.read_text())
    assert hook["entry"].split() == ["shiplift", "check"]
    assert [bool(re.search(hook["files"], name)) for name in ("a/shiplift.yaml", "pipeline.yml", "x.yaml")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("name", ["triton", "digits/3", "nothing"])
def test_for_a_missing_log_the_error_lists_the_logs_there_are(shiplift: Shiplift, name: str, tmp_path: Path) -> None:
    done = shiplift("logs", name, home=tmp_path)
    assert done.returncode == 66
    assert "mlflow, triton, scoring, receiver, page, dispatcher" in done.stderr


def test_help_imports_nothing_heavy() -> None:
    """`--help` is instant: the command imports what it needs when it runs."""
    heavy = {"mlflow", "torch", "numpy", "onnx", "fastapi", "kubernetes", "pydantic"}
    script = f"import sys, shiplift.pipelines.commands.app; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_page_s_address_is_that_of_what_is_asked_for(
    shiplift: Shiplift, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER", "true")
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(stack, "wait_healthy", lambda *_: None)
    done = shiplift("open", "--print", home=tmp_path)
    assert done.returncode == StackDown.exit_code
    started(tmp_path, all_of(ME))
    for name, path in {"": "/", "a b": "/model?name=a+b", "digits/3": "/release?model=digits&version=3"}.items():
        assert shiplift("open", name, "--print", home=tmp_path).stdout == f"http://127.0.0.1:8007{path}\n"
    assert opened == []
    shiplift("open", home=tmp_path)
    assert opened == ["http://127.0.0.1:8007/"]
    assert shiplift("open", "digits/x", home=tmp_path).returncode == UsageError.exit_code
    started(tmp_path, all_of(ME) | {"page": GONE})
    assert "the page of this stack is not running" in shiplift("open", home=tmp_path).stderr
