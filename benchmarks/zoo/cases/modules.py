"""Small PyTorch modules by families of operators: each asked rows that its export did not ask."""

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.zoo.case import Case, Logged
from shiplift.runtime.model.tensors import Arrays

ROWS, _EXAMPLE = 100, 3

Kind = Literal["module", "scripted", "traced"]
Rows = Callable[[np.random.Generator, int], NDArray[Any]]
Functions = Iterator[tuple[str, Callable[[Any], Any], Rows]]
Layers = Iterator[tuple[str, Callable[[], Any], Rows]]


def _normal(*shape: int) -> Rows:
    return lambda rng, rows: rng.normal(size=(rows, *shape)).astype(np.float32)


def _positive(*shape: int) -> Rows:
    return lambda rng, rows: rng.uniform(0.1, 3, (rows, *shape)).astype(np.float32)


def _within(*shape: int) -> Rows:
    return lambda rng, rows: rng.uniform(-0.95, 0.95, (rows, *shape)).astype(np.float32)


def _whole(*shape: int, most: int = 50, least: int = 0) -> Rows:
    return lambda rng, rows: rng.integers(least, most, (rows, *shape))


def _tied(*shape: int) -> Rows:
    return lambda rng, rows: rng.integers(-2, 3, (rows, *shape)).astype(np.float32)


_TABLE, _PLANE, _SOUND, _STEPS = _normal(6), _normal(3, 8, 8), _normal(256), _normal(7, 8)


