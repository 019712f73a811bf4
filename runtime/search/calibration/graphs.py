"""The graphs that a calibration measures: made here from random numbers, so that no model of anybody is needed."""

import itertools
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.precision import quantization
from shiplift.runtime.records.calibration import GraphKind
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.trees import TreesForm
from shiplift.runtime.spec.model import Quantization
from shiplift.runtime.spec.target import Target

OUTPUTS = ("output",)
FOREST = TreesForm(answers={"output": "scores"})
_ROWS, _WIDTH, _INNER, _BLOCKS = 16, 384, 1536, 2  # of dense: 75 MFLOP for a sample
_FEATURES, _TREES, _DEPTH = 20, 100, 6
_SHAPES: dict[GraphKind, tuple[int, ...]] = {"dense": (_ROWS, _WIDTH), "small": (32,), "trees": (_FEATURES,)}
_CALIBRATED = 16  # samples
_OPSET, _ML_OPSET, _IR = 17, 3, 8
FOREST_SIGNATURE = Signature(
    inputs=(TensorSpec(name="input", datatype="FP32", shape=(-1, _FEATURES)),),
    outputs=(TensorSpec(name="output", datatype="FP32", shape=(-1, 1)),),
)


def samples(kind: GraphKind, count: int) -> Arrays:
    """So many samples of a graph's input, FP32."""
    rng = np.random.default_rng(0)
    return {"input": rng.normal(size=(count, *_SHAPES[kind])).astype(np.float32)}


def write_graph(kind: GraphKind, to: Path) -> Path:
    """Writes a graph in fp32 as ONNX. A file of its own folder, because its weights may be beside it."""
    to.parent.mkdir(parents=True, exist_ok=True)
    if kind == "trees":
        return _save(_ensemble(), (_FEATURES,), (1,), [], to)
    widths = [_WIDTH, _INNER] * _BLOCKS + [_WIDTH] if kind == "dense" else [32, 64, 64, 10]
    nodes, weights, last = [], [], "input"
    for at, (rows, columns) in enumerate(itertools.pairwise(widths)):
        rng = np.random.default_rng(at)
        weights.append(numpy_helper.from_array(_normal(rng, rows, columns), f"weight{at}"))
        output = "output" if at == len(widths) - 2 else f"hidden{at}"
        product = output if output == "output" else f"product{at}"
        nodes.append(helper.make_node("MatMul", [last, f"weight{at}"], [product], name=f"product_{at}"))
        if output != "output":
            nodes.append(helper.make_node("Relu", [product], [output], name=f"relu_{at}"))
        last = output
    return _save(nodes, _SHAPES[kind], (*_SHAPES[kind][:-1], widths[-1]), weights, to)


def write_int8(kind: GraphKind, model: Path, target: Target, folder: Path) -> Path:
    """Writes a graph's 8-bit form, as a release on this target would build it.

    Raises:
        QuantizeFailed: it can't be built.
    """
    settings = Quantization(methods=("minmax",))
    folder.mkdir(parents=True, exist_ok=True)
    form = quantization.scheme(model, target, settings)
    prepared = quantization.prepare(model, folder / "prepared.onnx")
    found = quantization.ranges(prepared, samples(kind, _CALIBRATED), form.op_types, settings, folder)
    to = folder / "int8" / "model.onnx"
    to.parent.mkdir(exist_ok=True)
    return quantization.quantize_static(prepared, found["minmax"], form, to)


def write_forest(to: Path) -> Path:
    """Writes the trees as a checkpoint of treelite.

    Raises:
        ImportError: this environment has no treelite.
    """
    import treelite  # noqa: PLC0415 - only for forests
    from treelite.model_builder import Metadata, ModelBuilder, PostProcessorFunc, TreeAnnotation  # noqa: PLC0415

    builder = ModelBuilder(
        threshold_type="float32",
        leaf_output_type="float32",
        metadata=Metadata(
            num_feature=_FEATURES,
            task_type="kRegressor",
            average_tree_output=False,
            num_target=1,
            num_class=[1],
            leaf_vector_shape=(1, 1),
        ),
        tree_annotation=TreeAnnotation(num_tree=_TREES, target_id=[0] * _TREES, class_id=[0] * _TREES),
        postprocessor=PostProcessorFunc(name="identity"),
        base_scores=[0.0],
    )
    for features, thresholds, leaves in _forest():
        builder.start_tree()
        for node, (feature, threshold) in enumerate(zip(features, thresholds, strict=True)):
            builder.start_node(node)
            builder.numerical_test(
                feature_id=int(feature),
                threshold=float(threshold),
                default_left=True,
                opname="<=",
                left_child_key=2 * node + 1,
                right_child_key=2 * node + 2,
            )
            builder.end_node()
        for at, leaf in enumerate(leaves):
            builder.start_node(len(features) + at)
            builder.leaf(float(leaf))
            builder.end_node()
        builder.end_tree()
    forest: treelite.Model = builder.commit()
    to.parent.mkdir(parents=True, exist_ok=True)
    forest.serialize(to)
    return to


def _forest() -> list[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]]:
    """Complete trees: the features and thresholds of their inner nodes, level by level, and their leaves."""
    rng, inner = np.random.default_rng(0), 2**_DEPTH - 1
    return [
        (
            rng.integers(0, _FEATURES, inner),
            rng.normal(size=inner).astype(np.float32),
            rng.normal(size=inner + 1).astype(np.float32),
        )
        for _ in range(_TREES)
    ]


def _ensemble() -> list[onnx.NodeProto]:
    forest = _forest()
    inner, every = 2**_DEPTH - 1, 2 ** (_DEPTH + 1) - 1
    leaves = range(inner, every)
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["input"],
        ["output"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=[tree for tree in range(_TREES) for _ in range(every)],
        nodes_nodeids=list(range(every)) * _TREES,
        nodes_featureids=[int(each) for features, _, _ in forest for each in (*features, *[0] * (inner + 1))],
        nodes_values=[float(each) for _, thresholds, _ in forest for each in (*thresholds, *[0.0] * (inner + 1))],
        nodes_modes=[mode for _ in forest for mode in ["BRANCH_LEQ"] * inner + ["LEAF"] * (inner + 1)],
        nodes_truenodeids=[child for _ in forest for child in (*range(1, every, 2), *[0] * (inner + 1))],
        nodes_falsenodeids=[child for _ in forest for child in (*range(2, every, 2), *[0] * (inner + 1))],
        target_treeids=[tree for tree in range(_TREES) for _ in leaves],
        target_nodeids=list(leaves) * _TREES,
        target_ids=[0] * (_TREES * len(leaves)),
        target_weights=[float(each) for _, _, weights in forest for each in weights],
    )
    return [node]


def _save(
    nodes: list[onnx.NodeProto],
    shape: tuple[int, ...],
    answer: tuple[int, ...],
    weights: list[onnx.TensorProto],
    to: Path,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "calibration",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", *answer])],
        weights,
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _ML_OPSET)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=_IR), to)
    return to


def _normal(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float32]:
    return np.asarray(rng.normal(size=(rows, columns)) / np.sqrt(rows), np.float32)
