"""The site's own file: what it may say, and what a mistake in it is told as."""

from pathlib import Path

import pytest

from shiplift.pipelines.engines.local import site_file
from shiplift.pipelines.engines.local.site_file import SiteFile
from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.host.processes import total_memory_mb
from shiplift.runtime.records.site import SitePolicy


def written(home: Path, text: str) -> Path:
    (home / "site.yaml").write_text(text)
    return home


@pytest.mark.parametrize("text", [None, "", "# nothing yet\n", "policy: {}\nserver: {}\n"])
def test_without_rules_the_defaults_hold(tmp_path: Path, text: str | None) -> None:
    assert site_file.read(tmp_path if text is None else written(tmp_path, text)) == SiteFile()


def test_its_rules_are_read(tmp_path: Path) -> None:
    rules = site_file.read(
        written(tmp_path, "policy: {pickle: [refuse], memory_mb: 2048}\nserver: {memory_mb: 3000}\n")
    )
    assert rules.policy == SitePolicy(pickle=("refuse",), memory_mb=2048)
    assert rules.server.memory_mb == 3000


def test_it_is_read_anew_each_time(tmp_path: Path) -> None:
    assert site_file.read(tmp_path).policy.targets == 16
    assert site_file.read(written(tmp_path, "policy: {targets: 2}")).policy.targets == 2


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("policy: {memory_md: 2048}", "policy.memory_md"),
        ("policy: {memory_mb: 1}", "policy.memory_mb"),
        ("policy: {memory_mb: true}", "policy.memory_mb"),
        ("policy: {memory_mb: '2048'}", "policy.memory_mb"),
        ("policy: {pickle: [load]}", "policy.pickle"),
        ("polices: {}", "polices"),
        ("server: {memory_mb: 10}", "server.memory_mb"),
        ("- policy", "site.yaml"),
        ("policy: [", "site.yaml"),
        ("policy: &a {targets: 2}\nserver: *a", "site.yaml"),
    ],
)
def test_a_mistake_is_named_with_its_field_or_the_file(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        site_file.read(written(tmp_path, text))
    assert named in str(caught.value)
    assert "site.yaml" in str(caught.value)


def test_the_limit_of_memory_is_the_site_s_or_a_share_of_the_machine(tmp_path: Path) -> None:
    share = site_file.server_memory_mb(tmp_path)
    assert share == int(0.75 * total_memory_mb())
    (tmp_path / "site.yaml").write_text("server: {memory_mb: 2000}")
    assert site_file.server_memory_mb(tmp_path) == 2000
    (tmp_path / "site.yaml").write_text("server: {memory_mb: a lot}")
    assert site_file.server_memory_mb(tmp_path) == share
