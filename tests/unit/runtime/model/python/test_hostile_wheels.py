"""Packages that attack whoever resolves and installs them: refused before anything of theirs runs."""

from pathlib import Path

import pytest

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.model.python import environments, inspection
from shiplift.runtime.model.python.resolving import resolve
from shiplift.runtime.records.site import Site
from tests.unit.examples import site as any_site
from tests.unit.runtime.model.python.hostile_wheels import source, wheel


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return any_site(tmp_path).model_copy(update={"server_environment": str(tmp_path / "share" / "server-0")})


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, the only index that pip knows."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.slow
def test_a_requirement_of_a_dependency_that_points_at_a_source_package_builds_nothing(
    site: Site, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--only-binary` does not hold for direct URLs: pip would run its `setup.py` while it resolves."""
    ran = environments.root_of(site) / ".cache" / "ran"  # where any other model's wheels were found
    package = source(index, "pointed", f"open({str(ran)!r}, 'w')\n")
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # it needs nothing else to be built
    wheel(index, "evil", metadata=f"Requires-Dist: pointed @ {package.as_uri()}\n")
    with pytest.raises(NotAdmitted, match="name something that would have to be built, such as a URL or a path"):
        resolve(site, ["evil"])
    assert not ran.exists()
    assert not (environments.root_of(site) / ".wheels").exists()


@pytest.mark.slow
def test_a_requirement_of_a_dependency_that_points_at_a_wheel_is_refused(site: Site, index: Path) -> None:
    pointed = wheel(index, "pointed")
    wheel(index, "evil", metadata=f"Requires-Dist: pointed @ {pointed.as_uri()}\n")
    with pytest.raises(NotAdmitted, match=r"the model needs 'pointed' from 'file:.*': only the site's index may say"):
        resolve(site, ["evil"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../../x", "x\x1b[2J", "/etc/x"])
def test_a_wheel_that_calls_itself_a_path_is_no_package(site: Site, index: Path, name: str) -> None:
    wheel(index, "evil", called=name)
    with pytest.raises(NotAdmitted) as refused:
        resolve(site, ["evil"])
    assert "\x1b" not in str(refused.value)


@pytest.mark.slow
def test_what_one_model_s_wheels_bring_stays_in_its_environment(
    site: Site, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = {"evil.pth": "import os; os._exit(9)\n", "sitecustomize.py": "1/0\n"}
    wheel(index, "fine", {**start, "fine-1.0.data/data/share/fine/data.txt": "x", "libfine.so.1": "x"})
    environment = resolve(site, ["fine"])
    folder = environments.ensure(site, environment)
    packages = next(folder.glob("lib/python3*/site-packages"))
    assert {path.name for path in packages.iterdir()} == {"fine.py", "fine-1.0.dist-info", "libfine.so.1"}
    assert (folder / "share" / "fine" / "data.txt").is_file()
    assert "libfine.so.1" in (folder / "inspected.json").read_text()
    kept = {path.parent.name for path in (environments.root_of(site) / ".wheels").rglob("*.whl")}
    assert kept == {environment.wheels[0].sha256}
    for number, place in enumerate(("bin/python", "pyvenv.cfg", "lib/python3.11/os.py")):
        wheel(index, f"evil{number}", {f"evil{number}-1.0.data/data/{place}": "home = /tmp\n"})
        with pytest.raises(NotAdmitted, match=r"a package (replaces|installs) "):
            environments.ensure(site, resolve(site, [f"evil{number}"]))
    wheel(index, "many", {f"many/{number}": "" for number in range(60)})
    many = resolve(site, ["many"])
    monkeypatch.setattr(inspection, "MOST_FILES", 50)
    with pytest.raises(NotAdmitted, match="the model's packages have over 50 files"):
        environments.ensure(site, many)
    assert [path.name for path in environments.root_of(site).iterdir() if path.is_dir()].count(many.digest) == 0
