import re
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from shiplift.runtime.base.names import release_name, serving_name

_models = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=256)
_ours = ("--next", "--champion")  # what production and staging append to a served name


@pytest.mark.parametrize("model", ["digits", "Resnet50", "a", "fraud_v2", "text-classifier", "0", "a" * 48])
def test_a_safe_name_is_served_as_it_is(model: str) -> None:
    assert serving_name(model) == model


@pytest.mark.parametrize(
    ("model", "slug"),
    [
        ("My Model", "my-model"),
        ("Käse/größe", "kase-groe"),
        ("..", "model"),
        ("../../etc/passwd", "etc-passwd"),
        ("模型", "model"),
        ("a" * 49, "a" * 40),
        ("-rf", "rf"),
        (".hidden", "hidden"),
        ("digits--next", "digits-next"),
        ("digits--champion", "digits-champion"),
    ],
)
def test_any_other_name_is_served_under_a_slug_with_a_digest(model: str, slug: str) -> None:
    assert re.fullmatch(re.escape(slug) + "-[0-9a-f]{10}", serving_name(model))


@given(_models)
@example("a--next")
@example("A\n")
def test_a_served_name_is_safe_in_paths_and_urls(model: str) -> None:
    name = serving_name(model)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name)
    assert quote(name, safe="") == name
    assert len(name) <= 51


@given(_models, _models)
@example("digits", "digits--next")
@example("digits", "digits--champion")
@example("My Model", "my model")
@example("x y", "x-y")
def test_two_models_never_share_a_served_name_nor_one_that_a_release_uses_beside_it(left: str, right: str) -> None:
    assume(left != right)
    taken = {serving_name(left), *(serving_name(left) + ending for ending in _ours)}
    assert serving_name(right) not in taken


@given(_models)
def test_the_name_that_a_slug_looks_like_is_served_under_another(model: str) -> None:
    name = serving_name(model)
    assert name == model or serving_name(name) != name


@given(_models, st.integers(1, 2**31), st.text(max_size=40))
def test_the_same_request_always_has_the_same_release_and_it_is_a_safe_folder(
    model: str, version: int, spec: str
) -> None:
    name = release_name(model, version, spec)
    assert name == release_name(model, version, spec)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)
    assert len(name) < 80


@given(
    st.tuples(_models, st.integers(1, 10**6), st.text(max_size=20)),
    st.tuples(_models, st.integers(1, 10**6), st.text(max_size=20)),
)
@example(("digits", 1, ""), ("Digits", 1, ""))
@example(("digits", 11, ""), ("digits-1", 1, ""))
@example(("digits", 1, "a: 1"), ("digits", 1, "a: 2"))
def test_another_model_version_or_spec_is_another_release(
    left: tuple[str, int, str], right: tuple[str, int, str]
) -> None:
    assume(left != right)
    assert release_name(*left) != release_name(*right)
