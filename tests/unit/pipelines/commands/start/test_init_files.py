"""What `shiplift init` writes works as it is."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
import yaml

import shiplift
from shiplift.pipelines.commands.app import app
from shiplift.pipelines.commands.start import init_files
from shiplift.pipelines.engines.local import stack
from shiplift.runtime.base.errors import StackDown, UsageError
from shiplift.runtime.spec import document, pipeline

WORKFLOW = Path(".github/workflows/shiplift-release.yaml")


@pytest.fixture
def workflow(tmp_path: Path) -> dict[str, Any]:
    (path,) = init_files.write(tmp_path, force=False, github_actions=True)
    assert path == tmp_path / WORKFLOW
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


def test_the_workflow_is_not_overwritten_unasked(tmp_path: Path, workflow: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="already exists"):
        init_files.write(tmp_path, force=False, github_actions=True)
    assert init_files.write(tmp_path, force=True, github_actions=True)
    assert len(init_files.write(tmp_path, force=False)) == 3


def test_the_training_script_uses_the_library_that_was_asked_for(tmp_path: Path) -> None:
    for library in init_files.STARTERS:
        init_files.write(tmp_path / library, force=False, starter=library)
        script = (tmp_path / library / "train.py").read_text()
        logged = {"torch": "pytorch", "pipeline": "onnx"}.get(library, library)
        assert f"mlflow.{logged}.log_model(" in script
        compile(script, "train.py", "exec")
        spec = document.parse((tmp_path / library / "shiplift.yaml").read_text())
        assert spec.admission.python == ("sandbox" if library == "pyfunc" else "refuse")
    with pytest.raises(UsageError, match="no starter for 'fortran'"):
        init_files.write(tmp_path / "other", force=False, starter="fortran")
    assert not (tmp_path / "other").exists()


def test_a_script_finds_mlflow_by_its_variable_or_by_the_running_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.example:5000")
    assert shiplift.tracking_uri(home=tmp_path) == "http://mlflow.example:5000"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(StackDown, match=r"no stack was started.*SHIPLIFT_HOME"):
        shiplift.tracking_uri(home=tmp_path)


@pytest.mark.parametrize("local", ["sqlite:///mlruns.db", "file:./mlruns", "mlruns"])
def test_nothing_is_registered_where_nobody_releases_it(monkeypatch: pytest.MonkeyPatch, local: str) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", local)
    with pytest.raises(UsageError, match="is not a server: a model registered there is never released"):
        shiplift.tracking_uri()


def test_the_next_commands_fit_the_folder_and_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert init_files.next_commands(Path(), "torch", tmp_path) == ("shiplift up", "python train.py")
    assert init_files.next_commands(Path("a b"), "torch", tmp_path)[0] == "cd 'a b' && shiplift up"
    monkeypatch.setattr(stack, "read", lambda home: SimpleNamespace(names=("mlflow",), runs=lambda name: True))
    assert init_files.next_commands(Path(), "sklearn", tmp_path) == (
        "python train.py",
        "shiplift release digits-sklearn",
    )
    models = [init_files.next_commands(Path(), each, tmp_path)[1].split()[-1] for each in init_files.STARTERS]
    assert "MODEL" not in models
    assert init_files.next_commands(Path("x"), "pipeline", tmp_path)[1].endswith("release digits-large")


def test_the_pipeline_starter_is_sound(tmp_path: Path) -> None:
    written = init_files.write(tmp_path, force=False, starter="pipeline")
    assert tmp_path / "pipeline.yaml" in written
    spec = pipeline.parse((tmp_path / "pipeline.yaml").read_text())
    assert {member.model for member in spec.spec.members.values()} == {"digits-small", "digits-large"}


def test_it_may_read_and_nothing_else(workflow: dict[str, Any]) -> None:
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["steps"][0]["with"]["persist-credentials"] is False
        assert job["permissions"] == {"contents": "read", "pull-requests": "write"}


def test_scripts_take_nothing_from_an_event_but_through_variables(workflow: dict[str, Any]) -> None:
    scripts = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert len(scripts) == 3 + 4
    for script in scripts:
        assert "${{" not in script
        assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0


def test_the_command_it_calls_has_the_options_it_gives(workflow: dict[str, Any]) -> None:
    commands: Any = typer.main.get_command(app)

    def options(name: str) -> set[str]:
        return {option for parameter in commands.commands[name].params for option in parameter.opts}

    assert {"--spec", "--engine", "--watch"} <= options("release")
    assert {"--policy", "--engine"} <= options("gate")
    assert {"--json", "--engine"} <= options("status")


def run_step(
    workflow: dict[str, Any], folder: Path, step: int = -2, job: str = "release", **environment: str
) -> tuple[int, list[str]]:
    """Runs a step, by default the one that releases, with a `shiplift` that notes what it is asked.

    A model called `bad` fails with 20.
    """
    script = workflow["jobs"][job]["steps"][step]["run"]
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "shiplift").write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n[ "$2" != bad ] || exit 20\n')
    (tools / "shiplift").chmod(0o755)
    (tools / "python").unlink(missing_ok=True)
    (tools / "python").symlink_to(sys.executable)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder / "repository",
        check=False,
        capture_output=True,
        text=True,
        env={
            "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SPEC": "",
            "BEFORE": "",
            "PYTHONPATH": os.pathsep.join(sys.path),
            **environment,
        },
    )
    asked = folder / "asked"
    return done.returncode, asked.read_text().splitlines() if asked.exists() else []


@pytest.fixture
def commits(tmp_path: Path) -> list[str]:
    """A repository with two commits; the second changes one spec, adds one and one that is none."""
    folder = tmp_path / "repository"
    (folder / "releases" / "old").mkdir(parents=True)

    def git(*words: str) -> str:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        return subprocess.run(
            ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(**files: str) -> str:
        for name, text in files.items():
            (folder / "releases" / name).write_text(text)
        git("add", "--all")
        git("commit", "--quiet", "-m", "change")
        return git("rev-parse", "HEAD")

    git("init", "--quiet")
    first = commit(**{"a.yaml": "model: a", "b.yaml": "model: b"})
    second = commit(**{"a.yaml": "model: a\nslo: {}", "c d.yml": "model: c", "old/x.yaml": "model: x", "n.md": "x"})
    return [first, second]


def test_it_releases_the_specs_that_changed(tmp_path: Path, workflow: dict[str, Any], commits: list[str]) -> None:
    code, asked = run_step(workflow, tmp_path, BEFORE=commits[0], GITHUB_SHA=commits[1])
    assert code == 0
    assert asked == [
        "release a --spec releases/a.yaml --engine argo --watch",
        "release c --spec releases/c d.yml --engine argo --watch",
    ]


def test_it_releases_all_where_nobody_knows_what_changed(
    tmp_path: Path, workflow: dict[str, Any], commits: list[str]
) -> None:
    code, asked = run_step(workflow, tmp_path, BEFORE="0" * 40, GITHUB_SHA=commits[1])
    assert (code, [line.split()[1] for line in asked]) == (0, ["a", "b", "c"])


def test_one_that_fails_does_not_keep_the_others_and_is_the_result(
    tmp_path: Path, workflow: dict[str, Any], commits: list[str]
) -> None:
    (tmp_path / "repository" / "releases" / "b.yaml").write_text("model: bad")
    (tmp_path / "repository" / "releases" / "a.yaml").write_text("slo: {}")
    code, asked = run_step(workflow, tmp_path, BEFORE="0" * 40, GITHUB_SHA=commits[1])
    assert (code, [line.split()[1] for line in asked]) == (20, ["bad", "c"])
    assert run_step(workflow, tmp_path, SPEC="releases/c d.yml", GITHUB_SHA=commits[1])[0] == 0


def comment_of(workflow: dict[str, Any], folder: Path, commits: list[str], secret: str) -> tuple[int, list[str], str]:
    """The exit code, the commands, and the comment of a pull request with the second commit."""
    tools = folder / "commands"
    tools.mkdir()
    (tools / "shiplift").write_text(
        f"""#!/bin/sh
