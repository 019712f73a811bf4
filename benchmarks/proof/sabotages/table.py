"""The sabotages that fit an export."""

from benchmarks.proof.sabotages.fronts import FRONTS
from benchmarks.proof.sabotages.graph_nodes import NODES
from benchmarks.proof.sabotages.graph_weights import WEIGHTS
from benchmarks.proof.sabotages.mutation import Mutation
from benchmarks.proof.sabotages.python import PYTHON
from benchmarks.proof.sabotages.trees import TREES
from shiplift.runtime.records.kinds.exported import Exported, ExportedGraph, ExportedPython

__all__ = ["MUTATIONS", "Mutation", "mutations_of"]
MUTATIONS: tuple[Mutation, ...] = (*WEIGHTS, *NODES, *TREES, *FRONTS, *PYTHON)


def mutations_of(version: Exported) -> tuple[Mutation, ...]:
    """What can be done to what an export serves."""
    if isinstance(version, ExportedPython):
        return PYTHON
    if not isinstance(version, ExportedGraph):
        return (*WEIGHTS, *NODES, *FRONTS)
    graph = () if version.form == "exact trees" else (*WEIGHTS, *NODES)
    return (*graph, *(TREES if version.trees else ()))