def _function(compute: Callable[[Any], Any]) -> Any:
    import torch

    class Function(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return compute(x)

    return Function()


def _built(build: Callable[[], Any], then: Callable[[Any, Any], Any]) -> Any:
    """A module around another one, called as `then` says."""
    import torch

    class Around(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = build()

        def forward(self, x: Any) -> Any:
            return then(self.inner, x)

    return Around()


def _noise(module: Any, x: Any, right: NDArray[Any]) -> Arrays:
    """How far off FP32 is in each column, where the module computes in FP64, too."""
    import torch

    if right.dtype != np.float32:
        return {}
    try:
        with torch.inference_mode():
            precise = copy.deepcopy(module).double()(torch.from_numpy(x).double()).numpy()
    except (RuntimeError, TypeError):  # it names its types
        return {}
    off = np.abs(precise - right).reshape(len(x), -1).max(axis=0)
    return {"": off} if np.isfinite(off).all() else {}


def _logged(make: Callable[[], Any], rows: Rows, kind: Kind, _: Path) -> Logged:
    import mlflow
    import torch
    from mlflow.models import infer_signature

    torch.manual_seed(0)
    x, example = rows(np.random.default_rng(1), ROWS), rows(np.random.default_rng(0), _EXAMPLE)
    module = make().eval()
    if kind == "traced":
        module = torch.jit.trace(module, torch.from_numpy(example), check_trace=False)
    if kind == "scripted":
        module = torch.jit.script(module)
    with torch.inference_mode():
        answer = module(torch.from_numpy(example))
        right = module(torch.from_numpy(x))
    several = not torch.is_tensor(right)
    outputs: Any = {f"o{at}": one.numpy() for at, one in enumerate(answer)} if several else answer.numpy()
    options: dict[str, Any] = {} if kind == "module" else {"serialization_format": "pickle"}
    options |= {"signature": infer_signature(example, outputs), "input_example": example, "pip_requirements": []}
    original: Arrays | None = {f"o{at}": one.numpy() for at, one in enumerate(right)} if several else None
    return Logged(
        log=lambda **more: mlflow.pytorch.log_model(module, **options, **more),
        save=lambda **more: mlflow.pytorch.save_model(module, **options, **more),
        question=x,
        original=original,
        noise={} if several else _noise(module, x, right.numpy()),
        inputs={"input": x},
    )


def _with_beside(compute: Callable[[Any, Any], Any], apart: float, x: Any) -> Any:
    """Of each element and the one at the other end."""
    return compute(x, x.flip(-1) + apart if apart else x.flip(-1))  # -0.0 + 0.0 would be 0.0, which engines leave out


def _reduced(compute: Callable[..., Any], x: Any) -> Any:
    return compute(x, -1, keepdim=True)


def _values(compute: Callable[..., Any], x: Any) -> Any:
    return compute(x, -1).values


def _places(compute: Callable[..., Any], x: Any) -> Any:
    return compute(x, -1).indices


def _beyond_one(*shape: int) -> Rows:
    return lambda rng, rows: _positive(*shape)(rng, rows) + np.float32(1)


def _elementwise() -> Functions:
    import torch

    for name in (
        *(
            "sin",
            "cos",
            "tan",
            "sinh",
            "cosh",
            "tanh",
            "asinh",
            "exp",
            "exp2",
            "expm1",
            "sigmoid",
            "erf",
            "erfc",
            "abs",
        ),
        *("ceil", "floor", "round", "trunc", "frac", "sign", "sgn", "sinc", "square", "neg", "reciprocal", "atan"),
        *("deg2rad", "rad2deg", "isnan", "isfinite", "signbit", "logical_not", "positive", "digamma", "i0"),
    ):
        yield name, getattr(torch, name), _TABLE
    for name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "lgamma", "acosh"):
        yield name, getattr(torch, name), _beyond_one(6)
    for name in ("asin", "acos", "atanh", "erfinv"):
        yield name, getattr(torch, name), _within(6)
    yield "ndtri", lambda x: torch.special.ndtri((x + 1) / 2), _within(6)
    yield "logit", lambda x: torch.logit((x + 1) / 2), _within(6)
    for name in ("atan2", "logaddexp", "logaddexp2", "hypot", "fmod", "remainder", "floor_divide", "maximum", "fmax"):
        yield name, partial(_with_beside, getattr(torch, name), 0.3), _TABLE
    for name in (
        "minimum",
        "fmin",
        "copysign",
        "heaviside",
        "nextafter",
        "xlogy",
        "float_power",
        "true_divide",
        "ldexp",
    ):
        yield name, partial(_with_beside, getattr(torch, name), 0.0), _TABLE
    yield "remainder-of-tenths", lambda x: torch.remainder((x * 30).round() * 0.1, 0.1), _TABLE
    yield "floor-divide-tenths", lambda x: ((x * 30).round() * 0.1) // 0.1, _TABLE
    yield "trunc-division", lambda x: torch.div(x, x.flip(-1) + 0.3, rounding_mode="trunc"), _TABLE
    yield "pow", lambda x: torch.pow(x.abs() + 0.1, x.flip(-1)), _TABLE
    yield "clamp", lambda x: torch.clamp(x, -0.5, 0.7), _TABLE
    yield "lerp", lambda x: torch.lerp(x, x.flip(-1), 0.3), _TABLE
    yield "where", lambda x: torch.where(x > 0, x, x.flip(-1)), _TABLE
    yield "nan-to-num", lambda x: torch.nan_to_num(x / (x > 0)), _TABLE
    yield "bucketize", lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 0.5, 2.0])), _TABLE
    yield "bucketize-right", lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0, 2.0]), right=True), _tied(6)
    yield "searchsorted", lambda x: torch.searchsorted(x.sort(-1).values.contiguous(), x), _TABLE
    yield "round-decimals", lambda x: torch.round(x, decimals=2), _TABLE
    yield "polar", lambda x: torch.view_as_real(torch.polar(x.abs(), x.flip(-1))), _TABLE
    yield "complex-abs", lambda x: torch.complex(x, x.flip(-1)).abs(), _TABLE
    yield "complex-angle", lambda x: torch.complex(x, x.flip(-1)).angle(), _TABLE


def _activations() -> Functions:
    from torch.nn import functional

    for name in (
        "elu",
        "gelu",
        "selu",
        "celu",
        "softplus",
        "softsign",
        "mish",
        "silu",
        "hardswish",
        "hardtanh",
        "relu6",
    ):
        yield name, getattr(functional, name), _TABLE
    for name in ("logsigmoid", "hardsigmoid", "tanhshrink", "softshrink", "hardshrink", "leaky_relu", "glu"):
        yield name, getattr(functional, name), _TABLE
    yield "gelu-tanh", lambda x: functional.gelu(x, approximate="tanh"), _TABLE
    yield "threshold", lambda x: functional.threshold(x, 0.1, 20.0), _TABLE
    yield "log-softmax", lambda x: functional.log_softmax(x * 30, -1), _TABLE
    yield "softmin", lambda x: functional.softmin(x, -1), _TABLE


