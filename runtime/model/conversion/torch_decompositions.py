"""Operators of torch that its exporter to ONNX lacks, or writes so that some rows are answered otherwise, as others.

What the exporter writes for `atan2` is wrong where one argument is zero, `logaddexp` overflows at 89, and a quotient
that is rounded down is another one where FP32 rounds it up. Each function here is the operator itself in plain torch:
a line in `DECOMPOSITIONS` makes programs with this operator be exported with the function in its place. A function that
returns NotImplemented leaves the operator to the exporter.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_PAIRS = 2048  # of elements along an axis, all of which are compared with all: more would need too much memory
_LANCZOS = (
    *(0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059),
    *(12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7),
)
_SHIFTED = 8  # recurrences before the series of `digamma` is precise

Decomposition = Callable[..., Any]


def decomposed(program: Any) -> Any:
    """A `torch.export` program without operators that have a line in `DECOMPOSITIONS`; the same one if it has none."""
    used = {node.target for module in program.graph_module.modules() for node in _nodes(module)}
    table = {operator: function for operator, function in DECOMPOSITIONS.items() if operator in used}
    return program.run_decompositions(table) if table else program


def _nodes(module: Any) -> Any:
    return module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ()


def _negative(x: Any) -> Any:
    """Whether a number has a minus sign: -0.0 has one, too."""
    if not isinstance(x, Tensor):
        return math.copysign(1.0, x) < 0
    return (x < 0) | ((x == 0) & (x.reciprocal() < 0)) if x.is_floating_point() else x < 0


def _signbit(x: Tensor) -> Any:
    return _negative(x) if x.is_floating_point() else NotImplemented


def _copysign(x: Tensor, sign: Any) -> Any:
    x = x if x.is_floating_point() else x.float()
    return torch.where(_negative(sign), -x.abs(), x.abs()) if isinstance(sign, Tensor) else _signed(x, sign)


def _signed(x: Tensor, sign: float) -> Tensor:
    return -x.abs() if _negative(sign) else x.abs()


def _atan2(y: Tensor, x: Tensor) -> Tensor:
    y, x = (each if each.is_floating_point() else each.float() for each in (y, x))
    tall, wide = y.abs(), x.abs()
    less, more = torch.minimum(tall, wide), torch.maximum(tall, wide)
    share = torch.where((less == more) & (more != 0), torch.ones_like(less), less / torch.where(more == 0, 1.0, more))
    angle = torch.atan(share)
    angle = torch.where(tall > wide, math.pi / 2 - angle, angle)
    angle = torch.where(_negative(x), math.pi - angle, angle)
    angle = torch.where(_negative(y), -angle, angle)
    return torch.where(torch.isnan(x + y) & ~(torch.isinf(x) & torch.isinf(y)), math.nan, angle)


def _angle(x: Tensor) -> Any:
    if not x.is_complex():
        return NotImplemented
    parts = torch.view_as_real(x)
    return _atan2(parts[..., 1], parts[..., 0])


def _hypot(x: Tensor, y: Tensor) -> Tensor:
    less, more = torch.minimum(x.abs(), y.abs()), torch.maximum(x.abs(), y.abs())
    share = less / torch.where(more == 0, 1.0, more)
    return torch.where(torch.isinf(x) | torch.isinf(y), math.inf, more * torch.sqrt(1 + share * share))


def _fmax(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, torch.maximum(x, y)))


def _fmin(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, torch.minimum(x, y)))


def _log_sigmoid(x: Tensor) -> Tensor:
    return torch.clamp(x, max=0) - torch.log1p(torch.exp(-x.abs()))


def _logaddexp(x: Tensor, y: Tensor) -> Tensor:
    apart = torch.maximum(x, y) + torch.log1p(torch.exp(-(x - y).abs()))
    return torch.where(x == y, x + math.log(2), apart)


def _logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    apart = torch.maximum(x, y) + torch.log2(1 + torch.exp2(-(x - y).abs()))
    return torch.where(x == y, x + 1, apart)


def _earlier(x: Tensor, dim: int, other: float) -> Any:
    """(..., size, size): for each element along an axis, which is last, those up to it, and `other` in place of later.

    NotImplemented: there are too many.
    """
    x = x.movedim(dim, -1)
    size = x.shape[-1]
    if not isinstance(size, int) or size > _PAIRS:
        return NotImplemented
    places = torch.arange(size)
    return torch.where(places[None, :] <= places[:, None], x.unsqueeze(-2), other)


def _logcumsumexp(x: Tensor, dim: int) -> Any:
    parts = _earlier(x, dim, -math.inf) if x.dim() and x.is_floating_point() else NotImplemented
    if parts is NotImplemented:
        return NotImplemented
    most = parts.amax(-1)
    base = torch.where(torch.isinf(most), 0.0, most)
    sums = base + torch.log(torch.exp(parts - base.unsqueeze(-1)).sum(-1))
    return torch.where(torch.isinf(most), most, sums).movedim(-1, dim)


def _cummax(x: Tensor, dim: int) -> Any:
    return _cumulative(x, dim, -1)


def _cummin(x: Tensor, dim: int) -> Any:
    return _cumulative(x, dim, 1)


def _cumulative(x: Tensor, dim: int, sign: int) -> Any:
    """The largest (-1) or smallest (1) elements up to each one, and the last places where these are."""
    if not x.dim():
        return NotImplemented
    end = sign * math.inf if x.is_floating_point() else _end(x, sign)
    parts = _earlier(x, dim, end)
    if parts is NotImplemented:
        return NotImplemented
    best = parts.amin(-1) if sign > 0 else parts.amax(-1)
    places = torch.arange(parts.shape[-1])
    known = (parts == best.unsqueeze(-1)) & (places[None, :] <= places[:, None])
    last = torch.where(known, places, -1).amax(-1)
    return best.movedim(-1, dim), last.movedim(-1, dim)


def _end(x: Tensor, sign: int) -> int:
    ends = torch.iinfo(x.dtype)
    return int(ends.max if sign > 0 else ends.min)


def _cumprod(x: Tensor, dim: int, *, dtype: Any = None) -> Any:
    x = x.to(dtype or (torch.int64 if not x.is_floating_point() else x.dtype))
    parts = _earlier(x, dim, 1) if x.dim() else NotImplemented
    return parts if parts is NotImplemented else parts.prod(-1).movedim(-1, dim)


def _remainder(x: Any, y: Any) -> Any:
    if not _floats(x, y):
        return NotImplemented
    rest = torch.fmod(x if isinstance(x, Tensor) else torch.full_like(y, x), y)
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def _floor_divide(x: Tensor, y: Any) -> Any:
    """As torch does: by the remainder, since a quotient may be rounded up to a whole number that it is below."""
    if not _floats(x, y):
        return NotImplemented
    rest = torch.fmod(x, y)
    quotient = (x - rest) / y
    quotient = torch.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)
    down = torch.floor(quotient)
    down = torch.where(quotient - down > 0.5, down + 1, down)
    by_zero = y == 0 if isinstance(y, Tensor) else torch.full_like(x, y == 0, dtype=torch.bool)
    return torch.where(by_zero, x / y, down)


def _divide(x: Tensor, y: Any, *, rounding_mode: str | None) -> Any:
    return _floor_divide(x, y) if rounding_mode == "floor" else NotImplemented


def _floats(*values: Any) -> bool:
    """Whether they are computed as floats; with several tensors, only if all have one type."""
    tensors = [each for each in values if isinstance(each, Tensor)]
    return all(each.is_floating_point() and each.dtype == tensors[0].dtype for each in tensors)


def _bucketize(x: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    if not isinstance(x, Tensor):
        return NotImplemented
    below = ~(boundaries > x.unsqueeze(-1)) if right else ~(boundaries >= x.unsqueeze(-1))
    return below.sum(-1).to(torch.int32 if out_int32 else torch.int64)


def _searchsorted(
    boundaries: Tensor,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    if not isinstance(x, Tensor) or sorter is not None:
        return NotImplemented
    rows = boundaries if boundaries.dim() == 1 else boundaries.unsqueeze(-2)
    return _bucketize(x, rows, out_int32=out_int32, right=right or side == "right")


def _median(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    size = x.shape[dim] if x.dim() else None
    if not isinstance(size, int):
        return NotImplemented
    value, place = _kthvalue(x, (size + 1) // 2, dim, keepdim=True)
    if x.is_floating_point():
        missing = torch.isnan(x)
        any_missing = missing.any(dim, keepdim=True)
        value = torch.where(any_missing, math.nan, value)
        place = torch.where(any_missing, missing.to(torch.int32).argmax(dim, keepdim=True), place)
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.dim():
        return NotImplemented
    values, places = torch.sort(x, dim=dim, stable=True)
    values, places = (each.narrow(dim, k - 1, 1) for each in (values, places))
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """The smallest of the most frequent elements, and its last place."""
    if not x.dim() or not isinstance(x.shape[dim], int) or x.shape[dim] > _PAIRS:
        return NotImplemented
    x = x.movedim(dim, -1)
    times = (x.unsqueeze(-1) == x.unsqueeze(-2)).sum(-1)
    none = math.inf if x.is_floating_point() else _end(x, 1)
    value = torch.where(times == times.amax(-1, keepdim=True), x, none).amin(-1, keepdim=True)
    place = torch.where(x == value, torch.arange(x.shape[-1]), -1).amax(-1, keepdim=True)
    value, place = (each.movedim(-1, dim) for each in (value, place))
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def _cdist(x: Tensor, y: Tensor, p: float, _: int | None = None) -> Tensor:
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


def _erfinv(x: Tensor) -> Tensor:
    """As torch does: a quotient of polynomials, made precise by two steps of Newton."""
    x = x if x.is_floating_point() else x.float()
    square = x * x
    middle = x * _polynomial(square, 0.886226899, -1.645349621, 0.914624893, -0.140543331)
    middle = middle / _polynomial(square, 1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801)
    root = torch.sqrt(-torch.log((1 - x.abs()) / 2))
    outer = _polynomial(root, -1.970840454, -1.624906493, 3.429567803, 1.641345311)
    outer = torch.where(x < 0, -1.0, 1.0) * outer / _polynomial(root, 1.0, 3.543889200, 1.637067800)
    found = torch.where(x.abs() <= 0.7, middle, outer)
    for _ in range(2):
        found = found - (torch.erf(found) - x) / (2 / math.sqrt(math.pi) * torch.exp(-found * found))
    return torch.where(x.abs() == 1, x * math.inf, found)


def _polynomial(x: Tensor, *factors: float) -> Tensor:
    value = torch.full_like(x, factors[-1])
    for factor in factors[-2::-1]:
        value = value * x + factor
    return value


def _lgamma(x: Tensor) -> Tensor:
    """By Lanczos, in FP64; the reflection answers for what is below a half."""
    wide = x.double()
    low = wide < 0.5
    up = torch.where(low, 1 - wide, wide) - 1
    base = up + len(_LANCZOS) - 1.5
    series = torch.full_like(up, _LANCZOS[0])
    for at, factor in enumerate(_LANCZOS[1:], 1):
        series = series + factor / (up + at)
    above = 0.5 * math.log(2 * math.pi) + (up + 0.5) * torch.log(base) - base + torch.log(series)
    sine = torch.sin(math.pi * (wide - torch.floor(wide))).abs()
    below = math.log(math.pi) - torch.log(sine) - above
    pole = (wide <= 0) & (wide == torch.floor(wide))
    found = torch.where(pole | torch.isinf(wide), math.inf, torch.where(low, below, above))
    return found.to(x.dtype if x.is_floating_point() else torch.float32)


def _digamma(x: Tensor) -> Tensor:
    """By its series, in FP64; the reflection answers for what is negative."""
    wide = x.double()
    low = wide < 0
    up = torch.where(low, 1 - wide, wide)
    sums = torch.zeros_like(up)
    for _ in range(_SHIFTED):
        sums, up = sums - 1 / up, up + 1
    inverse = 1 / (up * up)
    series = _polynomial(inverse, 0.0, 1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132)
    above = sums + torch.log(up) - 0.5 / up - series
    share = math.pi * (wide - torch.floor(wide))
    below = above - math.pi * torch.cos(share) / torch.sin(share)
    found = torch.where(low, below, above)
    found = torch.where(low & (wide == torch.floor(wide)), math.nan, found)
    return found.to(x.dtype if x.is_floating_point() else torch.float32)


def _stft(  # noqa: PLR0913, PLR0917 - as the operator is
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    """Frames times cosines and sines. What ONNX Runtime computes for it is off by more, where torch gives zero."""
    if x.is_complex() or align_to_window or onesided is False or n_fft > _PAIRS or not x.is_floating_point():
        return NotImplemented
    rows = x if x.dim() > 1 else x.unsqueeze(0)
    if center:
        padded = torch.nn.functional.pad(rows.unsqueeze(1), (n_fft // 2, n_fft // 2), mode=pad_mode)
        rows = padded.squeeze(1)
    frames = rows.unfold(-1, n_fft, hop_length or n_fft // 4)
    size = win_length or n_fft
    weights = torch.ones(size, dtype=x.dtype) if window is None else window
    if size < n_fft:
        left = (n_fft - size) // 2
        weights = torch.nn.functional.pad(weights, (left, n_fft - size - left))
    turns = torch.arange(n_fft).unsqueeze(1) * torch.arange(n_fft // 2 + 1) % n_fft
    angles = turns.double() * (2 * math.pi / n_fft)
    scale = 1 / math.sqrt(n_fft) if normalized else 1.0
    weighted = frames * weights
    parts = [weighted @ (scale * wave).to(x.dtype) for wave in (torch.cos(angles), -torch.sin(angles))]
    pairs = torch.stack(parts, -1).transpose(1, 2)
    pairs = pairs if x.dim() > 1 else pairs.squeeze(0)
    return torch.view_as_complex(pairs.contiguous()) if return_complex else pairs


def _stft_plain(  # noqa: PLR0913, PLR0917 - as the operator is
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    return _stft(
        x,
        n_fft,
        hop_length,
        win_length,
        window,
        center=False,
        normalized=normalized,
        onesided=onesided,
        return_complex=return_complex,
        align_to_window=align_to_window,
    )


_aten = torch.ops.aten
DECOMPOSITIONS: Mapping[Any, Decomposition] = {
    _aten.angle.default: _angle,
    _aten.atan2.default: _atan2,
    _aten.bucketize.Tensor: _bucketize,
    _aten.cdist.default: _cdist,
    _aten.copysign.Scalar: _copysign,
    _aten.copysign.Tensor: _copysign,
    _aten.cummax.default: _cummax,
    _aten.cummin.default: _cummin,
    _aten.cumprod.default: _cumprod,
    _aten.digamma.default: _digamma,
    _aten.div.Scalar_mode: _divide,
    _aten.div.Tensor_mode: _divide,
    _aten.erfinv.default: _erfinv,
    _aten.fmax.default: _fmax,
    _aten.fmin.default: _fmin,
    _aten.floor_divide.Scalar: _floor_divide,
    _aten.floor_divide.default: _floor_divide,
    _aten.hypot.default: _hypot,
    _aten.kthvalue.default: _kthvalue,
    _aten.lgamma.default: _lgamma,
    _aten.log_sigmoid.default: _log_sigmoid,
    _aten.logaddexp.default: _logaddexp,
    _aten.logaddexp2.default: _logaddexp2,
    _aten.logcumsumexp.default: _logcumsumexp,
    _aten.median.dim: _median,
    _aten.mode.default: _mode,
    _aten.remainder.Scalar: _remainder,
    _aten.remainder.Scalar_Tensor: _remainder,
    _aten.remainder.Tensor: _remainder,
    _aten.searchsorted.Tensor: _searchsorted,
    _aten.signbit.default: _signbit,
    _aten.stft.center: _stft,
    _aten.stft.default: _stft_plain,
}
