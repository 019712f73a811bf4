"""What a walked pickle means: which of its names and calls are objections, under the site's and the spec's rules."""

from collections.abc import Iterator
from typing import Literal

from shiplift.runtime.admission import allowed
from shiplift.runtime.admission.allowed import Pickle
from shiplift.runtime.admission.formats.pickles import Global, PickleCall, PickleTrace, importable
from shiplift.runtime.records.model import Finding

# What reads a pickle: Python's unpickler, torch.load (which resolves tensors' persistent ids), or TorchScript's own.
Reader = Literal["python", "torch", "torchscript"]
_ENCODINGS = {"latin1", "latin-1", "utf8", "utf-8"}
NOT_ALLOWED = "which is not on the list of allowed names"
_SHOWN = 5


def findings(walked: PickleTrace, file: str, pickle: Pickle, reader: Reader) -> Iterator[Finding]:
    """The objections to a pickle. Text that only resembles one names no installed module, and so raises none."""
    if not walked.headed and not walked.hidden and not any(importable(name) for name in walked.globals):
        return
    problems = list(
        dict.fromkeys(
            [*_names(walked, pickle, reader), *_calls(walked, pickle), *((problem, "") for problem in walked.problems)]
        )
    )
    for what, names in problems[:_SHOWN]:
        yield Finding(severity="critical", file=file, what=what, names=names)
    if len(problems) > _SHOWN:
        yield Finding(severity="critical", file=file, what=f"and {len(problems) - _SHOWN} more objections")


def _names(walked: PickleTrace, pickle: Pickle, reader: Reader) -> Iterator[tuple[str, str]]:
    for name in walked.globals:
        if reader == "torchscript" and name.module.split(".")[0] == "__torch__":
            continue
        if allowed.is_data(name.key) or (pickle == "sandbox" and allowed.is_framework(name.key)):
            continue
        yield (_why(name), str(name))
    for name in walked.hidden:
        if not (allowed.is_data(name.key) or allowed.is_framework(name.key)):
            yield (f"its bytes hide a pickle that uses {name}", str(name))


def _why(name: Global) -> str:
    if allowed.by_value(name.key) and allowed.is_framework(name.key):
        return f"it is a pickle that carries its author's code ({name})"
    if allowed.is_framework(name.key):
        return f"it is a pickle of {name}, and the spec says `pickle: refuse`"
    return f"it is a pickle that uses {name}, {NOT_ALLOWED}"


def _calls(walked: PickleTrace, pickle: Pickle) -> Iterator[tuple[str, str]]:
    carries_code = pickle == "sandbox" and any(allowed.by_value(name.key) for name in walked.globals)
    for call in walked.calls:
        if not isinstance(call.function, Global):
            if not carries_code:
                yield "it calls the result of another call", ""
        elif problem := _bad_argument(call, call.function):
            yield problem, str(call.function)


def _bad_argument(call: PickleCall, function: Global) -> str:
    arguments = call.arguments
    if function.name == "subimport" and (not arguments or arguments[0] not in allowed.modules()):
        return f"it imports {(arguments or ('what it computes',))[0]!r}"
    if function.key == ("_codecs", "encode") and (not arguments or arguments[-1] not in _ENCODINGS):
        return "it encodes with an unknown codec"
    return ""
