"""Shiplift's errors as MLflow's, which alone its clients and its command line expect."""

from collections.abc import Iterator
from contextlib import contextmanager

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import (
    BAD_REQUEST,
    INVALID_PARAMETER_VALUE,
    RESOURCE_DOES_NOT_EXIST,
    TEMPORARILY_UNAVAILABLE,
)

from shiplift.runtime.base.errors import (
    ClusterUnreachable,
    NotFound,
    ShipliftError,
    SpecInvalid,
    StackDown,
    Temporary,
    UsageError,
)
from shiplift.runtime.serving.scoring.problems import ScoringProblem

_CODES: tuple[tuple[tuple[type[ShipliftError], ...], int], ...] = (
    ((NotFound,), RESOURCE_DOES_NOT_EXIST),
    ((SpecInvalid, UsageError), INVALID_PARAMETER_VALUE),
    ((ClusterUnreachable, StackDown, Temporary), TEMPORARILY_UNAVAILABLE),
)


@contextmanager
def translated() -> Iterator[None]:
    """Turns errors into MLflow's.

    Raises:
        MlflowException: there was one.
    """
    try:
        yield
    except ShipliftError as error:
        code = next((code for kinds, code in _CODES if isinstance(error, kinds)), BAD_REQUEST)
        raise MlflowException(str(error), code) from error
    except ScoringProblem as problem:
        raise MlflowException(str(problem), BAD_REQUEST) from problem


def refused(why: str) -> MlflowException:
    """The error for a wrong argument."""
    return MlflowException.invalid_parameter_value(why)
