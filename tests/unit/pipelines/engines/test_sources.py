import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import shiplift
from shiplift.pipelines.engines.cache_key import has_key
from shiplift.pipelines.engines.references import PROJECT, References, references
from shiplift.pipelines.engines.sources import Sources, module_of
from shiplift.pipelines.release import RELEASE
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.serving.triton import environment

ROOT = Path(shiplift.__file__).parent
ROOMS = ("runtime", "steps")
STAGES = [stage for stage in RELEASE.flat() if has_key(stage)]


Write = Callable[[dict[str, str]], Sources]


def step(module: str) -> Callable[..., Any]:
    def run() -> None: ...

    run.__module__ = module
    return run


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes files below a project's root, each with its packages; gives the project as it is then."""

    def written(files: dict[str, str]) -> Sources:
        for module, text in files.items():
            file = tmp_path / f"{module}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            for folder in file.relative_to(tmp_path).parents:
                (tmp_path / folder / "__init__.py").touch()
        return Sources(tmp_path)

    return written


def closure(sources: Sources, module: str = "shiplift.a.start") -> set[str]:
    return {name for name in sources.closure(step(module)) if not name.endswith("__init__.py")}


# --- what leads to what ---


def test_a_closure_has_what_is_imported_at_any_distance_and_the_packages_on_the_way(
    write: Write,
) -> None:
    sources = write(
        {
            "a/start": "from shiplift.b.next import x",
            "b/next": "def f():\n    import shiplift.c.lazy",
            "c/lazy": "from shiplift.a import start",
            "c/other": "",
        }
    )
    assert sources.closure(step("shiplift.a.start")) == {
        "__init__.py", "a/__init__.py", "a/start.py", "b/__init__.py", "b/next.py", "c/__init__.py", "c/lazy.py",
    }  # fmt: skip


def test_what_is_imported_from_a_package_may_be_its_module_or_a_part_of_it(write: Write) -> None:
    sources = write({"a/start": "from shiplift.b import next, CONSTANT", "b/next": "", "b/other": ""})
    assert closure(sources) == {"a/start.py", "b/next.py"}


def test_what_a_string_names_is_reached(write: Write) -> None:
    sources = write(
        {
            "a/start": "NAMES = 'shiplift.b.entry:run', 'shiplift.b.kinds.Kind', 'shiplift.yaml'",
            "b/entry": "from shiplift.b import more",
            "b/kinds": "class Kind: ...",
            "b/more": "",
        }
    )
    assert closure(sources) == {"a/start.py", "b/entry.py", "b/kinds.py", "b/more.py"}


def test_of_a_package_that_a_string_names_every_file_is_reached(write: Write, tmp_path: Path) -> None:
    sources = write({"a/start": "files('shiplift.pages')", "pages/more": ""})
    (tmp_path / "pages" / "sub").mkdir()
    (tmp_path / "pages" / "sub" / "page.html").touch()
    (tmp_path / "pages" / "__pycache__").mkdir()
    (tmp_path / "pages" / "__pycache__" / "more.cpython-311.pyc").touch()
    assert closure(sources) == {"a/start.py", "pages/more.py", "pages/sub/page.html"}


def test_files_beside_a_module_are_reached_and_programs_among_them_followed(write: Write, tmp_path: Path) -> None:
    sources = write(
        {
            "a/start": "FILES = Path(__file__).with_name('names.txt'), Path(__file__).with_name('program.py')",
            "a/program": "import shiplift.b.next",
            "b/next": "import shiplift\nROOT = Path(shiplift.__file__).parent, Path(shiplift.__file__).parent.parent",
            "b/other": "",
        }
    )
    (tmp_path / "a" / "names.txt").touch()
    assert closure(sources) == {"a/start.py", "a/names.txt", "a/program.py", "b/next.py"}


def test_a_step_from_elsewhere_begins_with_its_own_file(write: Write) -> None:
    reached = Sources().closure(test_a_step_from_elsewhere_begins_with_its_own_file)
    assert {__name__, "pipelines/release.py", "steps/gate.py"} < reached


# --- digests ---


def test_a_digest_changes_with_the_content_and_the_name_of_any_file_of_the_closure_alone(
    write: Write, tmp_path: Path
) -> None:
    start = step("shiplift.a.start")
    digests = [write({"a/start": "import shiplift.b.next", "b/next": "", "b/other": ""}).digest(start)]
    digests.append(write({"b/other": "x = 1"}).digest(start))
    assert digests[0] == digests[1]
    digests.append(write({"b/next": "x = 1"}).digest(start))
    digests.append(write({"b/next": "", "b/__init__": "x = 1"}).digest(start))
    assert len(set(digests)) == 3


def test_a_digest_is_of_the_files_as_they_were_first_read(write: Write) -> None:
    sources = write({"a/start": "x = 1"})
    before = sources.digest(step("shiplift.a.start"))
    write({"a/start": "x = 2"})
    assert sources.digest(step("shiplift.a.start")) == before


