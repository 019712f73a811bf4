"""What a Python model's requirements.txt may contain: names with versions, and no locations of code."""

import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.model.python.requirements import MOST, check_python, read_requirements
from shiplift.runtime.records.model import Requirement


def read(folder: Path, text: str, **assumed: str) -> tuple[str, ...]:
    (folder / "requirements.txt").write_text(text)
    return read_requirements(folder, assumed)


def test_names_with_versions_are_taken_without_comments_and_in_order(tmp_path: Path) -> None:
    text = "# what it needs\npandas[parquet,excel]>=2,<3  # tables\n\nnumpy == 2.1.0\nscikit-learn\n"
    assert read(tmp_path, text) == ("numpy==2.1.0", "pandas[excel,parquet]<3,>=2", "scikit-learn")


def test_what_loading_takes_is_added_unless_it_is_named(tmp_path: Path) -> None:
    assert read(tmp_path, "MLflow==3.1\n", mlflow="3.17.2", cloudpickle="3.1.2") == (
        "MLflow==3.1",
        "cloudpickle==3.1.2",
    )
    assert read(tmp_path, "", mlflow="", cloudpickle="3") == ("cloudpickle==3", "mlflow")


def test_a_marker_is_evaluated_for_this_python(tmp_path: Path) -> None:
    assert read(tmp_path, 'tomli==2 ; python_version < "3"\ntornado==6; python_version >= "3"') == ("tornado==6",)


@pytest.mark.parametrize(
    "line",
    [
        "https://example.org/a.whl",
        "a @ https://example.org/a.whl",
        "git+https://example.org/a",
        "git+ssh://a/b",
        "file:///tmp/a.whl",
        "/tmp/a.whl",
        "./a",
        "../a",
        "~/a",
        "a @ file:///tmp/a",
    ],
)
def test_a_url_or_a_path_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(NotAdmitted, match="names a URL or a path"):
        read(tmp_path, line)


@pytest.mark.parametrize(
    "line", ["-r other.txt", "-e .", "--index-url x", "--extra-index-url=x", "-f x", "--pre", "-c a", "a==1 \\"]
)
def test_an_option_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(NotAdmitted, match="only names with versions are allowed"):
        read(tmp_path, line)


@pytest.mark.parametrize("line", ["a b", "==1", "a==", "a==1 --hash=sha256:0", "a;b", "ä==1", "a==1$(true)"])
def test_a_line_that_is_no_requirement_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(NotAdmitted, match=r"requirements\.txt has"):
        read(tmp_path, line)


def test_too_many_too_long_or_none_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAdmitted, match=r"has no requirements\.txt"):
        read_requirements(tmp_path, {})
    with pytest.raises(NotAdmitted, match=f"has {MOST + 1} requirements, the limit is {MOST}"):
        read(tmp_path, "\n".join(f"a{at}" for at in range(MOST + 1)))
    with pytest.raises(NotAdmitted, match="can't be read"):
        read(tmp_path, "#" * (1 << 20))


@given(st.text(max_size=60))
def test_whatever_is_taken_has_the_form_that_the_record_takes(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    try:
        taken = read(tmp_path_factory.mktemp("model"), text)
    except NotAdmitted:
        return
    for requirement in taken:
        assert TypeAdapter(Requirement).validate_python(requirement) == requirement
        assert not requirement.startswith("-")
        assert "/" not in requirement


def test_another_version_of_python_is_refused() -> None:
    check_python(platform.python_version())
    check_python("")
    with pytest.raises(NotAdmitted, match=r"was logged with Python 3\.1\.0"):
        check_python("3.1.0")