def _integers() -> Functions:
    import torch

    signed = _whole(6, most=50, least=-50)
    yield "int-floor-divide", lambda x: x // 7, signed
    yield "int-floor-divide-tensors", lambda x: torch.floor_divide(x, x.flip(-1).abs() + 1), signed
    yield "int-trunc", lambda x: torch.div(x, -7, rounding_mode="trunc"), signed
    yield "int-divide", lambda x: x / 7, signed
    yield "int-remainder", lambda x: x % 7, signed
    yield "int-remainder-negative", lambda x: torch.remainder(x, -7), signed
    yield "int-fmod", lambda x: torch.fmod(x, 7), signed
    yield "shift-left", lambda x: x << 3, signed
    yield "shift-right", lambda x: x >> 2, signed
    yield "and", lambda x: x & 12, signed
    yield "or", lambda x: x | 5, signed
    yield "xor", lambda x: x ^ x.flip(-1), signed
    yield "not", lambda x: ~x, signed
    yield "gcd", lambda x: torch.gcd(x, x.flip(-1)), signed
    yield "int-pow", lambda x: x**3, signed
    yield "int-mean", lambda x: x.float().mean(-1, keepdim=True), signed
    yield "int-cumsum", lambda x: x.cumsum(-1), signed
    yield "int-prod", lambda x: x.prod(-1, keepdim=True), signed
    yield "int-argsort", lambda x: torch.argsort(x, dim=-1, stable=True), signed
    yield "int-abs-clamp", lambda x: x.abs().clamp(max=9), signed
    yield "int32", lambda x: (x.int() * 70_000_000).long(), signed
    yield "int8-wraps", lambda x: (x * 11).to(torch.int8).int(), signed
    yield "uint8-wraps", lambda x: x.to(torch.uint8).int(), signed
    yield "one-hot", lambda x: torch.nn.functional.one_hot(x, 50).float(), _whole(6)
    yield "bincount-like", lambda x: torch.zeros(x.shape[0], 50).scatter_add(1, x, torch.ones(x.shape)), _whole(6)
    yield "float-to-int", lambda x: (x * 3).long(), _TABLE
    yield "float-to-bool", lambda x: x.bool().float(), _tied(6)
    yield "half", lambda x: x.half().float(), _TABLE
    yield "bfloat", lambda x: x.bfloat16().float(), _TABLE
    yield "double", lambda x: (x.double() * 1e-9 + 1.0).sqrt(), _TABLE
    yield "bool-out", lambda x: x > 0, _TABLE
    yield "bool-any", lambda x: (x > 1).any(-1, keepdim=True), _TABLE
    yield "bool-xor", lambda x: torch.logical_xor(x > 0, x.flip(-1) > 0), _TABLE