@pytest.mark.parametrize("suffix", [".pyc", ".so", "/__init__.pyc"])
@pytest.mark.parametrize(
    "text",
    ["import shiplift.b.next", "from shiplift.b import next", "from shiplift.b.next import x", "'shiplift.b.next:x'"],
)
def test_a_module_without_its_source_is_refused(write: Write, tmp_path: Path, text: str, suffix: str) -> None:
    sources = write({"a/start": text, "b/other": ""})
    compiled = Path(f"{tmp_path / 'b' / 'next'}{suffix}")
    compiled.parent.mkdir(exist_ok=True)
    compiled.touch()
    with pytest.raises(ShipliftError, match=r"the source of shiplift.b.next is missing, and .* Install Shiplift"):
        sources.digest(step("shiplift.a.start"))


def test_data_that_are_not_there_are_refused(write: Write) -> None:
    with pytest.raises(ShipliftError, match=r"the source of a/names.txt is missing"):
        write({"a/start": "Path(__file__).with_name('names.txt')"}).digest(step("shiplift.a.start"))


# --- this project: nothing that a closure can't see ---


def modules() -> Iterator[tuple[str, bytes]]:
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            if file.relative_to(ROOT).parts[:2] != ("runtime", "guest"):  # data, as far as a step is concerned
                yield file.relative_to(ROOT).as_posix(), file.read_bytes()


def test_every_string_that_speaks_of_a_module_is_its_name_and_the_module_is_there() -> None:
    """A name made of pieces, or of a module that moved, would be missing from closures."""
    sources = Sources()
    rooms = re.compile(rf"\b{PROJECT}\.(runtime|steps|pipelines|templates)\b")
    wrong = [
        f"{name}: {text[:80]!r}"
        for name, source in modules()
        for text in _strings(source)
        if rooms.search(text) and not (text.partition(":")[0] in _read(name, source).named and _is_there(sources, text))
    ]
    assert not wrong, "name a module in one string, as `shiplift.a.b` or `shiplift.a.b:function`: " + "; ".join(wrong)


def _strings(source: bytes) -> Iterator[str]:
    """Every string that is not a statement of its own, as a docstring is."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def _read(name: str, source: bytes) -> References:
    return references(source, module_of(name), package=name.endswith("__init__.py"))


def _is_there(sources: Sources, text: str) -> bool:
    module, _, part = text.partition(":")
    if sources.file_of(module) is None:
        module, _, part = module.rpartition(".")
    file = sources.file_of(module)
    if file is None:
        return False
    defined = {getattr(node, "name", "") for node in ast.parse((ROOT / file).read_bytes()).body}
    return not part or part in defined


_LOADERS = {"import_module", "__import__", "run_module", "run_path", "spec_from_file_location", "get_data", "files",
            "PackageLoader", "FileSystemLoader", "exec"}  # fmt: skip
# What these load is named in a string elsewhere: a sandbox's entry, what an entry lists as PRELOAD and PRELOAD_FOR, and
# the library of a metric, which is none of ours.
_BY_VARIABLE = {"runtime/confinement/child.py": 2, "runtime/precision/scoring/task_metric.py": 1}


def test_what_loads_by_name_takes_a_name_that_can_be_read_from_the_source() -> None:
    unclear: dict[str, int] = {}
    for name, source in modules():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and _LOADERS & {ast.unparse(node.func), getattr(node.func, "attr", "")}:
                loaded = node.args[0] if node.args else None
                constant = isinstance(loaded, ast.Constant) and isinstance(loaded.value, str)
                bare = constant and loaded.value.partition(".")[0] in (*ROOMS, "pipelines", "templates")  # type: ignore[union-attr]
                if not constant or bare:
                    unclear[name] = unclear.get(name, 0) + 1
    assert unclear == _BY_VARIABLE, "load by a constant name, as `shiplift.a.b`, or say here where the names stand"


def test_every_path_from_file_leads_to_something_else() -> None:
    """`Path(__file__).resolve().parents[1]` and the like are not understood: they would be the module's own file."""
    for name, source in modules():
        own = module_of(name)
        assert (own, ".") not in _read(name, source).paths, (
            f"{name}: write `Path(__file__).parent / ...` or `Path(__file__).with_name(...)`"
        )


def test_the_image_of_the_server_copies_all_that_makes_its_environment() -> None:
    text = (ROOT.parent / "Containerfile").read_text().replace("\\\n", "")
    lines = text.partition(" AS triton\n")[2].partition("\nFROM ")[0].splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    for name in Sources().closure(environment.ensure):
        assert name == "__init__.py" or any(name == word or name.startswith(f"{word}/") for word in copied), name


def test_what_importing_a_step_really_imports_is_in_its_closure() -> None:
    script = """
import os, sys
import fsspec, httpx, numpy, psutil, pydantic, tritonclient.grpc, yaml
for step in sys.argv[1:]:
    if (child := os.fork()) == 0:
        __import__(step)
        print(step, *(name for name in sys.modules if name.partition(".")[0] == "shiplift"), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    steps = {stage.step.__module__: stage.step for stage in STAGES}
    listing = subprocess.run(
        [sys.executable, "-c", script, *steps], cwd=ROOT.parent, capture_output=True, text=True, check=True
    )
    lines = [line.split() for line in listing.stdout.splitlines()]
    assert [line[0] for line in lines] == list(steps)
    sources = Sources()
    for name, *imported in lines:
        missing = {sources.file_of(module) for module in imported} - sources.closure(steps[name])
        assert not missing, name
