"""The tasks of Hugging Face models that are released, and why others are not."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.base.files import read_regular
from shiplift.runtime.records.model import Flavor

TEXT_FLAVORS: tuple[Flavor, ...] = ("transformers", "sentence_transformers")
EXTRA = "Install the `transformers` extra: pip install 'shiplift[transformers]'."
# By MLflow's `instance_type`: a task has several names (`ner`, `sentiment-analysis`), but its pipeline has one.
_PIPELINES = {
    "TextClassificationPipeline": "text-classification",
    "TokenClassificationPipeline": "token-classification",
    "FillMaskPipeline": "fill-mask",
    "FeatureExtractionPipeline": "feature-extraction",
    "ImageClassificationPipeline": "image-classification",
    "ObjectDetectionPipeline": "object-detection",
    "TextGenerationPipeline": "text-generation",
}
GENERATION = "text-generation"
DETECTION = "object-detection"
IMAGE_TASKS = ("image-classification", DETECTION)
PAIR = ("text", "text_pair")  # a pipeline's names for two texts; cross-encoders take pairs
_OF_PAIRS = {"text-classification": "text-pair-classification"}  # the task's name if its signature names a pair
_TRUNCATION = ("truncation", "max_length")
_CUTS = ("TextClassificationPipeline",)  # pipelines treat these parameters differently
_GENERATES = ("Text2TextGeneration", "Summarization", "Translation", "Conversational")
_HEAD = re.compile(r"For[A-Z]")  # in the class name of a model with a head; a sentence encoder has none
_TEXTS = (
    "Ships carry most of the goods that the world trades.",
    "Anna lives in Paris.",
    "The crane lifts a container from the quay, and sets it down on the deck of the vessel.",
)
_MAX_BYTES = 1 << 20


def task_of(meta: dict[str, Any], flavor: Flavor) -> str:
    """The task of a logged model, by its `MLmodel` file.

    Raises:
        NotAdmitted: models of this task are not released.
    """
    logged = meta["flavors"][flavor]
    if flavor == "sentence_transformers":
        if logged.get("task"):
            raise NotAdmitted(
                f"the model was logged with `task: {logged['task']}`, which wraps its answers in another API's JSON",
                do="Log it without, `log_model(..., task=None)`: it then answers with embeddings.",
            )
        _check_headless(str(logged.get("pipeline_model_type")))
        return "sentence-embedding"
    kind = str(logged.get("instance_type"))
    if (meta.get("metadata") or {}).get("prompt_template"):
        raise NotAdmitted(
            "the model was logged with a `prompt_template`, which MLflow puts around each text, but Triton would not",
            do="Log it without one, `log_model(..., prompt_template=None)`, and "
            "send texts that are whole prompts; or give its tokenizer a chat template.",
        )
    if kind in _PIPELINES and not logged.get("peft_adaptor") and not _changes(meta, kind):
        task = _PIPELINES[kind]
        return _OF_PAIRS.get(task, task) if _inputs(meta) == set(PAIR) else task
    raise _refusal(meta, str(logged.get("task")), kind)


def texts_of(task: str) -> tuple[str, ...]:
    """The names of a sample's texts, in the tokenizer's order; empty if it is one text, whatever its name."""
    return PAIR if task in _OF_PAIRS.values() else ()


def wraps_openai(meta: dict[str, Any], flavor: Flavor) -> bool:
    """Whether a text generator was logged with `task: llm/v1/chat` or similar: in MLflow it takes OpenAI's requests."""
    return str(meta["flavors"][flavor].get("inference_task") or "").startswith("llm/v1/")


def _inputs(meta: dict[str, Any]) -> set[str]:
    entries = json.loads((meta.get("signature") or {}).get("inputs") or "[]")
    return {str(entry.get("name")) for entry in entries}


def _check_headless(kind: str) -> None:
    """Refuses a model with a head: MLflow loads it as a sentence encoder and silently drops the head."""
    if _HEAD.search(kind):
        raise NotAdmitted(
            f"the model is a {kind}, as cross-encoders are; mlflow.sentence_transformers loads it as a sentence "
            "encoder, without its head, and would answer with meaningless embeddings",
            do="Log a cross-encoder with `mlflow.transformers`: `pipeline('text-classification', model=encoder.model, "
            "tokenizer=encoder.tokenizer)` and `input_example=[{'text': .., 'text_pair': ..}]`.",
        )


def truncation_of(meta: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a `model_config` that cut long texts: `truncation`, and `max_length` in tokens."""
    config = meta["flavors"].get("python_function", {}).get("config") or {}
    return {name: config[name] for name in _TRUNCATION if name in config}


def _changes(meta: dict[str, Any], kind: str) -> bool:
    """Whether the model was logged with a `model_config` that changes its pipeline's answers."""
    config = meta["flavors"].get("python_function", {}).get("config") or {}
    understood = _TRUNCATION if kind in _CUTS else ()
    return bool(config.keys() - set(understood)) or not isinstance(config.get("max_length", 1), int)


_THE_MODEL_ITSELF = (
    "Log the model itself, as ONNX or with "
    "`mlflow.pytorch.log_model(pipeline.model, name='model', serialization_format='pt2', input_example=x)`"
)


def _refusal(meta: dict[str, Any], task: str, kind: str) -> NotAdmitted:
    if kind.startswith(_GENERATES):
        return NotAdmitted(
            f"the model's task is {task!r}: of the models that generate text, only those for text-generation are "
            "released, which continue a prompt",
            do="Choose a decoder-only model; or serve this one with Triton's vLLM or TensorRT-LLM backend.",
        )
    if kind == "QuestionAnsweringPipeline":
        return NotAdmitted(
            f"the model's task is {task!r}, for which transformers 5 has no pipeline any more: nothing can say what "
            "production should answer",
            do=f"{_THE_MODEL_ITSELF}: clients then send tokens, and get start and end.",
        )
    if kind not in _PIPELINES:
        return NotAdmitted(
            f"the model's task is {task!r}; released ones are {', '.join(_PIPELINES.values())} (of pairs, too), and "
            "sentence embeddings (mlflow.sentence_transformers)",
            do=f"{_THE_MODEL_ITSELF}: clients then send tensors.",
        )
    what = "a `model_config`" if _changes(meta, kind) else "a PEFT adapter"
    return NotAdmitted(
        f"the model was logged with {what}, which is not released",
        do="Log the pipeline without it; merge an adapter into its model first (`merge_and_unload`).",
    )


def example_texts(folder: Path, task: str) -> NDArray[Any]:
    """Sentences for a model that was logged without an input example, with its mask token if it needs one.

    Raises:
        NotAdmitted: the tokenizer names no mask token.
    """
    texts = list(_TEXTS)
    if task == "fill-mask":
        mask = _mask_token(folder)
        texts = [text.replace(text.split()[1], mask, 1) for text in texts]
    return np.array(texts, dtype=object).reshape(-1, 1)


def _mask_token(folder: Path) -> str:
    for file in sorted(folder.rglob("tokenizer_config.json")):
        token = json.loads(read_regular(file, _MAX_BYTES)).get("mask_token")
        if token:
            return str(token["content"] if isinstance(token, dict) else token)
    raise NotAdmitted("the tokenizer has no mask token", do="Log a fill-mask pipeline with its own tokenizer.")