def _reductions() -> Functions:
    import torch

    for name in (
        "sum",
        "mean",
        "var",
        "std",
        "prod",
        "amax",
        "amin",
        "argmax",
        "argmin",
        "logsumexp",
        "norm",
        "nansum",
    ):
        yield name, partial(_reduced, getattr(torch, name)), _TABLE
    for name in ("max", "min", "median", "mode", "nanmedian"):
        yield name, partial(_values, getattr(torch, name)), _STEPS
        yield f"{name}-places", partial(_places, getattr(torch, name)), _STEPS
    yield "mode-tied", lambda x: torch.mode(x, -1).values, _tied(4, 7)
    yield "median-tied", lambda x: torch.median(x, -1).values, _tied(4, 7)
    yield "argmax-tied", lambda x: torch.argmax(x, -1), _tied(4, 7)
    yield "kthvalue", lambda x: torch.kthvalue(x, 3, -1).values, _STEPS
    yield "quantile", lambda x: torch.quantile(x, 0.3, -1), _STEPS
    yield "aminmax", lambda x: torch.stack(torch.aminmax(x, dim=-1), -1), _STEPS
    yield "var-biased", lambda x: torch.var(x, -1, correction=0), _STEPS
    yield "norm-1", lambda x: torch.linalg.vector_norm(x, 1, -1), _STEPS
    yield "norm-3", lambda x: torch.linalg.vector_norm(x, 3, -1), _STEPS
    yield "norm-inf", lambda x: torch.linalg.vector_norm(x, float("inf"), -1), _STEPS
    yield "norm-0", lambda x: torch.linalg.vector_norm(x, 0, -1), _tied(4, 7)
    yield "norm-frobenius", torch.linalg.matrix_norm, _STEPS
    yield "cumsum", lambda x: torch.cumsum(x, -1), _STEPS
    yield "cumprod", lambda x: torch.cumprod(x, -1), _STEPS
    yield "cummax", lambda x: torch.cummax(x, -1).values, _STEPS
    yield "cummin", lambda x: torch.cummin(x, 1).values, _STEPS
    yield "logcumsumexp", lambda x: torch.logcumsumexp(x, -1), _STEPS
    yield "count-nonzero", lambda x: torch.count_nonzero(x, -1), _tied(4, 7)
    yield "all", lambda x: (x > -1).all(-1), _STEPS
    yield "diff", lambda x: torch.diff(x, dim=-1), _STEPS
    yield "trapezoid", lambda x: torch.trapezoid(x, dim=-1), _STEPS
    yield "cdist", lambda x: torch.cdist(x, x.flip(1)), _STEPS
    yield "cosine", lambda x: torch.cosine_similarity(x, x.flip(-1), -1), _STEPS
    yield "pairwise", lambda x: torch.nn.functional.pairwise_distance(x, x.flip(-1)), _TABLE
    yield "normalize", lambda x: torch.nn.functional.normalize(x, dim=-1), _STEPS
    yield "cov", lambda x: (x - x.mean(1, keepdim=True)).transpose(1, 2) @ (x - x.mean(1, keepdim=True)), _STEPS
    yield "det", lambda x: torch.linalg.det(x[:, :3, :3]), _STEPS
    yield "inverse", lambda x: torch.linalg.inv(x[:, :3, :3] + 4 * torch.eye(3)), _STEPS
    yield "solve", lambda x: torch.linalg.solve(x[:, :3, :3] + 4 * torch.eye(3), x[:, :3, 3:4]), _STEPS
    yield "cholesky", lambda x: torch.linalg.cholesky(x @ x.transpose(1, 2) + 4 * torch.eye(7)), _STEPS
    yield "matrix-exp", lambda x: torch.matrix_exp(x[:, :3, :3]), _STEPS
    yield "eigenvalues", lambda x: torch.linalg.eigvalsh(x @ x.transpose(1, 2)), _STEPS
    yield "singular-values", torch.linalg.svdvals, _STEPS
    yield "qr", lambda x: torch.linalg.qr(x)[1].abs(), _STEPS
    yield "cross", lambda x: torch.linalg.cross(x[:, :3], x[:, 3:]), _TABLE
    yield "trace", lambda x: x[:, :7, :7].diagonal(dim1=1, dim2=2).sum(-1), _STEPS
    yield "einsum", lambda x: torch.einsum("bij,bkj->bik", x, x), _STEPS
    yield "einsum-outer", lambda x: torch.einsum("bi,bj->bij", x, x), _TABLE
    yield "tensordot", lambda x: torch.tensordot(x, torch.arange(24.0).reshape(8, 3), dims=([2], [0])), _STEPS
    yield "baddbmm", lambda x: torch.baddbmm(x @ x.transpose(1, 2), x, x.transpose(1, 2), beta=0.5, alpha=2), _STEPS


