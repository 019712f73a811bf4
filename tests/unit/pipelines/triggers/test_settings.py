import json
from pathlib import Path

import pytest

from shiplift.pipelines.triggers.settings import MAX_SECRET_BYTES, TriggerSettings, load, read_secrets
from shiplift.runtime.base.errors import UsageError

LEAST = {"namespace": "shiplift", "registry_uri": "http://mlflow:5000"}


def written(tmp_path: Path, **changes: object) -> Path:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LEAST | changes))
    return file


def repository(**changes: object) -> dict[str, object]:
    return {"name": "acme/models", "host": "github", "url": "https://example.org/acme/models.git"} | changes


def test_a_namespace_and_a_registry_are_enough(tmp_path: Path) -> None:
    settings = load(written(tmp_path))
    assert (settings.limits.deliveries_per_minute, settings.reconciler.every_s, settings.repositories) == (600, 60, ())
    assert TriggerSettings.model_validate_json(settings.model_dump_json()) == settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"namespace": ""}, "namespace"),
        ({"namespce": "x"}, "namespce"),
        ({"reconciler": {"every_s": 0}}, r"reconciler\.every_s"),
        ({"limits": {"deliveries_per_minute": 0}}, r"limits\.deliveries_per_minute"),
        ({"receiver": {"port": 99999}}, r"receiver\.port"),
        ({"repositories": [repository(host="bitbucket")]}, r"repositories\.0\.host"),
        ({"repositories": [repository(name="models")]}, r"repositories\.0\.name"),
        ({"repositories": [repository(name="-x/../y")]}, r"repositories\.0\.name"),
        ({"repositories": [repository(url="ext::sh -c x")]}, r"repositories\.0\.url"),
        ({"repositories": [repository(url="file:relative")]}, r"repositories\.0\.url"),
        ({"repositories": [repository(url="https://example.org:99999/x")]}, r"repositories\.0\.url"),
        ({"reconciler": {"git_every_s": 0}}, r"reconciler\.git_every_s"),
        ({"repositories": [repository(url="https://u:token@example.org/x")]}, "must contain no credentials"),
        ({"repositories": [repository(branch="--upload-pack=x")]}, r"repositories\.0\.branch"),
        ({"repositories": [repository(branch="a..b")]}, r"repositories\.0\.branch"),
        ({"repositories": [repository(), repository(name="Acme/Models")]}, "too similar"),
    ],
)
def test_every_wrong_field_is_named(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(written(tmp_path, **changes))


@pytest.mark.parametrize("url", ["https://example.org/x", "ssh://git@example.org:22/x", "file:///srv/git/x"])
def test_addresses_that_git_may_be_given(tmp_path: Path, url: str) -> None:
    (listed,) = load(written(tmp_path, repositories=[repository(url=url, branch="release/1.x")])).repositories
    assert listed.url == url


def test_a_secret_in_a_wrong_address_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        load(written(tmp_path, repositories=[repository(url="https://u:hunter2@example.org/x")]))
    assert "hunter2" not in str(error.value)


def test_a_file_that_is_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        load(tmp_path / "none.json")
    (tmp_path / "odd.json").write_text("namespace: x")
    with pytest.raises(UsageError, match=r"odd\.json: the file"):
        load(tmp_path / "odd.json")


def test_secrets_are_read_as_they_are_now_without_the_line_s_end(tmp_path: Path) -> None:
    first, second = tmp_path / "mlflow", tmp_path / "mlflow-previous"
    assert read_secrets((first, second)) == ()
    first.write_text("one\n")
    second.write_text("")
    assert read_secrets((first, second)) == ("one",)
    second.write_bytes(b"\xff")
    assert read_secrets((first, second)) == ("one",)
    second.write_text("two")
    assert read_secrets((first, second)) == ("one", "two")
    second.write_text("x" * (MAX_SECRET_BYTES + 9))
    assert len(read_secrets((second,))[0]) == MAX_SECRET_BYTES
    second.unlink()
    second.mkdir()
    assert read_secrets((first, second)) == ("one",)