echo "$@" >> {folder}/asked
case "$1" in
  check) grep -q slo "$2" || exit 0; echo "line 2: <b>no</b>"; exit 65 ;;
  status) echo '{{"models": [{{"model": "c", "latest": 7, "champion": 5}}]}}' ;;
  gate) echo "1 verdict changes"; exit 20 ;;
esac
"""
    )
    (tools / "shiplift").chmod(0o755)
    variables = {
        "SECRET": secret,
        "RUNNER_TEMP": str(folder),
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    code, asked = run_step(workflow, folder, -2, "preview", GITHUB_SHA=commits[1], **variables)
    return code, asked, (folder / "repository" / "comment.md").read_text()


def test_a_pull_request_is_told_what_merging_it_would_release(
    tmp_path: Path, workflow: dict[str, Any], commits: list[str]
) -> None:
    code, asked, comment = comment_of(workflow, tmp_path, commits, "a kubeconfig")
    assert code == 65
    assert asked == [
        "check releases/a.yaml",
        "check releases/c d.yml",
        "status c --engine argo --json",
        "gate c --policy releases/c d.yml --engine argo",
    ]
    mark, _, *told = comment.splitlines()
    assert mark == "<!-- shiplift preview -->"
    assert [line for line in told if line.strip()] == [
        "    releases/a.yaml",
        "    line 2: <b>no</b>",
        "    releases/c d.yml",
        "    releases c/7; production serves version 5 (0: none)",
        "    past verdicts with its limits:",
        "    1 verdict changes",
    ]
    assert (tmp_path / "kubeconfig").stat().st_mode & 0o077 == 0


def test_a_pull_request_from_a_fork_asks_the_cluster_nothing(
    tmp_path: Path, workflow: dict[str, Any], commits: list[str]
) -> None:
    _, asked, comment = comment_of(workflow, tmp_path, commits, "")
    assert [each.split()[0] for each in asked] == ["check", "check"]
    assert "    releases the latest version of c\n" in comment
    assert "head.repo.full_name == github.repository" in workflow["jobs"]["preview"]["steps"][-1]["if"]


_SHIPLIFT = """#!/bin/sh
case "$1" in
  status) echo '{"models": [{"latest": 7}]}' ;;
  card) echo "$2" >> FOLDER/cards; printf -- '---\\ntags: [x]\\n---\\n# %s\\n' "$2" > card.md ;;
