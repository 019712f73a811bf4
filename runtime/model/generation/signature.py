"""What clients send to a model that generates text, and what they get."""

from shiplift.runtime.records.tensor import Signature, TensorSpec

PROMPT, MAX_TOKENS, TEMPERATURE, CHAT = "prompt", "max_tokens", "temperature", "chat"
# The pieces of a streamed answer add up: texts are joined, numbers are summed.
TEXT, FINISH_REASON, TOKENS, PROMPT_TOKENS = "text", "finish_reason", "tokens", "prompt_tokens"
ROOM = f"limit/{MAX_TOKENS}"  # with golden requests: how many tokens fit into the model's context after each prompt
SURE = "limit/sure"  # with golden requests: whether rounding can't change the most likely tokens after each prompt

SIGNATURE = Signature(
    inputs=(
        TensorSpec(name=PROMPT, datatype="BYTES", shape=(1, 1)),
        TensorSpec(name=MAX_TOKENS, datatype="INT32", shape=(1, 1), optional=True),
        TensorSpec(name=TEMPERATURE, datatype="FP32", shape=(1, 1), optional=True),
        TensorSpec(name="top_p", datatype="FP32", shape=(1, 1), optional=True),
        TensorSpec(name="seed", datatype="INT64", shape=(1, 1), optional=True),
        TensorSpec(name="stop", datatype="BYTES", shape=(1, -1), optional=True),
    ),
    outputs=(
        TensorSpec(name=TEXT, datatype="BYTES", shape=(1, 1)),
        TensorSpec(name=FINISH_REASON, datatype="BYTES", shape=(1, 1)),
        TensorSpec(name=TOKENS, datatype="INT32", shape=(1, 1)),
        TensorSpec(name=PROMPT_TOKENS, datatype="INT32", shape=(1, 1)),
    ),
    streamed=True,
)
# For a model with a chat template: with `chat`, the prompt is a conversation, as a JSON list of messages.
CHAT_SIGNATURE = SIGNATURE.model_copy(
    update={"inputs": (*SIGNATURE.inputs, TensorSpec(name=CHAT, datatype="BOOL", shape=(1, 1), optional=True))}
)
