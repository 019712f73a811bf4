"""Hugging Face models as people log them: released, and answered as `mlflow.pyfunc` answers."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.steps.rollback import rollback
from tests.huggingface import (
    MASKED,
    PAIRS,
    TEXTS,
    cross_encoder,
    image_classifier,
    image_file,
    pipeline,
    png_header,
    sentence_encoder,
)
from tests.integration.conftest import FAST, ONE_FORM, Lab


def released(lab: Lab, name: str, log_model: Any, *, spec: str = FAST) -> Any:
    """The answers of `mlflow.pyfunc`, by text, of a model that is released by now."""
    version = lab.log(name, log_model, spec=spec)
    report = lab.wait(name, version, seconds=900)
    assert report.exit_code == 0, report.reason
    return lab.mlflow.pyfunc.load_model(f"models:/{name}/{version}")


def column(texts: list[str]) -> dict[str, Any]:
    return {"input": np.array(texts).reshape(-1, 1)}


def flat(values: Any) -> list[Any]:
    return list(np.asarray(values).reshape(-1))


def test_labels_and_scores_are_those_of_pyfunc(lab: Lab) -> None:
    log_model = partial(lab.mlflow.transformers.log_model, pipeline("text-classification"))
    model = released(lab, "sentiment", log_model, spec=ONE_FORM)
    expected = model.predict(TEXTS)
    answer = lab.ask("sentiment", column(TEXTS))["outputs"]
    assert flat(answer["label"]) == list(expected["label"])
    np.testing.assert_allclose(flat(answer["score"]), expected["score"], atol=1e-5)
    refuses_bad_texts(lab, "sentiment")


def graph_answers(lab: Lab, name: str, ids: Any, mask: Any) -> Any:
    with TritonClient(lab.grpc) as client:
        served = client.signature(f"{name}--tensors")
        answers = client.infer(f"{name}--tensors", served, {"input_ids": ids, "attention_mask": mask})
    return next(iter(answers.values()))


@pytest.mark.slow
def test_tokens_in_are_served_beside_text_in_and_move_with_it(lab: Lab) -> None:
    words = pipeline("text-classification")
    log_model = partial(lab.mlflow.transformers.log_model, words)
    versions = [lab.log("both", log_model, spec=FAST + "serving: {tensors: true}") for _ in range(2)]
    for version in versions:
        report = lab.wait("both", version, seconds=900)
        assert report.exit_code == 0, report.reason
    tokens = words.tokenizer(TEXTS, padding=True, return_tensors="np")
    with TritonClient(lab.grpc, repository_key=lab.repository_key) as client:
        assert client.loaded().items() >= {"both": [versions[1]], "both--tensors": [versions[1]]}.items()
        scores = graph_answers(lab, "both", tokens["input_ids"], tokens["attention_mask"])
        expected = words(TEXTS)
        assert [words.model.config.id2label[at] for at in scores.argmax(axis=1)] == [e["label"] for e in expected]
        np.testing.assert_allclose(scores.max(axis=1), [e["score"] for e in expected], atol=1e-5)
        assert rollback(lab.site, "both").version == versions[0]
        assert client.loaded().items() >= {"both": [versions[0]], "both--tensors": [versions[0]]}.items()
        without = lab.log("both", log_model)
        assert lab.wait("both", without, seconds=900).exit_code == 0
        loaded = client.loaded()
        assert loaded["both"] == [without]
        assert not [name for name in loaded if name.startswith("both--")]  # nobody serves what no release checked


@pytest.mark.slow
def test_earlier_versions_answer_texts_and_tokens_of_those_who_name_them(lab: Lab) -> None:
    policy = "serving: {tensors: true, version_policy: {latest: 2}}\n"
    target = "targets: [{name: cpu, engine: onnxruntime, precisions: [fp32]}]\n"
    pipelines = [pipeline("text-classification", seed=seed) for seed in (0, 1)]
    versions = []
    for words in pipelines:
        log_model = partial(lab.mlflow.transformers.log_model, words)
        versions.append(lab.log("editions", log_model, spec=FAST + policy + target))
        report = lab.wait("editions", versions[-1], seconds=900)
        assert report.exit_code == 0, report.reason
    with TritonClient(lab.grpc, repository_key=lab.repository_key) as client:
        loaded = client.loaded()
        assert sorted(loaded["editions"]) == sorted(loaded["editions--tensors"]) == versions
        served = {name: client.signature(name) for name in ("editions", "editions--tensors")}
        for words, version in zip(pipelines, versions, strict=True):
            expected = [each["score"] for each in words(TEXTS)]
            texts = {"input": np.array(TEXTS, dtype=object).reshape(-1, 1)}
            answer = client.infer("editions", served["editions"], texts, version=version)
            np.testing.assert_allclose(flat(answer["score"]), expected, atol=1e-5)
            tokens = words.tokenizer(TEXTS, padding=True, return_tensors="np")
            inputs = {name: tokens[name] for name in ("input_ids", "attention_mask")}
            answer = client.infer("editions--tensors", served["editions--tensors"], inputs, version=version)
            np.testing.assert_allclose(next(iter(answer.values())).max(axis=1), expected, atol=1e-5)


def refuses_bad_texts(lab: Lab, name: str) -> None:
    """Each is refused by itself, with the reason; an empty text is a text."""
    with TritonClient(lab.grpc) as client:
        served = client.signature(serving_name(name))

        def ask(item: bytes) -> Any:
            return client.infer(serving_name(name), served, {"input": np.array([[item]], dtype=object)})

        for item, reason in ((b"\xff\xfe", "not UTF-8"), (b"a " * 2**19, "limit is 262144"), (b"a " * 200, "takes 64")):
            with pytest.raises(ServerFailed, match=reason):
                ask(item)
        assert ask(b"")["label"].shape == (1, 1)


@pytest.mark.slow
def test_a_cross_encoder_scores_pairs_as_pyfunc_does(lab: Lab, tmp_path: Path) -> None:
    from transformers import pipeline as pipeline_of

    encoder = cross_encoder(tmp_path)
    reranker = pipeline_of("text-classification", model=encoder.model, tokenizer=encoder.tokenizer)
    model = released(
        lab, "reranker", lambda **kwargs: lab.mlflow.transformers.log_model(reranker, input_example=PAIRS, **kwargs)
    )
    answer = lab.ask("reranker", {name: np.array([[pair[name]] for pair in PAIRS]) for name in PAIRS[0]})["outputs"]
    np.testing.assert_allclose(flat(answer["score"]), model.predict(PAIRS)["score"], atol=1e-5)
    scores = encoder.predict([tuple(pair.values()) for pair in PAIRS])
    assert PAIRS[-1]["text_pair"] == ""  # which a cross-encoder takes for a text, and a pipeline for none
    np.testing.assert_allclose(flat(answer["score"])[:-1], scores[:-1], atol=1e-5)
    assert len(set(np.round(scores, 3))) == len(PAIRS)  # so that texts in the wrong order would be seen
    refuses_bad_pairs(lab, "reranker")


def refuses_bad_pairs(lab: Lab, name: str) -> None:
    """A text that is not a text fails its own request, also as the second of a pair."""
    with TritonClient(lab.grpc) as client:
        served = client.signature(serving_name(name))
        for pair, reason in (((b"a", b"\xff"), "not UTF-8"), ((b"a " * 40, b"a " * 40), "both texts have 83 tokens")):
            inputs = dict(zip(("text", "text_pair"), (np.array([[text]], dtype=object) for text in pair), strict=True))
            with pytest.raises(ServerFailed, match=reason):
                client.infer(serving_name(name), served, inputs)


@pytest.mark.slow
def test_a_cross_encoder_logged_as_a_sentence_encoder_is_refused(lab: Lab, tmp_path: Path) -> None:
    version = lab.log(
        "headless", lambda **kwargs: lab.mlflow.sentence_transformers.log_model(cross_encoder(tmp_path), **kwargs)
    )
    report = lab.wait("headless", version)
    assert report.exit_code != 0
    assert "without its head" in report.reason


@pytest.mark.slow
def test_labels_of_images_are_those_of_pyfunc_and_bad_images_fail_alone(lab: Lab) -> None:
    images = [image_file(64, 48), image_file(20, 90, "PNG"), image_file(33, 32, "PNG", "L")]
    encoded = [base64.b64encode(image).decode() for image in images]
    model = released(
        lab,
        "pictures",
        lambda **kwargs: lab.mlflow.transformers.log_model(image_classifier(), input_example=encoded, **kwargs),
    )
    expected = model.predict(encoded).to_numpy()
    with TritonClient(lab.grpc) as client:
        served, name = client.signature(serving_name("pictures")), serving_name("pictures")

        def ask(*items: bytes) -> Any:
            return client.infer(name, served, {"input": np.array([[item] for item in items], dtype=object)})

        for sent in (images, [text.encode() for text in encoded]):
            answer = ask(*sent)
            for row, label, score in zip(expected, answer["label"], answer["score"], strict=True):
                assert [text.decode() for text in label] == [entry["label"] for entry in row]
                np.testing.assert_allclose(score, [entry["score"] for entry in row], atol=1e-5)
        refuses_bad_images(ask, images[0])


def refuses_bad_images(ask: Any, good: bytes) -> None:
    """Each with the reason, while a good image sent at the same time is answered."""
    bad = {
        b"": "0 bytes",
        b"text": "not a JPEG or PNG",
        good[:500]: "can't be decoded",
        good[:-200]: "image file is truncated",
        png_header(50_000, 50_000): "50000 x 50000 pixels, the limit is",
    }
    with ThreadPoolExecutor(8) as pool:  # so that Triton makes batches of them
        answers = [(item, pool.submit(ask, item)) for item in [*bad, good] * 5]
        for item, answer in answers:
            if item == good:
                assert answer.result()["label"].shape == (1, 5)
                continue
            with pytest.raises(ServerFailed, match=bad[item]):
                answer.result()


@pytest.mark.slow
def test_a_validation_set_of_texts_is_scored_and_openvino_serves_the_model(lab: Lab) -> None:
    texts = [f"{text} {number}" for number in range(20) for text in TEXTS]
    words = pipeline("text-classification")
    labels = [answer["label"] for answer in words(texts)]
    spec = FAST + "targets: [{name: here, engine: openvino, precisions: [fp32]}]"
    version = lab.log(
        "scored",
        lambda **kwargs: lab.mlflow.transformers.log_model(words, **kwargs),
        spec=spec,
        data={"input": np.array(texts), "label": np.array(labels)},
    )
    report = lab.wait("scored", version, seconds=900)
    assert report.exit_code == 0, report.reason
    tuned = lab.engine.story(report).tuned
    assert tuned is not None
    assert (tuned.package.engine, tuned.package.score) == ("openvino", 1.0)
    answer = lab.ask("scored", column(texts[:8]))["outputs"]
    assert flat(answer["label"]) == labels[:8]


@pytest.mark.slow
def test_embeddings_are_those_of_pyfunc(lab: Lab, tmp_path: Path) -> None:
    model = released(
        lab,
        "encoder",
        lambda **kwargs: lab.mlflow.sentence_transformers.log_model(sentence_encoder(tmp_path), **kwargs),
    )
    texts = [*TEXTS, "a good film " * 100]  # cut, as the encoder says
    answer = lab.ask("encoder", column(texts))["outputs"]
    np.testing.assert_allclose(np.asarray(answer["embeddings"]), model.predict(texts), atol=1e-5)


@pytest.mark.slow
def test_entities_are_those_of_pyfunc(lab: Lab) -> None:
    model = released(
        lab, "entities", lambda **kwargs: lab.mlflow.transformers.log_model(pipeline("token-classification"), **kwargs)
    )
    answer = lab.ask("entities", column(TEXTS))["outputs"]
    assert flat(answer["labels"]) == [model.predict([text])[0] for text in TEXTS]
    for text, entities in zip(TEXTS, flat(answer["entities"]), strict=True):
        expected = model.get_raw_model()(text)
        for actual, original in zip(json.loads(entities), expected, strict=True):
            assert actual == {**original, "score": pytest.approx(float(original["score"]), abs=1e-5)}


@pytest.mark.slow
def test_the_tokens_for_a_mask_are_those_of_pyfunc(lab: Lab) -> None:
    model = released(lab, "mask", lambda **kwargs: lab.mlflow.transformers.log_model(pipeline("fill-mask"), **kwargs))
    answer = lab.ask("mask", column(MASKED))["outputs"]
    assert flat(answer["token"]) == model.predict(MASKED)
    with TritonClient(lab.grpc) as client, pytest.raises(ServerFailed, match="0 mask tokens"):
        client.infer(serving_name("mask"), client.signature(serving_name("mask")), column(TEXTS[:1]))


@pytest.mark.slow
def test_features_are_those_of_pyfunc(lab: Lab) -> None:
    model = released(
        lab, "features", lambda **kwargs: lab.mlflow.transformers.log_model(pipeline("feature-extraction"), **kwargs)
    )
    expected, texts = {text: model.predict([text]) for text in TEXTS}, TEXTS * 20
    with TritonClient(lab.grpc) as client, ThreadPoolExecutor(8) as pool:  # so that Triton makes batches of them
        served, name = client.signature(serving_name("features")), serving_name("features")
        answers = pool.map(lambda text: client.infer(name, served, column([text]))["features"], texts)
        for text, answer in zip(texts, answers, strict=True):
            np.testing.assert_allclose(answer, expected[text][None], atol=1e-5)
