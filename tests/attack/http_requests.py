"""What hostile clients send to a server over HTTP, by family, each as the bytes of a whole connection.

The server has the model `m`, which takes `x` (FP32, batch x 4) and answers `y`. No attack is a request that a server
should answer with success, except where it asks for nothing but what everybody may know.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

INFER = "/v2/models/m/infer"
INPUT = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
GOOD = {"inputs": [INPUT]}
_BIG = (2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 2**64 - 1, 2**80)
ODD: dict[str, str] = {
    "null": "null",
    "true": "true",
    "-1": "-1",
    "zero": "0",
    "1.5": "1.5",
    **{f"{number}": str(number) for number in _BIG},
    "-2^63": str(-(2**63)),
    "1e400": "1e400",
    "-1e400": "-1e400",
    "1e-400": "1e-400",
    "1e99999999999": "1e99999999999",
    "NaN": "NaN",
    "Infinity": "Infinity",
    "-Infinity": "-Infinity",
    "digits": "1" * 300_000,
    "fraction": "0." + "1" * 300_000,
    "empty text": '""',
    "text": '"x"',
    "long text": '"' + "x" * 1_000_000 + '"',
    "NUL": '"\\u0000"',
    "unpaired": '"\\ud800"',
    "reversed pair": '"\\udc00\\ud800"',
    "not UTF-8": '"\xff\xfe\x80"',
    "empty list": "[]",
    "list": "[1, 2]",
    "lists": "[[[[1]]]]",
    "many lists": "[" + ",".join(["[]"] * 100_000) + "]",
    "empty object": "{}",
    "object": '{"x": {"y": [1]}}',
    "same keys": '{"x": 1, "x": 2}',
}
SHAPES: dict[str, list[Any]] = {
    "2^32 x 2^32": [2**32, 2**32],
    "2^63 - 1": [2**63 - 1],
    "1 x 2^63 - 1": [1, 2**63 - 1],
    "2^62 x 4": [2**62, 4],
    "2^61": [2**61],
    "2^40": [2**40],
    "1 x 2^33": [1, 2**33],
    "1 x 2^31": [1, 2**31],
    "2^64": [2**64],
    "0 x 2^63 - 1": [0, 2**63 - 1],
    "2^63 - 1 x 0": [2**63 - 1, 2**63 - 1, 0],
    "-1": [-1, 4],
    "-1 x -1": [-1, -1],
    "1 x -4": [1, -4],
    "-2^63": [-(2**63), 4],
    "0": [0, 4],
    "1 x 0": [1, 0],
    "none": [],
    "scalar ones": [1] * 65,
    "1 x 100,000 times": [1] * 100_000,
    "2 x 100 times": [2] * 100,
    "fraction": [1.5, 4],
    "texts": ["1", "4"],
    "lists": [[1], [4]],
    "nulls": [None, None],
    "too few": [1, 3],
    "over the batch": [100, 4],
    "a million rows": [1_000_000, 4],
}
TYPES = ("FP32", "FP64", "INT8", "BYTES", "BOOL", "BF16", "FP16", "UINT64", "", "X", "fp32", "x" * 100_000)


def http(body: bytes, *, path: str = INFER, method: str = "POST", headers: Mapping[str, str] | None = None) -> bytes:
    """A request whose length is right, unless a header says otherwise."""
    named = {"Host": "x", "Content-Length": str(len(body)), **(headers or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items() if value)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def as_json(value: Any) -> bytes:
    """JSON, with the texts of `ODD` in place of their names as `raw` marks them."""
    text = json.dumps(value)
    for name, odd in ODD.items():
        text = text.replace(json.dumps(_raw(name)), odd)
    return text.encode("latin-1")


def _raw(name: str) -> str:
    return f"raw:{name}:"


def _nested() -> Iterator[tuple[str, bytes]]:
    for count in (200, 5_000, 400_000):
        texts = {
            "[": "[" * count,
            "[]": "[" * count + "]" * count,
            '{"a":': '{"a":' * count,
            '{"a":}': '{"a":' * count + "1" + "}" * count,
            '[{"a":': '[{"a":' * count,
            "after a quote": '{"\\"": "\\\\", "a":' + "[" * count,
            "after a BOM": "\xef\xbb\xbf" + "[" * count,
            "data": json.dumps({"inputs": [{**INPUT, "data": "@"}]}).replace('"@"', "[" * count + "1" + "]" * count),
            "parameters": json.dumps({**GOOD, "parameters": {"p": "@"}}).replace('"@"', "[" * count + "]" * count),
            "shape": json.dumps({"inputs": [{**INPUT, "shape": "@"}]}).replace('"@"', "[" * count + "]" * count),
            "outputs": json.dumps({**GOOD, "outputs": "@"}).replace('"@"', "[" * count + "]" * count),
            "id": json.dumps({**GOOD, "id": "@"}).replace('"@"', '{"":' * count + "1" + "}" * count),
        }
        for name, text in texts.items():
            yield f"{count} of {name}", http(text.encode("latin-1"))
        for path in ("/v2/models/m/generate", "/v2/models/m/generate_stream", "/v2/repository/index", "/v2/logging"):
            yield f"{count} to {path}", http(b"[" * count, path=path)
        yield f"{count} in a chunked body", _chunked(b"[" * count)
        yield (
            f"{count} before binary data",
            http(b"[" * count + b"1234", headers={"Inference-Header-Content-Length": str(count)}),
        )
        yield f"{count} compressed", http(gzip.compress(b"[" * count), headers={"Content-Encoding": "gzip"})


def _shapes() -> Iterator[tuple[str, bytes]]:
    for name, shape in SHAPES.items():
        for datatype in ("FP32", "FP64", "BYTES", "BOOL"):
            for data in ([1], [], ["x"], [[1, 2], [3, 4]]):
                tensor = {**INPUT, "shape": shape, "datatype": datatype, "data": data}
                yield f"{name} of {datatype} with {data}", http(as_json({"inputs": [tensor]}))
            yield f"{name} of {datatype}, binary", _with_binary(b"1234" * 4, {"shape": shape, "datatype": datatype})
    for datatype in TYPES:
        yield f"datatype {datatype[:9]}", http(as_json({"inputs": [{**INPUT, "datatype": datatype}]}))


def _fields() -> Iterator[tuple[str, bytes]]:
    whole = {
        "id": "1",
        "parameters": {
            "sequence_id": 1,
            "sequence_start": True,
            "sequence_end": True,
            "priority": 1,
            "timeout": 1,
            "binary_data_output": True,
            "own": "x",
        },
        "inputs": [{**INPUT, "parameters": {"binary_data_size": 16, "shared_memory_region": "r"}}],
        "outputs": [{"name": "y", "parameters": {"classification": 1, "binary_data": True, "shared_memory_offset": 1}}],
    }
    for path in _paths_in(whole):
        yield f"without {path}", http(as_json(_changed(whole, path, None)))
        for odd in ODD:
            yield f"{odd} as {path}", http(as_json(_changed(whole, path, _raw(odd))))
    for path in _paths_in(GOOD):
        for odd in ODD:
            yield f"only {odd} as {path}", http(as_json(_changed(GOOD, path, _raw(odd))))
    for count in ("-1", "0", "5", *map(str, _BIG)):
        output = {"name": "y", "parameters": {"classification": "@"}}
        yield f"{count} classes", http(as_json({**GOOD, "outputs": [output]}).replace(b'"@"', count.encode()))
    for odd, text in ODD.items():
        yield f"only {odd}", http(text.encode("latin-1"))
        for end in ("generate", "generate_stream"):
            body = b'{"x": ' + text.encode("latin-1") + b"}"
            yield f"{odd} as x to {end}", http(body, path=f"/v2/models/m/{end}")
    yield "twice the inputs", http(as_json(GOOD)[:-1] + b', "inputs": []}')
    yield "twice the data", http(as_json(GOOD).replace(b'"data"', b'"data": [9], "data"'))


def _paths_in(value: Any) -> Iterator[tuple[str | int, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in pairs:
        yield (key,)
        yield from ((key, *rest) for rest in _paths_in(part))


def _changed(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    """A copy with another value at a path; without it if the new one is None."""
    (key, *rest), copied = path, value.copy()
    if rest:
        copied[key] = _changed(value[key], tuple(rest), new)
    elif new is None:
        del copied[key]
    else:
        copied[key] = new
    return copied


def _with_binary(data: bytes, changes: Mapping[str, Any], size: Any = None, length: str = "") -> bytes:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", **changes}
    tensor["parameters"] = {"binary_data_size": len(data) if size is None else size}
    head = as_json({"inputs": [tensor]})
    return http(head + data, headers={"Inference-Header-Content-Length": length or str(len(head))})


def _binary() -> Iterator[tuple[str, bytes]]:
    sizes = (
        0,
        1,
        15,
        17,
        2**20,
        -1,
        2**31,
        2**32 - 1,
        2**63 - 1,
        2**63,
        2**64 - 1,
        2**64,
        "16",
        None,
        1.5,
        _raw("NaN"),
    )
    for size in sizes:
        yield f"{size} bytes", _with_binary(b"1234" * 4, {}, size=size)
        yield f"{size} bytes of texts", _with_binary(b"\xff\xff\xff\xff1234", {"datatype": "BYTES"}, size=size)
    for length in ("-1", "0", "1", "99999", *map(str, _BIG), "x", " ", "1e3", "0x10", "+5", "9" * 10_000):
        yield f"{length[:20]} bytes of JSON", _with_binary(b"1234" * 4, {}, length=length)
    for lengths in ((2**32 - 1,), (2**31,), (0,) * 4, (5,), (1, 2**32 - 1)):
        data = b"".join(each.to_bytes(4, "little") for each in lengths)
        yield f"texts of {lengths} bytes", _with_binary(data, {"datatype": "BYTES", "shape": [1, len(lengths)]})
    for raw in (b"", b"1", b"1234" * 4, b"x" * 1_000_000):
        yield f"{len(raw)} raw bytes", http(raw, headers={"Inference-Header-Content-Length": "0"})
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 16, "shared_memory_offset": 2**63}
    yield "a region", http(as_json({"inputs": [{**INPUT, "parameters": region}]}))
    yield "a region for the output", http(as_json({**GOOD, "outputs": [{"name": "y", "parameters": region}]}))


def bomb(mebibytes: int, kind: str = "gzip") -> bytes:
    """So many MiB of spaces, compressed a thousandfold."""
    window = 31 if kind == "gzip" else 15
    packer, block = zlib.compressobj(9, zlib.DEFLATED, window), b" " * 2**20
    return b"".join([*(packer.compress(block) for _ in range(mebibytes)), packer.flush()])


def _compressed() -> Iterator[tuple[str, bytes]]:
    good = gzip.compress(as_json(GOOD))
    bodies = {
        "cut": good[:-9],
        "only a header": good[:10],
        "nothing": b"",
        "no gzip": as_json(GOOD),
        "wrong sum": good[:-8] + b"12345678",
        "changed": good[:20] + b"\xff\xff\xff" + good[23:],
        "twice": good + good,
        "with more behind": good + b"x" * 100_000,
        "a thousand members": gzip.compress(b" ") * 1000,
        "compressed twice": gzip.compress(good),
        "a bomb of 100 MiB": bomb(100),
        "a bomb of 100 MiB, deflated": bomb(100, "deflate"),
        "deflated": zlib.compress(as_json(GOOD)),
        "deflated and cut": zlib.compress(as_json(GOOD))[:-6],
        "stored blocks of nothing": b"\x78\x01" + b"\x00\x00\x00\xff\xff" * 50_000,
    }
    for name, body in bodies.items():
        for encoding in ("gzip", "deflate", "x-gzip", "br", "identity", "gzip, gzip", "GZIP", "x" * 10_000):
            yield f"{name} as {encoding[:20]}", http(body, headers={"Content-Encoding": encoding})
        yield (
            f"{name}, with a length",
            http(body, headers={"Content-Encoding": "gzip", "Inference-Header-Content-Length": "99"}),
        )
    for accepted in ("gzip", "deflate", "gzip;q=0", "*", "br", "x" * 10_000, ",,,,"):
        yield f"accepts {accepted[:20]}", http(as_json(GOOD), headers={"Accept-Encoding": accepted})


def _chunked(body: bytes, size: str = "") -> bytes:
    head = http(b"", headers={"Content-Length": "", "Transfer-Encoding": "chunked"})
    return head + (size or f"{len(body):x}").encode() + b"\r\n" + body + b"\r\n0\r\n\r\n"


def _framing() -> Iterator[tuple[str, bytes]]:
    good = as_json(GOOD)
    for length in ("-1", "0", "1", "99", "999999999", *map(str, _BIG), "x", "1, 2", "0x5", "+1", "9" * 5000):
        yield f"a length of {length[:20]}", http(good, headers={"Content-Length": length})
        yield f"a length of {length[:20]} and no body", http(b"", headers={"Content-Length": length})
    for size in (
        "0",
        "1",
        "-1",
        "fffffff",
        "7fffffffffffffff",
        "8000000000000000",
        "ffffffffffffffff",
        "f" * 5000,
        "x",
        "",
    ):
        yield f"a chunk of {size[:20]}", _chunked(good, size)
    yield (
        "chunks of one byte",
        (
            http(b"", headers={"Content-Length": "", "Transfer-Encoding": "chunked"})
            + b"".join(b"1\r\n%c\r\n" % byte for byte in good * 50)
            + b"0\r\n\r\n"
        ),
    )
    yield "a chunk's extension", _chunked(good, f"{len(good):x};" + "x" * 100_000)
    yield "trailers", _chunked(good)[:-2] + b"X: y\r\n" * 10_000 + b"\r\n"
    yield "chunked and a length", http(good, headers={"Transfer-Encoding": "chunked"})
    yield "two lengths", http(good).replace(b"Host: x", b"Content-Length: 1\r\nHost: x")
    yield "a thousand requests at once", http(good) * 1000
    yield "a thousand requests of which no answer is read", http(good, headers={"Connection": "keep-alive"}) * 1000
    yield (
        "many kinds at once",
        (http(good) + http(b"", path="/v2", method="GET") + http(b"{", path="/v2/logging")) * 100,
    )
    yield "requests behind an error", http(b"[" * 400_000) + http(good)
    yield "a long path", http(good, path="/" + "x" * 1_000_000)
    yield "a long model", http(good, path=f"/v2/models/{'x' * 1_000_000}/infer")
    yield "a long version", http(good, path=f"/v2/models/m/versions/{'1' * 100_000}/infer")
    yield "a long query", http(good, path=f"{INFER}?{'a=b&' * 100_000}")
    yield "a long header", http(good, headers={"X": "x" * 1_000_000})
    yield "many headers", http(good, headers={f"X-{at}": "x" for at in range(20_000)})
    yield "the same header", http(good).replace(b"Host: x", b"X: y\r\n" * 20_000 + b"Host: x")
    yield "a header's name", http(good, headers={"x" * 1_000_000: "x"})
    yield "folded headers", http(good).replace(b"Host: x", b"Host: x" + b"\r\n y" * 10_000)
    yield "a NUL in a header", http(good, headers={"X": "\x00"})
    yield "trace parents", http(good, headers={"traceparent": "00-" + "f" * 100_000})
    yield "expects", http(good, headers={"Expect": "100-continue"})
    yield "expects something else", http(good, headers={"Expect": "x" * 10_000})
    yield "upgrades", http(good, headers={"Connection": "Upgrade", "Upgrade": "websocket"})
    yield "HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100)
    yield "HTTP/9", http(good).replace(b"HTTP/1.1", b"HTTP/9.9")
    yield "HTTP/0.9", b"GET /\r\n"
    yield "no version", http(good).replace(b" HTTP/1.1", b"")
    yield "TLS", bytes.fromhex("16030100c8010000c40303") + bytes(200)
    yield "zeros", bytes(100_000)
    yield "line ends", b"\r\n" * 100_000
    yield "bytes", bytes(range(256)) * 1000
    yield "half a header", b"POST /v2 HTTP/1.1\r\nX: "
    yield "half a body", http(good)[:-5]
    for method in (
        "GET",
        "HEAD",
        "PUT",
        "DELETE",
        "OPTIONS",
        "TRACE",
        "CONNECT",
        "PATCH",
        "PROPFIND",
        "X" * 10_000,
        "",
    ):
        yield f"method {method[:9]}", http(good, method=method)


def _paths() -> Iterator[tuple[str, bytes]]:
    models = (
        "m",
        "n",
        "",
        "..",
        "%00",
        "%2e%2e",
        "m%00",
        "x" * 10_000,
        "\xff",
        "%",
        "%zz",
        "m m",
        "*",
        "-",
        "m;x",
        "m?x",
    )
    ends = ("", "/infer", "/ready", "/config", "/stats", "/generate", "/generate_stream", "/trace/setting", "/versions")
    for model in models:
        for end in ends:
            for method in ("GET", "POST"):
                yield f"{method} {model[:9]}{end}", http(b"{}", path=f"/v2/models/{model}{end}", method=method)
    for version in (
        "0",
        "-1",
        "2",
        "9" * 30,
        "1.5",
        "x",
        "",
        "%31",
        "3/3",
        "-9223372036854775808",
        "18446744073709551615",
    ):
        for end in ends[:4]:
            yield f"version {version}{end}", http(as_json(GOOD), path=f"/v2/models/m/versions/{version}{end}")
    for path in (
        "/",
        "//",
        "/v2",
        "/v2/",
        "/v3",
        "/v2/health",
        "/v2/health/x",
        "/v2/models",
        "/v2/models/stats",
        "/metrics",
    ):
        yield f"GET {path}", http(b"", path=path, method="GET")
        yield f"POST {path}", http(as_json(GOOD), path=path)


def _many() -> Iterator[tuple[str, bytes]]:
    yield "inputs", http(as_json({"inputs": [INPUT] * 50_000}))
    yield "inputs of different names", http(as_json({"inputs": [{**INPUT, "name": f"x{at}"} for at in range(50_000)]}))
    yield "outputs", http(as_json({**GOOD, "outputs": [{"name": "y"}] * 100_000}))
    yield "parameters", http(as_json({**GOOD, "parameters": {f"p{at}": at for at in range(100_000)}}))
    yield "the same parameter", http(b'{"parameters": {' + b'"p": 1, ' * 100_000 + b'"p": 1}, ' + as_json(GOOD)[1:])
    yield "fields", http(b'{"a": 1, ' * 1 + b'"a": 1, ' * 200_000 + as_json(GOOD)[1:])
    yield "values", http(as_json({"inputs": [{**INPUT, "data": [1] * 1_000_000}]}))
    yield "texts", http(as_json({"inputs": [{**INPUT, "datatype": "BYTES", "data": [""] * 500_000}]}))
    yield "rows", http(as_json({"inputs": [{**INPUT, "shape": [200_000, 4], "data": [[1] * 4] * 200_000}]}))
    yield "a long name", http(as_json({"inputs": [{**INPUT, "name": "x" * 5_000_000}]}))
    yield "a long id", http(as_json({**GOOD, "id": "x" * 5_000_000}))
    yield "a long parameter", http(as_json({**GOOD, "parameters": {"x" * 1_000_000: "x" * 1_000_000}}))
    yield "over 32 MiB of JSON", http(b"[" + b"1," * (17 << 20) + b"1]")
    yield "32 MiB of empty lists", http(b"[" + b"[]," * (10 << 20) + b"1]")
    yield "32 MiB of values", http(b"[" + b"1," * (15 << 20) + b"1]")
    yield "32 MiB of members", http(b"{" + b'"":1,' * (6 << 20) + b'"":1}')


def _closed() -> Iterator[tuple[str, bytes]]:
    """What would change the server."""
    for path, body in CLOSED.items():
        yield f"POST {path}", http(as_json(body), path=path)
    for path in {path for path in CLOSED if not path.startswith("/v2/repository")}:
        yield f"GET {path}", http(b"", path=path, method="GET")


_SETTINGS: dict[str, Any] = {"log_verbose_level": 9, "log_info": False, "log_file": "/tmp/x"}
_TRACES: dict[str, Any] = {
    "trace_level": ["TIMESTAMPS"],
    "trace_rate": "1",
    "trace_file": "/tmp/x",
    "log_frequency": "1",
}
_OVERRIDE = {"parameters": {"config": '{"backend": "python"}', "file:1/model.py": "eA=="}}
CLOSED: dict[str, Any] = {
    "/v2/repository/index": {},
    "/v2/repository/models/m/load": {},
    "/v2/repository/models/m/load?x": _OVERRIDE,
    "/v2/repository/models/m/unload": {},
    "/v2/repository/models/m/unload?x": {"parameters": {"unload_dependents": True}},
    "/v2/repository/models/../m/load": {},
    "/v2/logging": _SETTINGS,
    "/v2/trace/setting": _TRACES,
    "/v2/models/m/trace/setting": _TRACES,
    "/v2/systemsharedmemory/status": {},
    "/v2/systemsharedmemory/region/r/register": {"key": "/x", "offset": 0, "byte_size": 2**63},
    "/v2/systemsharedmemory/unregister": {},
    "/v2/cudasharedmemory/status": {},
    "/v2/cudasharedmemory/region/r/register": {"raw_handle": {"b64": "eA=="}, "device_id": 0, "byte_size": 2**63},
    "/v2/cudasharedmemory/unregister": {},
}

FAMILIES = {
    "nested": _nested,
    "shapes": _shapes,
    "fields": _fields,
    "binary": _binary,
    "compressed": _compressed,
    "framing": _framing,
    "paths": _paths,
    "many": _many,
    "closed": _closed,
}


@cache
def family(name: str) -> dict[str, bytes]:
    """The attacks of a family by name."""
    return dict(FAMILIES[name]())
