"""Environments of Python models: made once, completely or not at all, by a pip that reaches only permitted hosts."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from shiplift.runtime.base.errors import NotAdmitted, PolicyRefused, Temporary
from shiplift.runtime.model.python import environments, layers, pip, resolving
from shiplift.runtime.records.model import PythonEnvironment, PythonModel, Wheel
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.unit.examples import site as any_site

WHEELS = (Wheel(name="a", version="1.0", sha256="a" * 64), Wheel(name="b", version="2!1.0+cpu", sha256="b" * 64))
ENVIRONMENT = PythonEnvironment(python="3.11", machine="x86_64", wheels=WHEELS)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return any_site(tmp_path).model_copy(update={"server_environment": str(tmp_path / "share" / "server-0")})


def test_a_lock_has_a_hash_for_each_package_and_names_the_environment() -> None:
    assert ENVIRONMENT.lock == f"a==1.0 --hash=sha256:{'a' * 64}\nb==2!1.0+cpu --hash=sha256:{'b' * 64}\n"
    other = ENVIRONMENT.model_copy(update={"python": "3.12"})
    assert len({ENVIRONMENT.digest, other.digest, ENVIRONMENT.model_copy(update={"wheels": WHEELS[:1]}).digest}) == 3


def test_an_environment_that_fails_is_removed_and_made_again_once(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def run_pip(_: Site, arguments: list[str], work: Path, **__: Any) -> None:
        calls.append(arguments)
        assert work.is_relative_to(tmp_path / "share" / "environments")
        (work / "half").touch()
        if len(calls) == 1:
            raise Temporary("the package index can't be reached", do="Try again.")

    monkeypatch.setattr(environments, "run_pip", run_pip)
    with pytest.raises(Temporary):
        environments.ensure(site, ENVIRONMENT)
    folder = tmp_path / "share" / "environments" / ENVIRONMENT.digest
    assert not folder.exists()
    folder.mkdir()  # as a kill would leave it: without a stamp
    (folder / "rest").touch()
    assert environments.ensure(site, ENVIRONMENT) == environments.ensure(site, ENVIRONMENT) == folder
    assert [arguments[0] for arguments in calls] == ["download", "download", "install"]
    assert all("--require-hashes" in arguments for arguments in calls)
    assert (folder / "bin" / "python").exists()
    assert not (folder / "rest").exists()


def test_on_a_cluster_an_environment_is_installed_once_and_travels_as_a_layer(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Cluster(namespace="a", serving_namespace="b", server_image="c")
    store = ArtifactStore((tmp_path / "store").as_uri())

    def no_interpreter(folder: Path) -> None:
        folder.mkdir()

    def pod(name: str) -> Site:
        return site.model_copy(update={"place": place, "home": str(tmp_path / name)})

    def run_pip(_: Site, arguments: list[str], work: Path, **__: Any) -> None:
        if "install" in arguments:
            (work / "lib" / f"python{pip.PYTHON}" / "site-packages" / "a.py").write_text("VALUE = 1\n")

    monkeypatch.setattr(environments, "run_pip", run_pip)
    monkeypatch.setattr(layers, "copy_interpreter", no_interpreter)  # thousands of files to pack
    environments.ensure(pod("export"), ENVIRONMENT)
    layer = environments.packed(pod("export"), ENVIRONMENT, store)
    assert layer is not None
    monkeypatch.setattr(environments, "run_pip", None)
    model = PythonModel(environment=ENVIRONMENT, memory_mb=1, layer=layer)
    for _ in range(2):
        folder = environments.ensure_for(pod("quantize"), model, store)
    assert folder == tmp_path / "quantize" / "environments" / ENVIRONMENT.digest
    assert (folder / "lib" / f"python{pip.PYTHON}" / "site-packages" / "a.py").is_file()
    assert str(folder) in (folder / "pyvenv.cfg").read_text()
    assert sorted(path.name for path in folder.parent.iterdir() if not path.name.startswith(".")) == [folder.name]
    assert environments.packed(site, ENVIRONMENT, store) is None  # on one machine it stays where it is


@pytest.mark.parametrize(
    ("said", "kind", "told"),
    [
        ("WARNING: Retrying (Retry(total=1)) after\nERROR: No matching distribution found for a", Temporary, "reached"),
        ("ERROR: Cannot install a\nERROR: ResolutionImpossible: for help", NotAdmitted, "conflict: Cannot install a"),
        ("ERROR: No matching distribution found for a==1", NotAdmitted, "there is no wheel of a==1"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", NotAdmitted, "DO NOT MATCH THE HASHES"),
        ("ERROR: [Errno 1] Operation not permitted", NotAdmitted, "would have to be built"),
        ("Killed", NotAdmitted, "can't install the model's requirements: Killed"),
    ],
)
def test_why_pip_gave_up_is_told(said: str, kind: type[Exception], told: str) -> None:
    error = pip._failure(said)
    assert type(error) is kind
    assert told in str(error)


def test_an_index_of_the_site_is_the_only_one_with_the_same_certificates() -> None:
    settings = {
        "global.cert": "/etc/c.pem",
        "global.extra-index-url": "https://other.example/simple",
        ":env:.proxy": "p",
    }
    index = "https://index.example:8443/simple"
    assert pip._only(index, settings) == ["--isolated", "--index-url", index, "--cert=/etc/c.pem", "--proxy=p"]
    assert pip._only("", settings) == []
    inside = "http://index.tools:3141/simple"
    assert pip._only(inside, {}) == ["--isolated", "--index-url", inside, "--trusted-host", "index.tools:3141"]


def test_it_reaches_the_ports_of_its_indexes_and_reads_what_its_settings_name() -> None:
    values = ["https://a.example:8443/simple https://b.example/simple", "http://proxy.example:3128", "/etc/c.pem"]
    assert pip._ports(values) == (53, 80, 443, 3128, 8443)
    readable = pip._readable({"global.cert": "/etc/c.pem", "global.index-url": "file:///mirror/simple"})
    assert {"/etc/c.pem", "/mirror", "/etc/resolv.conf"} <= set(readable)
    assert "/" not in readable
    assert str(Path.home()) not in readable


def test_environments_are_beside_the_bundled_server_or_in_the_home_of_a_pod(site: Site) -> None:
    assert site.environments == Path(site.server_environment).parent / "environments"
    there = site.model_copy(update={"place": Cluster(namespace="a", serving_namespace="b", server_image="c")})
    assert there.environments == Path(site.home) / "environments"
    assert environments.readable(Path("/a"), Path("/b"))[0::2] == ["/a", "/b"]


def test_what_grows_beyond_the_limit_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip, "_LOOK_S", 0.1)
    grow = "import time\nfor at in range(600):\n    open(str(at), 'wb').write(bytes(1 << 20))\n    time.sleep(0.05)"
    with pytest.raises(PolicyRefused, match=r"have \d+ MiB so far, the limit is 5 MiB"):
        pip._run([sys.executable, "-c", grow], {}, tmp_path, 5)
    assert pip._run([sys.executable, "-c", "import sys; sys.exit('no')"], {}, tmp_path, 5) == (1, "no\n")


def test_requirements_are_resolved_once_for_as_long_as_their_environment_is_there(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved: list[str] = []

    def run_pip(_: Site, arguments: list[str], work: Path, **__: Any) -> None:
        if "--report" in arguments:
            resolved.append((work / "requirements.txt").read_text())
            info = {"url": "https://a.example/a.whl", "archive_info": {"hash": f"sha256={'a' * 64}"}}
            report = {"install": [{"download_info": info, "metadata": {"name": "A.b", "version": "1"}}]}
            (work / "report.json").write_text(json.dumps(report))

    monkeypatch.setattr(resolving, "run_pip", run_pip)
    monkeypatch.setattr(environments, "run_pip", run_pip)
    first = resolving.resolve(site, ["a.b", "c"])
    assert first.wheels == (Wheel(name="a-b", version="1", sha256="a" * 64),)
    assert resolving.resolve(site, ["a.b", "c"]) == first  # its environment is not there yet
    environments.ensure(site, first)
    assert resolving.resolve(site, ["c", "a.b"]) == first
    assert resolved == ["a.b\nc\n"] * 2
    limited = site.model_copy(update={"policy": site.policy.model_copy(update={"packages": ("c",)})})
    with pytest.raises(PolicyRefused, match="does not allow: a-b"):
        resolving.resolve(limited, ["a.b", "c"])
    assert resolving.resolve(site, ["a.b"]) == first
    assert resolved[2:] == ["a.b\n"]
