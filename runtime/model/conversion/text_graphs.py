"""The module that becomes a text model's ONNX graph: the logged one, and the tensor operations that follow it."""

import sys
from typing import Any

from shiplift.runtime.guest.fronts.text_front import IDS, MASK, TYPES

OUTPUTS = {
    "text-classification": ("probabilities",),
    "text-pair-classification": ("probabilities",),
    "token-classification": ("probabilities",),
    "fill-mask": ("scores", "tokens"),
    "feature-extraction": ("features",),
    "sentence-embedding": ("embeddings",),
}
MOST_TOKENS = 8192  # for models without a limit of their own
_CANDIDATES = 5  # as many as a fill-mask pipeline returns


def positions(model: Any) -> int:
    """How many tokens have a position embedding. RoBERTa reserves the first ones for padding."""
    import torch  # noqa: PLC0415

    sizes = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding) and "position_embeddings" in name
    ]
    config = getattr(model, "config", None) or model[0].model.config
    return int(min(*sizes, getattr(config, "max_position_embeddings", None) or MOST_TOKENS, MOST_TOKENS))


def graph(model: Any, task: str, tokenizer: Any) -> Any:
    """The module from token ids and mask (and types of tokens) to the outputs of `OUTPUTS`, in float32."""
    import torch  # noqa: PLC0415

    class Graph(torch.nn.Module):  # type: ignore[misc] # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
            if task == "sentence-embedding":
                features = {IDS: input_ids, MASK: attention_mask, "modality": "text"}
                return self.model(features)["sentence_embedding"]
            types = {} if token_type_ids is None else {TYPES: token_type_ids}
            outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, **types)
            return after(outputs, input_ids, attention_mask)

    after = {
        "text-classification": _probabilities(model),
        "text-pair-classification": _probabilities(model),
        "token-classification": lambda outputs, _ids, _mask: outputs.logits.softmax(-1),
        "feature-extraction": _features,
        "fill-mask": _candidates(tokenizer.mask_token_id),
        "sentence-embedding": None,
    }[task]
    module = model[0].model if task == "sentence-embedding" else model
    module.set_attn_implementation("eager")
    return Graph().eval().float()


def classifier(model: Any, name: str) -> Any:
    """The module from a tensor that the model calls `name` to the probabilities of its classes, in float32."""
    import torch  # noqa: PLC0415

    probabilities = _probabilities(model)

    class Graph(torch.nn.Module):  # type: ignore[misc] # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, values: Any) -> Any:
            return probabilities(self.model(**{name: values}), None, None)

    return Graph().eval().float()


def detector(model: Any, name: str, *, several: bool) -> Any:
    """The module from a tensor that the model calls `name` to its boxes' classes and corners, in float32.

    Its outputs are `probabilities` (batch, boxes, classes), of `several` classes or of one class and no object; and
    `boxes` (batch, boxes, 4): left, top, right, bottom, relative to the image.
    """
    import torch  # noqa: PLC0415

    # `len(tensor)` in RT-DETR and its relatives would fix the batch in the graph: torch can only make a number of it.
    vars(sys.modules[type(model).__module__])["len"] = _length

    class Graph(torch.nn.Module):  # type: ignore[misc] # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, values: Any) -> Any:
            outputs = self.model(**{name: values})
            x, y, width, height = outputs.pred_boxes.unbind(-1)
            half, tall = 0.5 * width, 0.5 * height
            corners = torch.stack([x - half, y - tall, x + half, y + tall], dim=-1)
            logits = outputs.logits
            return logits.sigmoid() if several else logits.softmax(-1)[..., :-1], corners

    return Graph().eval().float()


def _length(value: Any) -> Any:
    return value.shape[0] if hasattr(value, "shape") else len(value)


def _features(outputs: Any, _ids: Any, mask: Any) -> Any:
    hidden = outputs[0]
    return hidden * mask.unsqueeze(-1).to(hidden.dtype)


def _probabilities(model: Any) -> Any:
    """The operation of a text-classification pipeline on logits, according to the model's configuration."""
    config = getattr(model, "config", None)
    kind, count = getattr(config, "problem_type", None), getattr(config, "num_labels", 0)

    def apply(outputs: Any, _ids: Any, _mask: Any) -> Any:
        if kind == "regression":
            return outputs.logits
        several = kind == "multi_label_classification" or count == 1
        return outputs.logits.sigmoid() if several else outputs.logits.softmax(-1)

    return apply


def _candidates(mask_id: int) -> Any:
    """The best tokens for each text's (first) mask token."""
    import torch  # noqa: PLC0415

    def apply(outputs: Any, ids: Any, _mask: Any) -> Any:
        at = (ids == mask_id).to(torch.int64).argmax(dim=1).view(-1, 1, 1)
        logits = outputs.logits.gather(1, at.expand(-1, 1, outputs.logits.shape[-1])).squeeze(1)
        return torch.topk(logits.softmax(-1), min(_CANDIDATES, logits.shape[-1]))

    return apply
