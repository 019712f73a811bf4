from pathlib import Path

import pytest
from pydantic import ValidationError

from shiplift.pipelines.settings import Settings


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"SHIPLIFT_{name.upper()}", raising=False)


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().http_port == 8000
    monkeypatch.setenv("SHIPLIFT_HTTP_PORT", "9000")
    assert Settings().http_port == 9000
    assert Settings(http_port=9500).http_port == 9500


def test_the_home_is_an_absolute_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings().root == tmp_path / ".shiplift"
    monkeypatch.setenv("HOME", "/home/ana")
    assert Settings(home=Path("~/state")).root == Path("/home/ana/state")


@pytest.mark.parametrize(
    ("name", "value"),
    [("HTTP_PORT", "0"), ("GRPC_PORT", "70000"), ("MLFLOW_PORT", "x"), ("CACHE_MB", "-1"), ("SWEEP_S", "0")],
)
def test_a_wrong_variable_is_refused_by_name(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"SHIPLIFT_{name}", value)
    with pytest.raises(ValidationError, match=name.lower()):
        Settings()


def test_other_variables_of_the_prefix_are_none_of_its_business(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIPLIFT_SERVER_SITE", "/x")
    assert Settings() == Settings()
