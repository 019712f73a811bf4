"""Small real Hugging Face models with random weights, and a real tokenizer trained on a few sentences."""

import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

TEXTS = ["the quick brown fox jumps over the lazy dog", "a good film", "Anna lives in Paris and works for Acme"]
PAIRS = [
    {"text": text, "text_pair": pair}
    for text, pair in zip(TEXTS, ["lazy dogs", "a terrible film " * 3, ""], strict=True)
]
MASKED = ["the [MASK] brown fox", "a good [MASK] with a great cast and a terrible ending"]
_LABELS = {"text-classification": ["bad", "fair", "good"], "token-classification": ["O", "B-PER", "I-PER"]}


def tokenizer(**settings: Any) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=list(names.values())))
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    core.decoder = decoders.WordPiece()
    tokens = {f"{name}_token": token for name, token in names.items()}
    return PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=64, **tokens, **settings)


def config(vocabulary: int, task: str = "", **changes: Any) -> Any:
    from transformers import BertConfig

    labels = dict(enumerate(_LABELS.get(task, ["a", "b"])[: changes.pop("num_labels", None)]))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    ids = {label: at for at, label in labels.items()}
    return BertConfig(
        vocab_size=vocabulary,
        max_position_embeddings=64,
        id2label=labels,
        label2id=ids,
        initializer_range=0.5,
        **sizes,
        **changes,
    )


def pipeline(task: str, *, seed: int = 0, **changes: Any) -> Any:
    """A pipeline for `task` around a BERT of two layers."""
    import torch
    import transformers

    torch.manual_seed(seed)
    kind = {
        "text-classification": transformers.BertForSequenceClassification,
        "token-classification": transformers.BertForTokenClassification,
        "fill-mask": transformers.BertForMaskedLM,
        "feature-extraction": transformers.BertModel,
    }[task]
    words = tokenizer()
    model = kind(config(len(words), task, **changes)).eval()
    return transformers.pipeline(task, model=model, tokenizer=words)


def cross_encoder(folder: Path) -> Any:
    """A cross-encoder that gives one score to two texts."""
    import torch
    import transformers
    from sentence_transformers import CrossEncoder

    torch.manual_seed(0)
    words = tokenizer(model_input_names=["input_ids", "token_type_ids", "attention_mask"])
    transformers.BertForSequenceClassification(config(len(words), num_labels=1)).save_pretrained(folder)
    words.save_pretrained(folder)
    return CrossEncoder(str(folder))


def sentence_encoder(folder: Path) -> Any:
    """A sentence encoder with mean pooling and normalisation, which cuts texts to 32 tokens."""
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules.normalize import Normalize
    from sentence_transformers.base.modules.transformer import Transformer
    from sentence_transformers.sentence_transformer.modules.pooling import Pooling

    torch.manual_seed(0)
    words = tokenizer()
    transformers.BertModel(config(len(words))).save_pretrained(folder)
    words.save_pretrained(folder)
    return SentenceTransformer(modules=[Transformer(str(folder), max_seq_length=32), Pooling(32), Normalize()])


def image_file(width: int, height: int, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    """A picture of noise as a file."""
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    body = BytesIO()
    Image.fromarray(noise).convert(mode).save(body, kind)
    return body.getvalue()


def image_classifier(size: dict[str, int] | None = None, **settings: Any) -> Any:
    """An image-classification pipeline around a ViT of two layers for images of 32 x 32 pixels."""
    import torch
    import transformers
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    torch.manual_seed(0)
    labels = {at: f"class {at}" for at in range(7)}
    model = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            image_size=32,
            patch_size=8,
            initializer_range=0.5,
            id2label=labels,
            label2id={label: at for at, label in labels.items()},
        )
    ).eval()
    processor = ViTImageProcessorPil(size=size or {"height": 32, "width": 32}, **settings)
    return transformers.pipeline("image-classification", model=model, image_processor=processor)


def png_header(width: int, height: int) -> bytes:
    """A PNG file that claims a size, and has a few bytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")
