"""Tells clients where a served model answers. On a cluster the operator publishes this in one ConfigMap, by model.

A pod in the cluster can also ask the model itself under its DNS name. That takes no permission at the API server.
"""

import operator
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from pydantic import ConfigDict, Field, ValidationError

from shiplift.runtime.base.names import dns_name, serving_name
from shiplift.runtime.base.plain_http import NO_AUTHORITIES
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.deployment import Endpoint
from shiplift.runtime.records.scoring import Scoring, absent
from shiplift.runtime.records.tensor import Signature

CONFIG_MAP_NAME = "shiplift-discovery"  # in the serving namespace; a key is a model's DNS name
_HTTP, _GRPC = 8000, 8001
_TIMEOUT_S = 10.0


class ServedModel(Record):
    """A model and where it answers.

    Requests call it `name`, over `grpc` (`host:port`) or below `http` (a URL). `host` is the name that they must carry
    where many models share an address (gRPC's authority, HTTP's Host; empty: none). `secure`: gRPC is over TLS.
    `version` is the one that serves. `scoring` is what MLflow's own clients know of it,
    and `invocations` where it answers them (empty: nowhere).
    """

    model: str
    name: str
    version: int
    grpc: str
    http: str
    host: str = ""
    secure: bool = False
    signature: Signature
    scoring: Scoring | None = Field(default=None, exclude_if=absent)
    invocations: str = Field(default="", exclude_if=operator.not_)

    @property
    def path(self) -> str:
        """The path of its requests over HTTP."""
        return f"/v2/models/{self.name}"

    def infer(self, inputs: Mapping[str, Any], *, version: int | None = None) -> Arrays:
        """The outputs of one request, by name; inputs are arrays by name, with samples along the first axis.

        Without a `version`, the promoted one answers; others are served if `serving.version_policy` asks for them.

        Raises:
            ServerFailed: Triton refuses or fails the request.
            Temporary: nothing answers.
        """
        from shiplift.runtime.serving.triton.client import TritonClient  # noqa: PLC0415 - 0.2 s

        with TritonClient(self.grpc, authority=self.host, secure=self.secure) as client:
            return client.infer(self.name, self.signature, dict(inputs), version=version)


class PublishedModel(Record):
    """What the operator publishes about a model: its address inside the cluster and, if it has one, the one outside.

    Clients older than the operator ignore fields that they don't know. `targets` are the serving ones, if there are
    several.
    """

    model_config = ConfigDict(extra="ignore")

    model: str
    revision: str
    version: int
    inside: Endpoint
    outside: Endpoint | None = None
    host: str = ""
    secure: bool = False
    signature: Signature
    targets: tuple[str, ...] = ()
    scoring: Scoring | None = Field(default=None, exclude_if=absent)

    def seen_from(self, *, inside: bool) -> ServedModel | None:
        """The model as a client inside or outside the cluster reaches it; None if it has no address there."""
        address = self.inside if inside else self.outside
        if address is None:
            return None
        return ServedModel(
            model=self.model,
            name=serving_name(self.model),
            version=self.version,
            grpc=address.grpc,
            http=address.http,
            host="" if inside else self.host,
            secure=self.secure and not inside,
            signature=self.signature,
            scoring=self.scoring,
        )


def published_in(folder: Path) -> list[ServedModel]:
    """The models in a folder where the operator's ConfigMap is mounted, as a pod reaches them."""
    found = []
    for file in sorted(folder.glob("[!.]*")):
        with suppress(OSError, ValidationError):  # the folder changes, and entries can be newer than this code
            found.append(PublishedModel.model_validate_json(file.read_bytes()).seen_from(inside=True))
    return [each for each in found if each]


def inside_of(model: str, namespace: str) -> Endpoint:
    """The address of a model for the pods of its cluster."""
    name = f"{dns_name(model)}.{namespace}"
    return Endpoint(http=f"http://{name}:{_HTTP}", grpc=f"{name}:{_GRPC}")


def by_dns(model: str, namespace: str) -> ServedModel:
    """What a model reports about itself under its DNS name.

    Raises:
        NotFound, Temporary: nothing answers under that name.
    """
    from shiplift.runtime.serving.triton.http_client import TritonHttpClient  # noqa: PLC0415 - 0.2 s

    address, name = inside_of(model, namespace), serving_name(model)
    with httpx.Client(base_url=address.http, timeout=_TIMEOUT_S, trust_env=False, verify=NO_AUTHORITIES) as http:
        server = TritonHttpClient(http)
        versions = server.versions(name)
        return ServedModel(
            model=model,
            name=name,
            version=max(versions, default=0),
            grpc=address.grpc,
            http=address.http,
            signature=server.signature(name),
        )
