"""A Triton model repository as `shiplift adopt` reads it: its models, its mistakes, and what a release could gain."""

from shiplift.runtime.records.base import Record
from shiplift.runtime.records.tensor import Signature


class Mistake(Record):
    """A mistake in a repository: the file (and the line, if it is known), what is wrong, and what to do."""

    where: str
    what: str
    do: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. {self.do}"


class FoundModel(Record):
    """A model of a repository.

    `versions` are those that Triton would serve, in ascending order. `members` are the models that it calls as an
    ensemble, with its own first, in the order to load them. `called_by` are the ensembles that call it. `config` is the
    configuration as Triton would complete it; empty: the file is complete. `left_out` says why the bundled server can't
    serve it; empty: it can. `gains` are what a release of the model itself would change.
    """

    name: str
    backend: str
    versions: tuple[int, ...]
    max_batch: int
    signature: Signature
    members: tuple[str, ...] = ()
    called_by: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    config: str = ""
    left_out: str = ""
    gains: tuple[str, ...] = ()


class FoundRepository(Record):
    """Every model of a repository, and every mistake; with mistakes, nothing of it is adopted."""

    models: tuple[FoundModel, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