def _indexing() -> Functions:
    import torch

    def scattered(x: Any) -> Any:
        return torch.zeros_like(x).scatter(1, x.argsort(1), x)

    yield "gather", lambda x: torch.gather(x, 1, x.argsort(1)), _TABLE
    yield "gather-2d", lambda x: torch.gather(x, 2, x.argsort(2)), _STEPS
    yield "scatter", scattered, _TABLE
    yield "scatter-add", lambda x: torch.zeros_like(x).scatter_add(1, x.argsort(1) // 2, x), _TABLE
    for reduce in ("sum", "mean", "amax", "amin", "prod"):
        yield (
            f"scatter-{reduce}",
            partial(
                lambda reduce, x: torch.ones_like(x).scatter_reduce(1, x.argsort(1) // 2, x, reduce=reduce), reduce
            ),
            _TABLE,
        )
    yield "index-select", lambda x: torch.index_select(x, 1, torch.tensor([3, 0, 0, 5])), _TABLE
    yield "index-add", lambda x: x.index_add(1, torch.tensor([0, 2, 2]), x[:, 3:]), _TABLE
    yield "index-copy", lambda x: x.index_copy(1, torch.tensor([0, 2]), x[:, 4:]), _TABLE
    yield "index-fill", lambda x: x.index_fill(1, torch.tensor([0, 2]), 9.0), _TABLE
    yield "index-put", lambda x: x.clone().index_put((torch.arange(x.shape[0]), x.argmax(1)), torch.tensor(7.0)), _TABLE
    yield "advanced", lambda x: x[torch.arange(x.shape[0]), x.argmax(1)], _TABLE
    yield "advanced-two", lambda x: x[:, torch.tensor([0, 2]), torch.tensor([1, 3])], _STEPS
    yield "negative-step", lambda x: x[:, ::2].flip(1), _TABLE
    yield "assigned", lambda x: torch.cat([x[:, :2] * 0, x[:, 2:]], 1), _TABLE
    yield "masked-fill", lambda x: x.masked_fill(x < 0, -9.0), _TABLE
    yield "masked-scatter", lambda x: x.masked_scatter(x > 0, x.abs() + 1), _TABLE
    yield "masked-select-sum", lambda x: torch.where(x > 0, x, 0).sum(1), _TABLE
    yield "topk", lambda x: torch.topk(x, 3).values, _TABLE
    yield "topk-places", lambda x: torch.topk(x, 3).indices, _TABLE
    yield "topk-smallest", lambda x: torch.topk(x, 3, largest=False).values, _TABLE
    yield "topk-tied-places", lambda x: torch.topk(x, 3).indices, _tied(6)
    yield "sort", lambda x: torch.sort(x, -1, descending=True).values, _TABLE
    yield "argsort", lambda x: torch.argsort(x, -1), _TABLE
    yield "argsort-tied", lambda x: torch.argsort(x, dim=-1, stable=True), _tied(6)
    yield "argsort-tied-down", lambda x: torch.argsort(x, dim=-1, descending=True, stable=True), _tied(6)
    yield "unique-count", lambda x: (x.sort(1).values.diff(dim=1) != 0).sum(1) + 1, _tied(6)
    yield "take-along", lambda x: torch.take_along_dim(x, x.argmax(1, keepdim=True), 1), _TABLE
    yield "roll", lambda x: torch.roll(x, 2, 1), _TABLE
    yield "roll-two", lambda x: torch.roll(x, (1, -2), (1, 2)), _STEPS
    yield "tril", torch.tril, _STEPS
    yield "triu", lambda x: torch.triu(x, 1), _STEPS
    yield "diag-embed", torch.diag_embed, _TABLE
    yield "repeat-interleave", lambda x: x.repeat_interleave(2, 1), _TABLE
    yield "repeat-by-list", lambda x: x.repeat_interleave(torch.tensor([1, 2, 0, 1, 1, 3]), 1), _TABLE
    yield "unfold-window", lambda x: x.unfold(1, 3, 1).mean(-1), _TABLE
    yield "chunk", lambda x: torch.cat(x.chunk(3, 1)[::-1], 1), _TABLE
    yield (
        "meshgrid",
        lambda x: x.unsqueeze(-1) + torch.stack(torch.meshgrid(torch.arange(6.0), torch.arange(3.0), indexing="ij"))[0],
        _TABLE,
    )
    yield "rot90", lambda x: torch.rot90(x, 1, (1, 2)), _STEPS
    yield "pixel-shuffle", lambda x: torch.nn.functional.pixel_shuffle(x, 2), _normal(4, 5, 5)
    yield "pixel-unshuffle", lambda x: torch.nn.functional.pixel_unshuffle(x, 2), _normal(3, 8, 8)
    yield "channel-shuffle", lambda x: torch.nn.functional.channel_shuffle(x, 2), _normal(4, 5, 5)
    yield "combinations", lambda x: torch.stack([x[:, a] * x[:, b] for a in range(6) for b in range(a)], 1), _TABLE
    yield "vander", lambda x: torch.stack([x**n for n in range(4)], -1), _TABLE
    yield "nonzero-first", lambda x: (x > 0).int().argmax(1), _TABLE
    yield "two-outputs", lambda x: (x.sum(1), x.argmax(1)), _TABLE


def _spatial() -> Functions:
    import torch
    from torch.nn import functional

    for mode in ("reflect", "replicate", "circular", "constant"):
        yield f"pad-{mode}", partial(lambda mode, x: functional.pad(x, (1, 2, 2, 0), mode=mode), mode), _PLANE
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area"):
        yield (
            f"up-{mode}",
            partial(lambda mode, x: functional.interpolate(x, scale_factor=1.7, mode=mode), mode),
            _PLANE,
        )
        yield f"down-{mode}", partial(lambda mode, x: functional.interpolate(x, size=(5, 3), mode=mode), mode), _PLANE
    for mode in ("bilinear", "bicubic"):
        yield (
            f"up-{mode}-corners",
            partial(lambda mode, x: functional.interpolate(x, size=(13, 11), mode=mode, align_corners=True), mode),
            _PLANE,
        )
        yield (
            f"down-{mode}-antialias",
            partial(lambda mode, x: functional.interpolate(x, size=(5, 3), mode=mode, antialias=True), mode),
            _PLANE,
        )
    yield "up-linear", lambda x: functional.interpolate(x, scale_factor=2.5, mode="linear"), _STEPS
    yield "up-trilinear", lambda x: functional.interpolate(x, scale_factor=2, mode="trilinear"), _normal(2, 3, 4, 4)
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            yield (
                f"grid-{mode}-{padding}",
                partial(
                    lambda mode, padding, x: functional.grid_sample(
                        x, x[:, :2].permute(0, 2, 3, 1), mode=mode, padding_mode=padding, align_corners=False
                    ),
                    mode,
                    padding,
                ),
                _PLANE,
            )
    yield (
        "affine-grid",
        lambda x: functional.grid_sample(
            x,
            functional.affine_grid(
                torch.tensor([[[0.8, 0.1, 0.0], [-0.1, 0.9, 0.2]]]).expand(x.shape[0], 2, 3),
                [x.shape[0], 3, 6, 6],
                align_corners=False,
            ),
            align_corners=False,
        ),
        _PLANE,
    )
    for ceil in (True, False):
        name = "-ceil" if ceil else ""
        yield f"max-pool{name}", partial(lambda ceil, x: functional.max_pool2d(x, 3, 2, ceil_mode=ceil), ceil), _PLANE
        yield (
            f"max-pool-padded{name}",
            partial(lambda ceil, x: functional.max_pool2d(x, 3, 2, 1, ceil_mode=ceil), ceil),
            _PLANE,
        )
        yield f"avg-pool{name}", partial(lambda ceil, x: functional.avg_pool2d(x, 3, 2, ceil_mode=ceil), ceil), _PLANE
        yield (
            f"avg-pool-padded{name}",
            partial(lambda ceil, x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=ceil), ceil),
            _PLANE,
        )
        yield (
            f"avg-pool-uncounted{name}",
            partial(lambda ceil, x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=ceil, count_include_pad=False), ceil),
            _PLANE,
        )
    yield "avg-pool-divisor", lambda x: functional.avg_pool2d(x, 2, divisor_override=3), _PLANE
    yield "avg-pool-1d", lambda x: functional.avg_pool1d(x, 3, 2, 1, ceil_mode=True), _STEPS
    yield "max-pool-dilated", lambda x: functional.max_pool2d(x, 2, 1, dilation=2), _PLANE
    yield "max-pool-places", lambda x: functional.max_pool2d(x, 2, return_indices=True)[1], _PLANE
    yield "max-unpool", lambda x: functional.max_unpool2d(*functional.max_pool2d(x, 2, return_indices=True), 2), _PLANE
    yield "lp-pool", lambda x: functional.lp_pool2d(x, 2, 2), _PLANE
    yield "adaptive-avg", lambda x: functional.adaptive_avg_pool2d(x, (3, 5)), _PLANE
    yield "adaptive-avg-even", lambda x: functional.adaptive_avg_pool2d(x, 4), _PLANE
    yield "adaptive-max", lambda x: functional.adaptive_max_pool2d(x, (3, 5)), _PLANE
    yield "adaptive-max-1", lambda x: functional.adaptive_max_pool2d(x, 1), _PLANE
    yield "im2col", lambda x: functional.unfold(x, 3, padding=1, stride=2), _PLANE
    yield "col2im", lambda x: functional.fold(functional.unfold(x, 2, stride=2), (8, 8), 2, stride=2), _PLANE
    yield "local-response", lambda x: functional.local_response_norm(x, 3), _PLANE


