"""What it takes to serve a model by its own library: its packages, and whether its files are data alone."""

import pickle
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
import yaml

from shiplift.runtime.admission.own_library import OwnLibrary, of_library

KNOWN = "mlflow==3.17.2\nscikit-learn==1.9.1\nskops==0.16.0\n"


def read(folder: Path, requirements: str | None = KNOWN, *, sandbox: bool = False, **flavor: Any) -> OwnLibrary:
    python = {"loader_module": "mlflow.sklearn"} | flavor
    meta = {"flavors": {"sklearn": {}, "python_function": python}, "mlflow_version": "3.17.2"}
    (folder / "MLmodel").write_text(yaml.safe_dump(meta))
    if requirements is not None:
        (folder / "requirements.txt").write_text(requirements)
    return of_library(folder, "sklearn", pickle="sandbox" if sandbox else "refuse", unpacked_mb=16)


def test_data_and_known_libraries_are_no_code(tmp_path: Path) -> None:
    (tmp_path / "weights.pkl").write_bytes(pickle.dumps(OrderedDict(a=1)))
    seen = read(tmp_path, sandbox=True, python_version="3.1.4")  # data fit any version of Python
    assert seen == OwnLibrary(requirements=tuple(KNOWN.split()))


def test_data_get_the_packages_of_their_library_alone_and_a_pickle_all_that_its_author_names(tmp_path: Path) -> None:
    more = f"{KNOWN}torch==2.13.0\nscikit_lean==1.0\nlightgbm==4.7.0\n"
    with zipfile.ZipFile(tmp_path / "model.skops", "w") as archive:
        archive.writestr("schema.json", '{"__module__": "sklearn.pipeline"}')
    assert read(tmp_path, more) == OwnLibrary(requirements=tuple(KNOWN.split()))
    with zipfile.ZipFile(tmp_path / "model.skops", "w") as archive:
        archive.writestr("schema.json", '{"__module__": "lightgbm.sklearn"}')
    assert read(tmp_path, more).requirements == ("lightgbm==4.7.0", *KNOWN.split())
    (tmp_path / "model.skops").unlink()
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(Counter("abc")))
    seen = read(tmp_path, more, sandbox=True)
    assert seen == OwnLibrary(requirements=tuple(sorted(more.split())), own_code="the pickle model.pkl")


@pytest.mark.parametrize(
    ("requirements", "flavor", "told"),
    [
        (None, {}, "has no requirements.txt"),
        ("git+https://example.org/a\n", {}, "names a URL or a path"),
        (KNOWN, {"python_version": "3.1.4"}, "was logged with Python 3.1.4"),
    ],
)
def test_what_keeps_a_library_from_serving_is_told(
    tmp_path: Path, requirements: str | None, flavor: dict[str, Any], told: str
) -> None:
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(Counter("abc")))
    seen = read(tmp_path, requirements, sandbox=True, **flavor)
    assert seen.obstacle
    assert told in seen.obstacle.what


def test_an_estimator_without_a_flavor_for_pyfunc_has_its_version_of_python_in_its_environment(tmp_path: Path) -> None:
    (tmp_path / "MLmodel").write_text(yaml.safe_dump({"flavors": {"sklearn": {}}, "mlflow_version": "3.17.2"}))
    (tmp_path / "requirements.txt").write_text(KNOWN)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(Counter("abc")))
    assert of_library(tmp_path, "sklearn", pickle="sandbox", unpacked_mb=16).requirements == tuple(KNOWN.split())
    (tmp_path / "python_env.yaml").write_text("python: 3.1.4\n")
    seen = of_library(tmp_path, "sklearn", pickle="sandbox", unpacked_mb=16)
    assert seen.obstacle
    assert "was logged with Python 3.1.4" in seen.obstacle.what
