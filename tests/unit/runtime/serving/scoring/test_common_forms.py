"""Requests without pandas: whatever is read here, MLflow's own code reads in the same way."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.serving.scoring.common_forms import read_common
from shiplift.runtime.serving.scoring.mlflow_rules import read_json
from shiplift.runtime.serving.scoring.problems import ScoringProblem
from shiplift.runtime.serving.scoring.schema import schema_of
from tests.unit.runtime.serving.scoring.schemas import TENSORS, of_columns, of_tensors

_ANY = st.sampled_from([0, 1, -5, 2.5, 1e300, 2**31, 2**53 + 1, 2**63, 2**70, None, True, float("nan"), "7", "x", "ü"])
_GOOD = {
    "double": st.sampled_from([1, 2.5, -3, None]),
    "float": st.sampled_from([1, 0.1, 16777217, None]),
    "long": st.sampled_from([1, -5, 2**40]),
    "integer": st.sampled_from([1, -5, 2**30]),
    "boolean": st.booleans(),
    "string": st.sampled_from(["a", "ü", ""]),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[Any, Any]:
    """A model of columns, and a request to it, right or wrong."""
    names = [f"c {at}" for at in range(draw(st.integers(1, 4)))]
    kinds = {name: draw(st.sampled_from(list(_GOOD))) for name in names}
    wild = draw(st.booleans())
    count = draw(st.integers(0, 3))
    rows = [[draw(_ANY if wild else _GOOD[kinds[name]]) for name in names] for _ in range(count)]
    given_names = draw(st.permutations(names)) + draw(st.sampled_from([[], ["extra"]]))
    rows = [[dict(zip(names, row, strict=True)).get(name, 1) for name in given_names] for row in rows]
    if rows and draw(st.integers(0, 9)) == 0:
        rows[0] = rows[0][:-1]
    records = [dict(zip(given_names, row, strict=False)) for row in rows]
    by_column = {name: [row[at] for row in rows if at < len(row)] for at, name in enumerate(given_names)}
    body = draw(
        st.sampled_from(
            [
                {"dataframe_split": {"columns": given_names, "data": rows}},
                {"dataframe_split": {"columns": given_names, "data": rows, "index": list(range(count))}},
                {"dataframe_split": {"data": rows}},
                {"dataframe_records": records},
                {"instances": records},
                {"inputs": records},
                {"inputs": by_column},
                {"inputs": [row[0] for row in rows if row], "other": 1},
            ]
        )
    )
    return of_columns(kinds, named=draw(st.booleans())), body


@st.composite
def arrays(draw: st.DrawFn) -> tuple[Any, Any]:
    """A model of tensors, and a request to it, right or wrong."""
    dtype = draw(st.sampled_from(list(TENSORS)))
    shape = draw(st.sampled_from([(-1, 3), (-1,), (-1, 2, 2), (-1, -1), (-1, 1)]))
    names = draw(st.sampled_from([("x",), ("x", "y")]))
    good = {"str": st.just("a"), "bool": st.booleans(), "int64": st.just(3)}.get(dtype, _GOOD["float"])
    values = draw(st.sampled_from([good, _ANY]))

    def nested(sizes: list[int]) -> Any:
        return [nested(sizes[1:]) for _ in range(sizes[0])] if sizes else draw(values)

    def tensor() -> Any:
        sizes = [size if size > 0 else draw(st.integers(1, 3)) for size in shape]
        return nested([*sizes[:-1], sizes[-1] + draw(st.sampled_from([0, 0, 0, 1]))])

    body = draw(st.sampled_from(["inputs", "instances", "split"]))
    if body == "split":
        return of_tensors(dtype, *shape, names=names[:1]), {"dataframe_split": {"data": tensor()}}
    named = len(names) > 1 or draw(st.booleans())
    served = of_tensors(dtype, *shape, names=names, named=named)
    return served, {body: {name: tensor() for name in names} if draw(st.booleans()) else tensor()}


def same(left: Arrays, right: Arrays) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype
        and np.array_equal(left[name], right[name], equal_nan=left[name].dtype.kind == "f")
        for name in left
    )


_MISSING = {"dataframe_split": {"data": [[0, 0, None]]}}


@settings(deadline=None)
@given(st.one_of(tables(), arrays()))
@example((of_tensors("bool", -1, 3), _MISSING))
@example((of_tensors("int64", -1, 3), _MISSING))
@example((of_tensors("int32", -1, 2), {"dataframe_split": {"data": [[2.5, 2**31]]}}))
def test_what_is_read_without_pandas_is_what_mlflow_reads(asked: tuple[Any, Any]) -> None:
    served, body = asked
    schema = schema_of(served)
    sent = json.loads(json.dumps(body))
    if (read := read_common(sent, schema)) is not None:
        assert same(read, read_json(sent, schema)[0]), body


@settings(deadline=None)
@given(st.one_of(tables(), arrays()))
def test_every_other_request_is_read_or_refused_by_mlflow_s_code(asked: tuple[Any, Any]) -> None:
    served, body = asked
    with suppress(ScoringProblem):
        read = read_json(json.loads(json.dumps(body)), schema_of(served))[0]
        assert read.keys() <= {spec.name for spec in served.signature.inputs}
        assert len({len(array) for array in read.values()}) == 1


def test_columns_of_a_model_that_gets_one_row_at_a_time_have_many() -> None:
    schema = schema_of(of_columns({"x": "double", "name": "string"}))
    single = [replace(each, spec=each.spec.model_copy(update={"shape": (1, 1)})) for each in schema.fields]
    read = read_common(
        {"dataframe_split": {"columns": ["x", "name"], "data": [[1.5, "a"], [2, "b"]]}},
        replace(schema, fields=tuple(single)),
    )
    assert read is not None
    assert {name: array.tolist() for name, array in read.items()} == {"x": [[1.5], [2.0]], "name": [["a"], ["b"]]}
