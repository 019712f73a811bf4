from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.composition.types import rows_of, served, unified, widened
from tests.unit.examples import config, package, signature, tensor

SHAPES = st.lists(st.sampled_from([-1, 1, 2, 3]), max_size=3).map(tuple)


@given(SHAPES, SHAPES)
def test_unification_is_symmetric_and_fits_both(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    shape = unified(left, right)
    assert shape == unified(right, left)
    if shape is not None:
        assert unified(shape, left) == unified(shape, right) == shape


@given(SHAPES)
def test_a_shape_fits_itself_and_one_of_any_size(shape: tuple[int, ...]) -> None:
    assert unified(shape, shape) == shape
    assert unified(shape, (-1,) * len(shape)) == shape
    assert unified(shape, (*shape, 1)) is None


@given(SHAPES, st.data())
def test_what_may_be_either_fits_both(left: tuple[int, ...], data: st.DataObject) -> None:
    right = data.draw(st.tuples(*[st.sampled_from([-1, 1, 2, 3]) for _ in left]))
    assert unified(widened(left, right), left) is not None
    assert unified(widened(left, right), right) is not None


def test_a_member_of_one_sample_at_a_time_takes_one_row() -> None:
    one = signature().model_copy(update={"inputs": (tensor("input", 1, 4),)})
    assert rows_of(package()) == 8
    assert rows_of(package(signature=one)) == 1
    assert rows_of(package(config=config(max_batch=1))) == 1


def test_tensors_are_served_with_rows_and_columns() -> None:
    assert served(tensor("a", -1)).shape == (-1, 1)
    assert served(tensor("a")).shape == (-1, 1)
    assert served(tensor("a", 1, 3, -1)).shape == (1, 3, -1)
