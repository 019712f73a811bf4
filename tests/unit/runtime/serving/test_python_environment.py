from pathlib import Path

from shiplift.runtime.model.python.layers import name_of, pack
from shiplift.runtime.serving.python_environment import prepare
from tests.unit.examples import package, site


def test_what_a_front_runs_in_is_unpacked_from_its_package_once(tmp_path: Path) -> None:
    made, here = tmp_path / "made", site(tmp_path)
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "python").write_text("an interpreter")
    layer = tmp_path / "package" / name_of("0123")
    layer.parent.mkdir(parents=True)
    pack(made, layer)
    front = package(kind="text", server="nvidia")
    for _ in range(2):
        prepare(here, front, tmp_path / "package")
    assert (here.environments / "0123" / "bin" / "python").read_text() == "an interpreter"
    prepare(here, package(), tmp_path / "package" / "none")
