"""Rows and the original's answers to them, as the arrays of one file.

A set of rows has the arrays `SET/input/NAME` and `SET/output/NAME`, `SET/noise/NAME` and `SET/usual/NAME` where these
are known, and with a text for each row `SET/origins`, and `SET/errors`, empty where there is none.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from shiplift.runtime.model.tensors import Arrays, under
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.questions.question import Questions


def in_file(
    asked: Mapping[str, Arrays], answers: Mapping[str, Answers], origins: Mapping[str, Sequence[str]]
) -> Arrays:
    """All sets as the arrays of one file; of each, the rows that were answered in time."""
    named: Arrays = {}
    for name, each in answers.items():
        count = len(each.errors)
        named |= {f"{name}/input/{key}": array[:count] for key, array in asked[name].items()}
        named |= {f"{name}/output/{key}": np.asarray(array) for key, array in each.outputs.items()}
        named |= {f"{name}/noise/{key}": array for key, array in each.noise.items()}
        named |= {f"{name}/usual/{key}": array for key, array in each.usual.items()}
        named[f"{name}/errors"] = np.array(each.errors, dtype=np.str_)
        named[f"{name}/origins"] = np.array(origins[name][:count], dtype=np.str_)
    return named


def from_file(arrays: Arrays, name: str) -> tuple[Questions, Answers]:
    """A set's rows, and the original's answers to them."""
    errors, origins = (tuple(arrays[f"{name}/{each}"].tolist()) for each in ("errors", "origins"))
    outputs, noise, usual = (under(f"{name}/{each}/", arrays) for each in ("output", "noise", "usual"))
    answers = Answers(outputs=outputs, errors=errors, noise=noise, usual=usual)
    return Questions(inputs=under(f"{name}/input/", arrays), origins=origins), answers


def sets_in(arrays: Arrays) -> list[str]:
    """The names of the sets in a file."""
    return sorted(name.removesuffix("/errors") for name in arrays if name.endswith("/errors") and name.count("/") == 1)
