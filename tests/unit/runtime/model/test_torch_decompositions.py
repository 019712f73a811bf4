"""Operators of torch that are exported as plain torch answer what they answer, at their ends and beside them, too."""

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

ENDS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 3.0, -3.0, 0.1, 0.3, 80.0, -120.0, 200.0, 1e-6, 1e30, -1e30)
SPECIAL = (math.inf, -math.inf, math.nan)


def decompositions() -> dict[Any, Any]:
    from shiplift.runtime.model.conversion.torch_decompositions import DECOMPOSITIONS

    return dict(DECOMPOSITIONS)


def pairs() -> tuple[Any, Any]:
    """Each of the ends with each other one."""
    values = torch.tensor([*ENDS, *SPECIAL])
    x, y = torch.meshgrid(values, values, indexing="ij")
    return x.flatten(), y.flatten()


def line() -> Any:
    return torch.cat(
        [torch.tensor([*ENDS, *SPECIAL]), torch.linspace(-9.9, 12, 300), torch.linspace(-0.999, 0.999, 99)]
    )


def steps() -> tuple[Any, ...]:
    """Series with ties, with large numbers, and of whole numbers: (5, 3, 9)."""
    torch.manual_seed(0)
    tied = torch.randint(-3, 4, (5, 3, 9)).float()
    return tied, torch.randn(5, 3, 9) * 60, tied.long()


def same(right: Any, found: Any) -> bool:
    """Values, shapes and types, of every output; with the sign of a zero that an angle or a sign has."""
    if isinstance(right, tuple):
        return all(map(same, right, found))
    if right.is_complex():
        right, found = torch.view_as_real(right), torch.view_as_real(found)
    return bool(
        right.dtype == found.dtype and torch.allclose(right.double(), found.double(), 2e-5, 1e-5, equal_nan=True)
    )


@pytest.mark.parametrize(
    "name",
    ["atan2", "copysign", "floor_divide", "fmax", "fmin", "hypot", "logaddexp", "logaddexp2", "remainder"],
)
def test_an_operator_of_two_numbers_is_right_at_all_ends(name: str) -> None:
    x, y = pairs()
    operator = next(each for each in decompositions() if each._schema.name == f"aten::{name}" and _of_tensors(each))
    assert same(operator(x, y), decompositions()[operator](x, y))


def _of_tensors(operator: Any) -> bool:
    return all("Tensor" in str(argument.type) for argument in operator._schema.arguments[:2])


@pytest.mark.parametrize("name", ["digamma", "erfinv", "lgamma", "log_sigmoid", "signbit"])
def test_an_operator_of_one_number_is_right_on_a_line_and_at_all_ends(name: str) -> None:
    operator = getattr(torch.ops.aten, name).default
    assert same(operator(line()), decompositions()[operator](line()))


def test_angles_keep_the_sign_of_zero() -> None:
    zero, negative = torch.tensor([0.0, -0.0]), torch.tensor([-2.0, -2.0])
    found = decompositions()[torch.ops.aten.atan2.default](zero, negative)
    assert found.tolist() == pytest.approx([math.pi, -math.pi])


@pytest.mark.parametrize(
    ("name", "overload", "arguments"),
    [
        ("cummax", "default", (1,)),
        ("cummin", "default", (-1,)),
        ("logcumsumexp", "default", (1,)),
        ("median", "dim", (-1,)),
        ("mode", "default", (1,)),
        ("mode", "default", (-1, True)),
    ],
)
def test_an_operator_along_an_axis_is_right_with_ties_and_large_numbers(
    name: str, overload: str, arguments: tuple[Any, ...]
) -> None:
    operator = getattr(getattr(torch.ops.aten, name), overload)
    for x in steps():
        if x.is_floating_point() or name != "logcumsumexp":
            assert same(operator(x, *arguments), decompositions()[operator](x, *arguments))


def test_products_and_the_kth_value_are_right() -> None:
    product, kth = torch.ops.aten.cumprod.default, torch.ops.aten.kthvalue.default
    for x in steps():
        assert same(product(x.sign() * 2, 1), decompositions()[product](x.sign() * 2, 1))
        assert same(kth(x, 3, -1)[0], decompositions()[kth](x, 3, -1)[0])


def test_a_median_with_a_missing_number_is_missing() -> None:
    operator = torch.ops.aten.median.dim
    x = torch.tensor([[3.0, math.nan, 1.0], [3.0, 2.0, 1.0]])
    assert same(operator(x, 1), decompositions()[operator](x, 1))


def test_numbers_find_their_place_among_boundaries_of_all_and_of_each_row() -> None:
    bucketize, search = torch.ops.aten.bucketize.Tensor, torch.ops.aten.searchsorted.Tensor
    boundaries, tied = torch.tensor([-1.0, 0.0, 1.0, 2.0]), steps()[0]
    for right in (False, True):
        assert same(
            bucketize(line(), boundaries, right=right), decompositions()[bucketize](line(), boundaries, right=right)
        )
        rows = tied.sort(-1).values
        assert same(search(rows, tied, right=right), decompositions()[search](rows, tied, right=right))


def test_distances_are_those_of_all_pairs() -> None:
    x = steps()[1]
    operator = torch.ops.aten.cdist.default
    assert torch.allclose(operator(x, x.flip(1)), decompositions()[operator](x, x.flip(1), 2.0), atol=1e-2)


@pytest.mark.parametrize(
    "options", [{}, {"win_length": 40}, {"normalized": True}, {"window": "hann"}, {"pad_mode": "constant"}]
)
def test_a_spectrum_is_right_and_zero_where_torch_s_is(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    sound, operator = torch.randn(3, 256), torch.ops.aten.stft.center
    named = {"return_complex": True} | options
    if "window" in named:
        named["window"] = torch.hann_window(64)
    right, found = operator(sound, 64, 16, **named), decompositions()[operator](sound, 64, 16, **named)
    assert right.shape == found.shape
    assert torch.allclose(right, found, atol=2e-5)
    assert not found.imag[:, 0].any()


def exported(compute: Callable[[Any], Any], x: Any) -> Any:
    import torch

    from shiplift.runtime.model.conversion.torch_decompositions import decomposed

    class Function(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return compute(x)

    program = torch.export.export(Function(), (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    return program, decomposed(program)


def test_a_program_is_written_without_them_for_any_number_of_rows() -> None:
    def compute(x: Any) -> Any:
        return torch.logaddexp(x, x.flip(-1)) + x % 0.3 + (x // 0.1).median(-1, keepdim=True).values

    program, plain = exported(compute, torch.randn(2, 6))
    used = {node.target for node in plain.graph.nodes}
    assert not used & set(decompositions())
    x = torch.randn(5, 6)
    assert torch.equal(program.module()(x) > 0, plain.module()(x) > 0)
    assert torch.allclose(program.module()(x), plain.module()(x), atol=1e-5)


def test_a_program_that_has_none_stays_as_it_is() -> None:
    program, plain = exported(
        lambda x: torch.relu(x) // 1 if x.dtype == torch.int64 else torch.relu(x), torch.randn(2, 6)
    )
    assert plain is program
