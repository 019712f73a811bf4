from textwrap import dedent

import pytest

from shiplift.pipelines.engines.references import References, references


def read(text: str, module: str = "shiplift.runtime.a", *, package: bool = False) -> References:
    return references(dedent(text).encode(), module, package=package)


@pytest.mark.parametrize(
    ("text", "imported", "members"),
    [
        ("import shiplift.steps.gate", {"shiplift.steps.gate"}, set()),
        ("import shiplift.steps.gate as g, os", {"shiplift.steps.gate"}, set()),
        ("from shiplift.b import c, d as e", {"shiplift.b"}, {"shiplift.b.c", "shiplift.b.d"}),
        ("from . import b", {"shiplift.runtime"}, {"shiplift.runtime.b"}),
        ("from .b import c", {"shiplift.runtime.b"}, {"shiplift.runtime.b.c"}),
        ("def f():\n    if True:\n        from shiplift.b import c", {"shiplift.b"}, {"shiplift.b.c"}),
        ("import numpy\nfrom shiplifted.a import b", set(), set()),
    ],
)  # fmt: skip
def test_imports_are_read_wherever_they_stand(text: str, imported: set[str], members: set[str]) -> None:
    assert read(text) == References(imported=imported, members=members)


def test_a_package_imports_relative_to_itself() -> None:
    assert read("from .b import c", "shiplift.runtime", package=True).imported == {"shiplift.runtime.b"}


@pytest.mark.parametrize("test", ["TYPE_CHECKING", "typing.TYPE_CHECKING"])
def test_imports_for_type_checkers_do_not_count_but_those_instead_of_them_do(test: str) -> None:
    text = f"""
        if {test}:
            from shiplift.runtime.b import C
        else:
            from shiplift.runtime.d import C
    """
    assert read(text).imported == {"shiplift.runtime.d"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("entry = 'shiplift.runtime.b:run'", {"shiplift.runtime.b"}),
        ("command = ['python', '-m', 'shiplift.runtime.b']", {"shiplift.runtime.b"}),
        ("kind = 'shiplift.runtime.b.Class'", {"shiplift.runtime.b.Class"}),
        ('"""Runs `shiplift.runtime.b` somewhere."""', set()),
        ("label = 'shiplift.dev/'", set()),
    ],
)
def test_a_string_that_is_a_dotted_name_refers_to_it(text: str, named: set[str]) -> None:
    assert read(text).named == named


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("Path(__file__).with_name('b.txt').read_text()", ("shiplift.runtime.a", "./../b.txt")),
        ("Path(__file__).parent / 'b' / 'c.txt'", ("shiplift.runtime.a", "./../b/c.txt")),
        ("str(Path(__file__).parent / name)", ("shiplift.runtime.a", "./..")),
        ("open(__file__)", ("shiplift.runtime.a", ".")),
        ("from shiplift.runtime import b\nPath(b.__file__).with_name('c.py')", ("shiplift.runtime.b", "./../c.py")),
        ("import shiplift\nPath(shiplift.__file__).parent.parent", ("shiplift", "./../..")),
        ("import shiplift.runtime.b\nPath(shiplift.runtime.b.__file__).parent", ("shiplift.runtime.b", "./..")),
    ],
)
def test_a_path_from_file_is_followed_as_far_as_it_is_constant(text: str, path: tuple[str, str]) -> None:
    assert read(text).paths == {path}


def test_a_path_from_the_file_of_another_project_does_not_count() -> None:
    assert read("import numpy\nPath(numpy.__file__).parent") == References()