esac
"""
_GH = """#!/bin/sh
case "$*" in
  *PATCH* | *POST*) echo "$*" >> FOLDER/asked; cat comment.md > FOLDER/body ;;
  */pulls) echo '[{"number": 5}]' ;;
  */comments) cat FOLDER/comments ;;
esac
"""


def test_a_report_is_one_comment_which_the_next_release_updates(tmp_path: Path, workflow: dict[str, Any]) -> None:
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "released").write_text("digits\n")
    tools = tmp_path / "commands"
    tools.mkdir()
    for name, script in (("shiplift", _SHIPLIFT), ("gh", _GH)):
        (tools / name).write_text(script.replace("FOLDER", str(tmp_path)))
        (tools / name).chmod(0o755)
    (tmp_path / "comments").write_text("[]")
    variables = {
        "GITHUB_REPOSITORY": "team/models",
        "GITHUB_SHA": "1" * 40,
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    code, asked = run_step(workflow, tmp_path, -1, **variables)
    assert (code, asked) == (
        0,
        ["api --silent --method POST repos/team/models/issues/5/comments --field body=@comment.md"],
    )
    body = (tmp_path / "body").read_text()
    mark, _, rest = body.partition("\n")
    assert rest == "# digits/7\n"
    strangers = {"id": 1, "user": {"login": "someone"}, "body": body}
    own = {"id": 2, "user": {"login": "github-actions[bot]"}, "body": mark}
    (tmp_path / "comments").write_text(json.dumps([strangers, own]))
    _, asked = run_step(workflow, tmp_path, -1, **variables)
    assert asked[-1] == "api --silent --method PATCH repos/team/models/issues/comments/2 --field body=@comment.md"
