"""What a package answers itself, where nothing else says what is right: on a private server, asked twice."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from shiplift.runtime.base.errors import GoldenMismatch, ServerFailed, SpecInvalid
from shiplift.runtime.base.progress import measuring, progress
from shiplift.runtime.model.tensors import ROWS, Arrays, concatenate, one_by_one
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.machine.server import private_server
from shiplift.runtime.serving.triton.client import TOLERANCE, TritonClient, check_golden
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.serving.triton.repository import golden_arrays


@contextmanager
def served_alone(site: Site, tree: Path, models: Iterable[str]) -> Iterator[TritonClient]:
    """The repository in `tree` on a private server that is confined like production's; members come first.

    Raises:
        ServerFailed: a model does not load.
    """
    features = Features(cache_mb=0, allow_without=site.sandbox.allow_without)
    environment = ServerEnvironment(Path(site.server_environment), site.environments)
    with (
        private_server(environment, tree, features, log=tree.parent / "triton.log") as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
    ):
        for model in models:
            client.load(model)
        yield client


def own_golden(
    client: TritonClient, name: str, signature: Signature, requests: Arrays, what: str, without: str = ""
) -> Arrays:
    """The golden requests with the answers of the model `name`, which it gives twice. `what` it is goes into errors.

    `without` names an output that is checked, and left out of the golden answers.

    Raises:
        SpecInvalid: it does not answer, answers the same request differently, or answers with NaN.
    """
    progress("asking it for its golden answers")
    try:
        with measuring():
            each = [client.infer(name, signature, row) for row in one_by_one(requests)]
    except ServerFailed as error:  # the server was fine before: it is the model that can't answer
        raise SpecInvalid(
            f"{what} does not answer its example requests: {error.what}",
            do="Look at what it names, and register it again.",
        ) from error
    answers = concatenate([{key: array for key, array in answer.items() if key != without} for answer in each])
    if blank := [key for key, array in answers.items() if array.dtype.kind == "f" and np.isnan(array).any()]:
        raise SpecInvalid(
            f"{what} answers its example requests with NaN in {', '.join(blank)}",
            do="Look at what gives it, and register it again.",
        )
    golden = golden_arrays(requests, answers) | {
        f"{ROWS}{key}": np.array([len(answer[key]) for answer in each]) for key in answers
    }
    left_out = {f"output/{without}": concatenate(each)[without]} if without else {}
    _check_again(client, name, signature, golden | left_out, what)
    return golden


def _check_again(client: TritonClient, name: str, signature: Signature, golden: Arrays, what: str) -> None:
    """Asks a second time. If answers vary by chance, golden requests can't tell a wrong package from the right one."""
    try:
        check_golden(client, name, signature, golden, tolerance=TOLERANCE["fp32"])
    except GoldenMismatch as error:
        raise SpecInvalid(
            f"{what} answers the same request differently each time: {error.what}",
            do="Make its Python independent of chance and time: golden requests prove what answers.",
        ) from error