def _spectral() -> Functions:
    import torch

    def stft(x: Any, **options: Any) -> Any:
        window = torch.hann_window(64)
        return torch.stft(x, 64, 16, window=window, return_complex=True, **options)

    yield "stft-real", lambda x: torch.view_as_real(stft(x)), _SOUND
    yield "stft-abs", lambda x: stft(x).abs(), _SOUND
    yield "stft-power", lambda x: stft(x, center=False).abs() ** 2, _SOUND
    yield "stft-normalized", lambda x: torch.view_as_real(stft(x, normalized=True)), _SOUND
    yield "stft-angle", lambda x: stft(x).angle().cos(), _SOUND
    yield "mel", lambda x: (torch.arange(99.0).reshape(3, 33) / 99 @ stft(x).abs()).clamp(1e-5).log(), _SOUND
    yield "fft", lambda x: torch.view_as_real(torch.fft.fft(x)), _SOUND
    yield "rfft", lambda x: torch.fft.rfft(x).abs(), _SOUND
    yield "rfft-odd", lambda x: torch.view_as_real(torch.fft.rfft(x, n=100)), _SOUND
    yield "irfft", lambda x: torch.fft.irfft(torch.fft.rfft(x)[:, :20]), _SOUND
    yield "filtered", lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.linspace(1, 0, 129), n=256), _SOUND
    yield "ifft-real", lambda x: torch.fft.ifft(torch.fft.fft(x)).real, _SOUND
    yield "fft2", lambda x: torch.fft.fft2(x).abs(), _PLANE
    yield "fftshift", lambda x: torch.fft.fftshift(torch.fft.fft(x).abs(), dim=-1), _SOUND
    yield "fnet", lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real, _STEPS
    yield "istft", lambda x: torch.istft(stft(x), 64, 16, window=torch.hann_window(64), length=256), _SOUND


