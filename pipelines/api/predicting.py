"""Answers of production for programs, in the form in which `predict` of pyfunc gives them."""

from pathlib import Path
from typing import Any

from shiplift.pipelines.api.engines import engine_of
from shiplift.pipelines.choices import EngineName
from shiplift.runtime.base.errors import DataInvalid, NotFound, ServerFailed, ShipliftError, Temporary
from shiplift.runtime.serving.scoring.problems import ScoringProblem

_KINDS: dict[int, type[ShipliftError]] = {404: NotFound, 429: Temporary, 503: Temporary, 504: ServerFailed}
_AGAIN = "See `shiplift status`, then ask again."


def predict(
    model: str,
    data: Any,
    *,
    params: dict[str, Any] | None = None,
    engine: EngineName | None = None,
    namespace: str | None = None,
    home: Path | str | None = None,
) -> Any:
    """What production answers to `data`: a data frame, a series, an array, a sparse matrix, a list, or arrays by name.

    Rows go along the first axis; inputs are checked against the logged signature, as MLflow's scoring server does. The
    answer has the form of pyfunc's: an array with rows along the first axis, a data frame, or arrays by name; texts are
    `str` in an array of objects. A chat model or an agent takes and gives a dictionary. `params` are the request's.

    Raises:
        NotFound: production does not serve the model.
        DataInvalid: the model does not take that data; the message names the input.
        ServerFailed, Temporary: the server failed, or does not answer.
        StackDown, ClusterUnreachable: the stack or the cluster could not be asked.
    """
    from shiplift.pipelines.deployments.requests import body_of  # noqa: PLC0415 - MLflow's encoder takes a second
    from shiplift.runtime.serving.scoring.scorer import value_once  # noqa: PLC0415

    served = engine_of(engine, namespace, home).discover(model)
    try:
        return value_once(served, body_of(data, params))
    except ScoringProblem as problem:
        kind = _KINDS.get(problem.status, DataInvalid)
        do = "Send what the signature says: `shiplift.discover(MODEL).signature`." if kind is DataInvalid else _AGAIN
        raise kind(str(problem), do=do) from problem
