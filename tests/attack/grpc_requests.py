"""What hostile clients send to a server over gRPC, by family: messages with their method, and frames of HTTP/2.

The server has the model `m` of `http_requests`.
"""

import struct
from collections.abc import Iterator
from functools import cache
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tests.attack.http_requests import SHAPES

Call = tuple[str, bytes]  # the method, and the message
_RAW = struct.pack("<4f", 1, 2, 3, 4)
_ODD: dict[str, dict[str, Any]] = {
    "true": {"bool_param": True},
    "0": {"int64_param": 0},
    "-1": {"int64_param": -1},
    "2^63 - 1": {"int64_param": 2**63 - 1},
    "-2^63": {"int64_param": -(2**63)},
    "2^64 - 1": {"uint64_param": 2**64 - 1},
    "NaN": {"double_param": float("nan")},
    "1e308": {"double_param": 1e308},
    "text": {"string_param": "x"},
    "nothing": {"string_param": ""},
    "NUL": {"string_param": "\0"},
    "a long text": {"string_param": "x" * 1_000_000},
    "no kind": {},
}
_KEYS = (
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "headers",
    "binary_data",
    "binary_data_output",
    "binary_data_size",
    "classification",
    "shared_memory_region",
    "shared_memory_byte_size",
    "shared_memory_offset",
    "triton_enable_empty_final_response",
    "triton_final_response",
    "own",
    "",
    "x" * 1_000_000,
)