def _sequences() -> Layers:
    import torch
    from torch import nn

    def first(inner: Any, x: Any) -> Any:
        return inner(x)[0]

    def last_state(inner: Any, x: Any) -> Any:
        state = inner(x)[1]
        return (state[0] if isinstance(state, tuple) else state)[-1]

    def itself(inner: Any, x: Any) -> Any:
        return inner(x, x, x)[0]

    for name in ("GRU", "LSTM", "RNN"):
        layer = getattr(nn, name)
        yield name.lower(), partial(_built, partial(lambda layer: layer(8, 5, batch_first=True), layer), first), _STEPS
        yield (
            f"{name.lower()}-bidirectional",
            partial(_built, partial(lambda layer: layer(8, 5, 2, batch_first=True, bidirectional=True), layer), first),
            _STEPS,
        )
        yield (
            f"{name.lower()}-last-state",
            partial(
                _built,
                partial(lambda layer: layer(8, 5, batch_first=True), layer),
                last_state,
            ),
            _STEPS,
        )
    yield "lstm-projected", partial(_built, lambda: nn.LSTM(8, 5, batch_first=True, proj_size=3), first), _STEPS
    yield "rnn-relu", partial(_built, lambda: nn.RNN(8, 5, batch_first=True, nonlinearity="relu"), first), _STEPS
    yield "gru-cell", partial(_built, lambda: nn.GRUCell(6, 4), lambda inner, x: inner(x, x[:, :4])), _TABLE
    yield "lstm-cell", partial(_built, lambda: nn.LSTMCell(6, 4), first), _TABLE
    yield "attention", partial(_built, lambda: nn.MultiheadAttention(8, 2, batch_first=True), itself), _STEPS
    yield (
        "attention-weights",
        partial(
            _built,
            lambda: nn.MultiheadAttention(8, 2, batch_first=True),
            lambda inner, x: inner(x, x, x, average_attn_weights=False)[1],
        ),
        _STEPS,
    )
    yield (
        "attention-causal",
        partial(
            _built,
            lambda: nn.MultiheadAttention(8, 2, batch_first=True),
            lambda inner, x: inner(x, x, x, attn_mask=torch.triu(torch.ones(7, 7), 1).bool(), need_weights=False)[0],
        ),
        _STEPS,
    )
    yield (
        "attention-padded",
        partial(
            _built,
            lambda: nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True),
            lambda inner, x: inner(x, x, x, key_padding_mask=x[:, :, 0] > 1)[0],
        ),
        _STEPS,
    )
    yield (
        "sdpa-causal",
        lambda: _function(lambda x: nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)),
        _normal(2, 7, 4),
    )
    for activation in ("relu", "gelu"):
        for norm_first in (True, False):
            yield (
                f"encoder-{activation}{'-first' if norm_first else ''}",
                partial(
                    lambda activation, norm_first: nn.TransformerEncoder(
                        nn.TransformerEncoderLayer(
                            8, 2, 16, activation=activation, batch_first=True, norm_first=norm_first
                        ),
                        2,
                        enable_nested_tensor=False,
                    ),
                    activation,
                    norm_first,
                ),
                _STEPS,
            )
    yield (
        "decoder",
        partial(
            _built,
            lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True),
            lambda inner, x: inner(x, x.flip(1)),
        ),
        _STEPS,
    )


