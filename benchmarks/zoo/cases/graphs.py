"""Models logged as ONNX: real weights from packages, a fixed batch, and a voice detector with a state."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.case import Case, Logged
from benchmarks.zoo.cases.packages import packages


def _session(file: Path) -> Any:
    import onnxruntime as ort

    return ort.InferenceSession(file, providers=["CPUExecutionProvider"])


def _ocr(file: str, shape: tuple[int, ...], _: Path) -> Logged:
    """A graph of PP-OCR, with the signature that its answers imply; each sample is asked by itself."""
    import mlflow
    import onnx
    from mlflow.models import infer_signature

    path = packages() / "rapidocr_onnxruntime" / "models" / file
    session = _session(path)
    x = np.random.default_rng(0).uniform(-1, 1, (4, *shape)).astype(np.float32)
    given, taken = session.get_inputs()[0].name, session.get_outputs()[0].name
    question, answer = {given: x[:2]}, session.run(None, {given: x[:2]})[0]
    signature = infer_signature(question, {taken: answer})
    return Logged(
        log=lambda **options: mlflow.onnx.log_model(
            onnx.load(path), signature=signature, input_example=question, pip_requirements=[], **options
        ),
        question={given: x},
        inputs={given: x},
    )


def _fixed(_: Path) -> Logged:
    """A graph whose batch is 1, as many exporters write it; logged with nothing but itself."""
    import mlflow
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    constants = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.array([1, 16]), "flat")]
    nodes = [
        helper.make_node(*node)
        for node in (("Reshape", ["x", "flat"], ["rows"]), ("MatMul", ["rows", "w"], ["z"]), ("Tanh", ["z"], ["y"]))
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 4, 4]), ("y", [1, 3]))
    )
    graph = helper.make_graph(nodes, "fixed", [x], [y], constants)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    asked = np.random.default_rng(1).normal(size=(8, 4, 4)).astype(np.float32)
    return Logged(
        log=lambda **options: mlflow.onnx.log_model(model, pip_requirements=[], **options),
        inputs={"x": asked},
        original={"y": np.tanh(asked.reshape(8, 16) @ weights)},
    )


def _voice(_: Path) -> Logged:
    """silero-vad: a state, and a sampling rate of rank 0. Its answers are those of the graph, step by step."""
    import mlflow
    import onnx
    import silero_vad
    from mlflow.models import infer_signature

    file = Path(silero_vad.__file__).parent / "data" / "silero_vad.onnx"
    session = _session(file)
    sound = np.random.default_rng(0).normal(scale=0.1, size=(8, 512)).astype(np.float32)
    state, rate, answers = np.zeros((2, 1, 128), np.float32), np.array(16000, np.int64), []
    example = {"input": sound[:1], "state": state, "sr": rate}
    first = dict(zip(["output", "stateN"], session.run(None, example), strict=True))
    for row in sound:
        answer, state = session.run(None, {"input": row[None], "state": state, "sr": rate})
        answers.append(answer[0])
    signature = infer_signature(example, first)
    return Logged(
        log=lambda **options: mlflow.onnx.log_model(
            onnx.load(file), signature=signature, input_example=example, pip_requirements=[], **options
        ),
        inputs={"input": sound, "sr": np.full(len(sound), 16000)},
        original={"output": np.array(answers)},
    )


GRAPHS = (
    Case(name="onnx-fixed-batch", flavor="onnx", about="a graph whose batch is 1", build=_fixed),
    Case(
        name="onnx-voice",
        flavor="onnx",
        about="silero-vad: a state and a scalar",
        build=_voice,
        sequence=True,
        spec="load: {sequence_length: 4}",
        needs=("silero_vad",),
        install="pip install --no-deps silero-vad",
    ),
    Case(
        name="onnx-ocr-classify",
        flavor="onnx",
        about="PP-OCR's direction classifier, real weights",
        build=partial(_ocr, "ch_ppocr_mobile_v2.0_cls_infer.onnx", (3, 48, 192)),
    ),
    Case(
        name="onnx-ocr-recognise",
        flavor="onnx",
        about="PP-OCRv4's recogniser, real weights",
        build=partial(_ocr, "ch_PP-OCRv4_rec_infer.onnx", (3, 48, 160)),
    ),
    Case(
        name="onnx-ocr-detect",
        flavor="onnx",
        about="PP-OCRv4's detector, real weights",
        build=partial(_ocr, "ch_PP-OCRv4_det_infer.onnx", (3, 160, 160)),
    ),
)