def infer(**changes: Any) -> pb.ModelInferRequest:
    """A good request, with other fields; those of its input begin with `input_`."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    tensor |= {name.removeprefix("input_"): changes.pop(name) for name in list(changes) if name.startswith("input_")}
    fields: dict[str, Any] = {"model_name": "m", "raw_input_contents": [_RAW], "inputs": [tensor], **changes}
    return pb.ModelInferRequest(**fields)


def _shapes() -> Iterator[tuple[str, pb.ModelInferRequest]]:
    for name, shape in SHAPES.items():
        if not all(type(size) is int and -(2**63) <= size < 2**63 for size in shape):
            continue
        for datatype in ("FP32", "FP64", "BYTES", "BOOL", "X"):
            yield f"{name} of {datatype}", infer(input_shape=shape, input_datatype=datatype)
            yield (
                f"{name} of {datatype}, no bytes",
                infer(input_shape=shape, input_datatype=datatype, raw_input_contents=[b""]),
            )
            yield (
                f"{name} of {datatype}, typed",
                infer(
                    input_shape=shape,
                    input_datatype=datatype,
                    raw_input_contents=[],
                    input_contents={"fp32_contents": [1, 2, 3, 4]},
                ),
            )
            yield (
                f"{name} of {datatype}, none",
                infer(input_shape=shape, input_datatype=datatype, raw_input_contents=[]),
            )


def _contents() -> Iterator[tuple[str, pb.ModelInferRequest]]:
    for size in (0, 1, 15, 17, 1_000_000):
        yield f"{size} bytes", infer(raw_input_contents=[b"1" * size])
        yield f"{size} bytes of texts", infer(raw_input_contents=[b"\xff" * size], input_datatype="BYTES")
    for count in (0, 2, 100_000):
        yield f"{count} contents", infer(raw_input_contents=[_RAW] * count)
    typed: dict[str, list[Any]] = {
        "bool_contents": [True],
        "int_contents": [-1] * 4,
        "int64_contents": [2**62] * 4,
        "uint_contents": [2**31] * 4,
        "uint64_contents": [2**63] * 4,
        "fp32_contents": [float("nan")] * 4,
        "fp64_contents": [1e308] * 4,
        "bytes_contents": [b"x" * 1_000_000] * 4,
    }
    for kind, values in typed.items():
        for datatype in ("FP32", "INT64", "INT8", "UINT16", "BOOL", "BYTES", "FP16", "BF16", "X"):
            contents = {kind: values}
            yield (
                f"{kind} as {datatype}",
                infer(raw_input_contents=[], input_datatype=datatype, input_contents=contents),
            )
        yield f"{kind} and raw", infer(input_contents={kind: values})
    yield "all kinds", infer(raw_input_contents=[], input_contents=typed)
    for lengths in ((2**32 - 1,), (2**31,), (0,) * 4, (5,), (1, 2**32 - 1)):
        data = b"".join(each.to_bytes(4, "little") for each in lengths)
        yield (
            f"texts of {lengths} bytes",
            infer(raw_input_contents=[data], input_datatype="BYTES", input_shape=[1, len(lengths)]),
        )


def _parameters() -> Iterator[tuple[str, pb.ModelInferRequest]]:
    for key in _KEYS:
        for name, odd in _ODD.items():
            parameter = {key: pb.InferParameter(**odd)}
            yield f"{key[:40]}: {name}", infer(parameters=parameter)
            yield f"an input's {key[:40]}: {name}", infer(input_parameters=parameter)
            yield f"an output's {key[:40]}: {name}", infer(outputs=[{"name": "y", "parameters": parameter}])
    region = {
        "shared_memory_region": pb.InferParameter(string_param="r"),
        "shared_memory_byte_size": pb.InferParameter(int64_param=2**62),
        "shared_memory_offset": pb.InferParameter(int64_param=-1),
    }
    yield "a region", infer(input_parameters=region, raw_input_contents=[])
    yield "a region for the output", infer(outputs=[{"name": "y", "parameters": region}])


def _names() -> Iterator[tuple[str, pb.ModelInferRequest]]:
    for name in ("", "n", "..", "\0", "m\0", "x" * 1_000_000, "\U0010ffff", "m/1", "%00", "\x1b[2J"):
        yield f"the model {name[:9]!r}", infer(model_name=name)
        yield f"the version {name[:9]!r}", infer(model_version=name)
        yield f"the id {name[:9]!r}", infer(id=name)
        yield f"the input {name[:9]!r}", infer(input_name=name)
        yield f"the datatype {name[:9]!r}", infer(input_datatype=name)
        yield f"the output {name[:9]!r}", infer(outputs=[{"name": name}])
    for version in ("0", "-1", "2", "1.5", "9" * 30, "-9223372036854775808", "18446744073709551615", "9" * 100_000):
        yield f"version {version[:30]}", infer(model_version=version)


def _many() -> Iterator[tuple[str, pb.ModelInferRequest]]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    yield "the same input", infer(inputs=[tensor] * 50_000, raw_input_contents=[_RAW] * 50_000)
    yield (
        "inputs",
        infer(inputs=[{**tensor, "name": f"x{at}"} for at in range(50_000)], raw_input_contents=[_RAW] * 50_000),
    )
    yield "outputs", infer(outputs=[{"name": f"y{at}"} for at in range(100_000)])
    yield "the same output", infer(outputs=[{"name": "y"}] * 100_000)
    yield "parameters", infer(parameters={f"p{at}": pb.InferParameter(int64_param=at) for at in range(100_000)})
    yield "dimensions", infer(input_shape=[1] * 1_000_000)
    yield "bytes", infer(raw_input_contents=[bytes(100_000_000)])
    yield "values", infer(raw_input_contents=[], input_contents={"fp32_contents": [1.0] * 10_000_000})
    yield (
        "texts",
        infer(raw_input_contents=[], input_datatype="BYTES", input_contents={"bytes_contents": [b""] * 2_000_000}),
    )


def _wire() -> Iterator[tuple[str, Call]]:
    good = infer().SerializeToString()
    messages = {
        "nothing": b"",
        "zeros": bytes(100),
        "all bytes": bytes(range(256)) * 100,
        "cut": good[:-3],
        "twice": good + good,
        "groups": b"\x0b" * 1_000_000,
        "groups of an unknown field": b"\xa3\x06" * 1_000_000,
        "a length beyond the end": b"\x0a\xff\xff\xff\xff\x07x",
        "a length of 2^63": b"\x0a" + b"\xff" * 9 + b"\x01",
        "a long number": b"\x08" + b"\x80" * 100_000,
        "field 0": b"\x00\x01",
        "type 7": b"\x0f\x01",
        "names that are not UTF-8": b"\x0a\x02\xff\xfe" + good,
        "unknown fields": b"\xfa\x3f\x01x" * 500_000 + good,
    }
    for name, message in messages.items():
        yield name, ("ModelInfer", message)
        yield f"{name}, to a stream", ("ModelStreamInfer", message)


def _methods() -> Iterator[tuple[str, Call]]:
    for name in ("", "m", "n", "..", "x" * 1_000_000):
        for method in ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"):
            message = getattr(pb, f"{method}Request")(name=name, version=name)
            yield f"{method} of {name[:9]}", (method, message.SerializeToString())
    for method in (
        "ServerLive",
        "ServerReady",
        "ServerMetadata",
        "ModelReady",
        "ModelConfig",
        "ModelStatistics",
        "None",
        "",
    ):
        yield f"{method}, all bytes", (method, bytes(range(256)) * 100)
    for name, message in closed().items():
        yield f"closed: {name}", (name, message)


def closed() -> dict[str, bytes]:
    """What would change the server, by method."""
    return {
        "RepositoryIndex": b"",
        "RepositoryModelLoad": pb.RepositoryModelLoadRequest(model_name="m").SerializeToString(),
        "RepositoryModelUnload": pb.RepositoryModelUnloadRequest(model_name="m").SerializeToString(),
        "LogSettings": pb.LogSettingsRequest(
            settings={"log_file": pb.LogSettingsRequest.SettingValue(string_param="/tmp/x")}
        ).SerializeToString(),
        "TraceSetting": pb.TraceSettingRequest(
            settings={"trace_file": pb.TraceSettingRequest.SettingValue(value=["/tmp/x"])}
        ).SerializeToString(),
        "SystemSharedMemoryRegister": pb.SystemSharedMemoryRegisterRequest(
            name="r", key="/x", byte_size=2**63
        ).SerializeToString(),
        "SystemSharedMemoryStatus": b"",
        "SystemSharedMemoryUnregister": b"",
        "CudaSharedMemoryRegister": pb.CudaSharedMemoryRegisterRequest(name="r", byte_size=2**63).SerializeToString(),
        "CudaSharedMemoryStatus": b"",
        "CudaSharedMemoryUnregister": b"",
    }


_REQUESTS = {
    "shapes": _shapes,
    "contents": _contents,
    "parameters": _parameters,
    "names": _names,
    "many": _many,
}
_CALLS = {"wire": _wire, "methods": _methods}
FAMILIES = (*_REQUESTS, *_CALLS)


@cache
def family(name: str) -> dict[str, Call]:
    """The attacks of a family by name."""
    if name in _CALLS:
        return dict(_CALLS[name]())
    return {attack: ("ModelInfer", request.SerializeToString()) for attack, request in _REQUESTS[name]()}


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS = bytes.fromhex("838684")  # POST, http, /


def _frame(kind: int, flags: int, stream: int, body: bytes = b"", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return size.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def connections() -> dict[str, bytes]:
    """Whole connections of HTTP/2."""
    begin = _PREFACE + _frame(4, 0, 0)
    resets = b"".join(_frame(1, 4, at, _HEADERS) + _frame(3, 0, at, bytes(4)) for at in range(1, 40_001, 2))
    return {
        "HTTP/1": b"GET / HTTP/1.1\r\n\r\n",
        "zeros": bytes(100_000),
        "half a preface": _PREFACE[:9],
        "no settings": _PREFACE + bytes(1000),
        "a frame of 16 MiB": begin + _frame(0, 0, 1, length=2**24 - 1) + bytes(100_000),
        "settings": begin + _frame(4, 0, 0, bytes.fromhex("000400000000")) * 50_000,
        "a window of 2^32": begin + _frame(4, 0, 0, bytes.fromhex("0004ffffffff")),
        "window updates": begin + _frame(8, 0, 0, b"\x7f\xff\xff\xff") * 1000,
        "pings": begin + _frame(6, 0, 0, bytes(8)) * 50_000,
        "resets": begin + resets,
        "continuations": begin + _frame(1, 0, 1, _HEADERS) + _frame(9, 0, 1, b"\x00\x01a\x01b" * 100) * 10_000,
        "headers without an end": begin + b"".join(_frame(1, 0, at, _HEADERS) for at in range(1, 2001, 2)),
        "streams without data": begin + b"".join(_frame(1, 4, at, _HEADERS) for at in range(1, 20_001, 2)),
        "an even stream": begin + _frame(1, 4, 2, _HEADERS),
        "a long text in HPACK": begin + _frame(1, 4, 1, _HEADERS + b"\x00\x7f\xff\xff\xff\xff\x0f"),
        "a table of 2^31 in HPACK": begin + _frame(1, 4, 1, b"\x3f\xe1\xff\xff\xff\x07" + _HEADERS),
        "an unknown frame": begin + _frame(77, 255, 2**31 - 1, bytes(1000)) * 1000,
        "goodbyes": begin + _frame(7, 0, 0, bytes(8)) * 1000,
        "priorities": begin + b"".join(_frame(2, 0, at, at.to_bytes(4, "big") + b"\xff") for at in range(1, 20_001, 2)),
        "pushes": begin + _frame(5, 4, 1, bytes(4) + _HEADERS) * 100,
    }