def _layers() -> Layers:
    from torch import nn

    for mode in ("zeros", "reflect", "replicate", "circular"):
        yield f"conv-{mode}", partial(lambda mode: nn.Conv2d(3, 4, 3, padding=2, padding_mode=mode), mode), _PLANE
    yield "conv-same-even", lambda: nn.Conv2d(3, 4, 4, padding="same"), _PLANE
    yield "conv-dilated", lambda: nn.Conv2d(3, 4, 3, dilation=2, stride=2), _PLANE
    yield "conv-depthwise", lambda: nn.Conv2d(3, 6, 3, groups=3), _PLANE
    yield "conv-1d", lambda: nn.Conv1d(7, 4, 3, padding="same"), _STEPS
    yield "conv-3d", lambda: nn.Conv3d(2, 3, 2), _normal(2, 4, 4, 4)
    yield "conv-transposed", lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), _PLANE
    yield "conv-transposed-1d", lambda: nn.ConvTranspose1d(7, 4, 3, stride=2, dilation=2), _STEPS
    yield "conv-transposed-groups", lambda: nn.ConvTranspose2d(3, 6, 3, groups=3), _PLANE
    yield "batch-norm", lambda: nn.BatchNorm2d(3), _PLANE
    yield "layer-norm", lambda: nn.LayerNorm(8), _STEPS
    yield "layer-norm-two", lambda: nn.LayerNorm((7, 8)), _STEPS
    yield "group-norm", lambda: nn.GroupNorm(3, 3), _PLANE
    yield "instance-norm", lambda: nn.InstanceNorm2d(3, affine=True), _PLANE
    yield "instance-norm-running", lambda: nn.InstanceNorm2d(3, track_running_stats=True), _PLANE
    yield "rms-norm", lambda: nn.RMSNorm(8), _STEPS
    yield "prelu", lambda: nn.PReLU(3), _PLANE
    yield "rrelu", nn.RReLU, _PLANE
    yield "bilinear", partial(_built, lambda: nn.Bilinear(6, 6, 3), lambda inner, x: inner(x, x.flip(1))), _TABLE
    yield "embedding", lambda: nn.Embedding(50, 4, padding_idx=0), _whole(6)
    yield "embedding-max-norm", lambda: nn.Embedding(50, 4), _whole(6)
    for mode in ("sum", "mean", "max"):
        yield f"embedding-bag-{mode}", partial(lambda mode: nn.EmbeddingBag(50, 4, mode=mode), mode), _whole(6)
    yield "dropout", lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(), nn.AlphaDropout()), _TABLE
    yield (
        "weight-norm",
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)),
        _TABLE,
    )
    yield "spectral-norm", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)), _TABLE
    yield "float64", lambda: nn.Linear(6, 4).double(), lambda rng, rows: rng.normal(size=(rows, 6))
    yield (
        "half-weights",
        lambda: nn.Linear(6, 4).half(),
        lambda rng, rows: rng.normal(size=(rows, 6)).astype(np.float16),
    )
    yield (
        "bfloat-weights",
        partial(_built, lambda: nn.Linear(6, 4).bfloat16(), lambda inner, x: inner(x.bfloat16()).float()),
        _TABLE,
    )


def _scripts() -> Iterator[tuple[str, Callable[[], Any], Rows, Kind]]:
    from torch import nn

    from benchmarks.zoo.cases import scripts

    kinds: tuple[Kind, ...] = ("scripted", "traced")
    for kind in kinds:
        yield f"linear-{kind}", lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), _TABLE, kind
        yield f"conv-{kind}", lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()), _PLANE, kind
        yield f"embedding-{kind}", lambda: nn.Embedding(50, 4), _whole(6), kind
        yield f"encoder-{kind}", lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), _STEPS, kind
        yield f"atan2-{kind}", scripts.Angles, _TABLE, kind
        yield f"gru-{kind}", scripts.Recurrent, _STEPS, kind
        yield f"two-outputs-{kind}", scripts.Pair, _TABLE, kind
        yield f"stft-{kind}", scripts.Spectrum, _SOUND, kind
    yield "loop", scripts.Loop, _STEPS, "scripted"
    yield "branch", scripts.Branch, _TABLE, "scripted"
    yield "while", scripts.While, _TABLE, "scripted"
    yield "unique", scripts.Unique, _tied(6), "scripted"


FAMILIES: Mapping[str, Callable[[], Functions]] = {
    "elementwise": _elementwise,
    "activations": _activations,
    "integers": _integers,
    "reductions": _reductions,
    "indexing": _indexing,
    "spatial": _spatial,
    "spectral": _spectral,
}


def cases() -> tuple[Case, ...]:
    """All cases; importing torch takes 3 s."""
    made: list[tuple[str, Callable[[], Any], Rows, Kind]] = [
        (f"{family}/{name}", partial(_function, compute), rows, "module")
        for family, functions in FAMILIES.items()
        for name, compute, rows in functions()
    ]
    made += [(f"sequences/{name}", build, rows, "module") for name, build, rows in _sequences()]
    made += [(f"layers/{name}", build, rows, "module") for name, build, rows in _layers()]
    made += [(f"scripts/{name}", build, rows, kind) for name, build, rows, kind in _scripts()]
    return tuple(
        Case(
            name=f"module/{name}",
            flavor="pytorch",
            about=name.rpartition("/")[2],
            build=partial(_logged, build, rows, kind),
            input=name.partition("/")[0],
        )
        for name, build, rows, kind in made
    )
