"""Loads models into a running Triton side by side, so that none waits for another, and no request waits for any."""

import contextlib
import time

import grpc
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from shiplift.runtime.serving.triton.client import TritonClient, key_header

LOADING, READY = "LOADING", "READY"


class ModelLoads:
    """The loads that were begun in the server at `address` (`host:port`, gRPC), with the key of its repository.

    Closing leaves them to the server.
    """

    def __init__(self, address: str, repository_key: str) -> None:
        self._address, self._repository_key = address, repository_key
        self._channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._service = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._calls: dict[str, tuple[float, grpc.Future]] = {}

    def begin(self, model: str, config: model_config_pb2.ModelConfig | None = None) -> None:
        """Begins to load a model of the repository; a `config` replaces its config.pbtxt."""
        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        if config is not None:
            override = json_format.MessageToJson(config, preserving_proto_field_name=True)
            request.parameters["config"].string_param = override
        metadata = tuple(key_header(self._repository_key).items())
        self._calls[model] = (time.monotonic(), self._service.RepositoryModelLoad.future(request, metadata=metadata))

    def states(self) -> dict[str, set[str]]:
        """The states of each model's versions. One that is being loaded, by whomever, has `LOADING` among them.

        Raises:
            Temporary: the server does not answer.
        """
        with TritonClient(self._address, repository_key=self._repository_key) as client:
            states = client.states()
        return states | {model: {*states.get(model, ()), LOADING} for model in self._calls}

    @property
    def any_under_way(self) -> bool:
        """Whether a load that was begun here has not ended, or its end was not asked for."""
        return bool(self._calls)

    def ended(self) -> dict[str, tuple[float, str]]:
        """The models whose loads have ended since the last call: the seconds it took, and why it failed, or ""."""
        done = {model: call for model, call in self._calls.items() if call[1].done()}
        self._calls = {model: call for model, call in self._calls.items() if model not in done}
        return {model: (time.monotonic() - since, _failure(call)) for model, (since, call) in done.items()}

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()


def _failure(call: grpc.Future) -> str:
    error = call.exception()
    with contextlib.suppress(AttributeError):
        return " ".join(error.details().split())[:600] if error else ""
    return str(error)[:600]
