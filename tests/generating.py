"""A small real language model with random weights, and a real tokenizer trained on a few sentences."""

from typing import Any

TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "ships carry most of the goods that the world trades",
    "the crane lifts a container from the quay, and sets it down on the deck of the vessel",
]
# It never ends where a message says "forever", asks for all memory at "everything", and has no role for tools.
CHAT_TEMPLATE = """{{ bos_token }}{% for message in messages %}
{% if message.role == 'tool' %}{{ raise_exception('there are no tools') }}{% endif %}
{% if 'forever' in message.content %}
{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}
{% elif 'everything' in message.content %}
{% set grown = namespace(text='a' * 1000000) %}
{% for a in range(40) %}{% set grown.text = grown.text ~ grown.text %}{% endfor %}
{% endif %}
[{{ message.role }}] {{ message.content }}
{% endfor %}
{% if add_generation_prompt %}[assistant]{% endif %}"""
PROMPTS = ["the quick brown", "ships carry most of", "the crane lifts a container from the quay, and", "a"]


def tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<s>", "</s>"]
    core.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    )
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=256,
        clean_up_tokenization_spaces=False,
    )


def llama_tokenizer() -> Any:
    """Words as SentencePiece writes them, and bytes for everything else, as in Llama's."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = sorted(set("".join(TEXTS)) - {" "})
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters]
    core = Tokenizer(models.BPE(vocab={word: at for at, word in enumerate(words)}, merges=[], byte_fallback=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=256,
        clean_up_tokenization_spaces=False,
    )


def pipeline(words: Any = None, *, template: str | None = None, **changes: Any) -> Any:
    """A text-generation pipeline around a Llama of four layers, with fewer heads for keys than for queries."""
    import torch
    import transformers

    torch.manual_seed(0)
    words = words or tokenizer()
    words.chat_template = template
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **changes,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.generation_config.max_new_tokens = 8  # MLflow generates once, to find the signature
    return transformers.pipeline("text-generation", model=model, tokenizer=words)
