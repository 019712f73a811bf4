"""An example: trains a small BERT to judge film reviews, logs its pipeline with MLflow and registers it. That is all.

Registering the model starts its release. Only the line that finds MLflow is specific to Shiplift. Production then takes
texts and answers with labels and scores, as the pipeline does. Log your own pipeline, such as
`transformers.pipeline("text-classification", FOLDER)`, in the same way.

    python train.py
"""

import argparse
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import mlflow
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

import shiplift

SUBJECTS = ("the film", "this film", "the story", "the acting", "the music", "every scene", "the ending", "the cast")
VERBS = ("was", "seemed", "felt")
JUDGEMENTS = {
    "negative": ("dull", "terrible", "far too long", "badly written", "hard to bear", "a waste of time"),
    "positive": ("wonderful", "a delight", "very funny", "well written", "worth seeing twice", "a great surprise"),
}
LABELS = list(JUDGEMENTS)


def reviews() -> tuple[list[str], list[int]]:
    """All sentences in a random order, and the number of each one's label."""
    pairs = [
        (f"{subject} {verb} {judgement}", LABELS.index(label))
        for label, judgements in JUDGEMENTS.items()
        for subject, verb, judgement in product(SUBJECTS, VERBS, judgements)
    ]
    order = np.random.default_rng(0).permutation(len(pairs))
    return [pairs[at][0] for at in order], [pairs[at][1] for at in order]


def tokenizer_of(texts: list[str]) -> transformers.PreTrainedTokenizerFast:
    """A WordPiece tokenizer, trained on the texts."""
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    core = Tokenizer(models.WordPiece(unk_token=names["unk"]))
    core.normalizer, core.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    core.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=400, special_tokens=list(names.values())))
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokens = {f"{name}_token": token for name, token in names.items()}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=64, **tokens)


def train(texts: list[str], labels: list[int], epochs: int = 6) -> transformers.Pipeline:
    """A text-classification pipeline around a BERT of two layers, trained from scratch."""
    torch.manual_seed(0)
    tokenizer = tokenizer_of(texts)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        id2label=dict(enumerate(LABELS)),
        label2id={name: at for at, name in enumerate(LABELS)},
    )
    model = transformers.BertForSequenceClassification(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    encoded, wanted = tokenizer(texts, padding=True, return_tensors="pt"), torch.tensor(labels)
    for _ in range(epochs):
        for batch in torch.randperm(len(texts)).split(16):
            optimizer.zero_grad()
            inputs = {name: encoded[name][batch] for name in ("input_ids", "attention_mask")}
            model(**inputs, labels=wanted[batch]).loss.backward()
            optimizer.step()
    return transformers.pipeline("text-classification", model=model.eval(), tokenizer=tokenizer)


def main() -> None:
    """Trains, logs and registers the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="films", help="the registered model's name")
    parser.add_argument("--spec", type=Path, default=Path("shiplift.yaml"), help="a release spec to log with the model")
    arguments = parser.parse_args()

    texts, labels = reviews()
    judge = train(texts[:-120], labels[:-120])
    right = [answer["label"] == LABELS[label] for answer, label in zip(judge(texts[-120:]), labels[-120:], strict=True)]
    print(f"accuracy {np.mean(right):.3f} on {len(right)} sentences")

    mlflow.set_tracking_uri(shiplift.tracking_uri())  # MLFLOW_TRACKING_URI, or else the running stack's
    with mlflow.start_run(), TemporaryDirectory() as folder:
        data = Path(folder) / "validation.npz"  # it decides the precision and the accuracy gate
        np.savez(data, text=np.array(texts[-120:]), label=np.array([LABELS[label] for label in labels[-120:]]))
        mlflow.log_artifact(str(data), "shiplift")
        if arguments.spec.is_file():
            mlflow.log_text(arguments.spec.read_text(), "shiplift/shiplift.yaml")
        logged = mlflow.transformers.log_model(
            judge,
            name="model",
            input_example=texts[:2],
            registered_model_name=arguments.name,
            pip_requirements=[
                f"{package.__name__}=={package.__version__.partition('+')[0]}" for package in (torch, transformers)
            ],
        )
    version = f"{arguments.name}/{logged.registered_model_version}"
    print(f"registered {version} in {mlflow.get_tracking_uri()}; next:")
    print(f"  shiplift status {arguments.name} --watch")
    print(f"  shiplift report {version}")


if __name__ == "__main__":
    main()
