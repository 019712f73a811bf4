"""A chat model that answers in capitals, with the time as MLflow fills it in."""

from typing import Any

import mlflow
from mlflow.pyfunc import ChatModel
from mlflow.types.llm import ChatChoice, ChatCompletionResponse, ChatMessage, ChatParams


class Loud(ChatModel):  # type: ignore[misc] # mlflow has no types here
    def predict(self, context: Any, messages: list[ChatMessage], params: ChatParams) -> ChatCompletionResponse:
        said = f"{messages[-1].content.upper()} at {params.temperature}"
        choice = ChatChoice(index=0, message=ChatMessage(role="assistant", content=said))
        return ChatCompletionResponse(choices=[choice, choice], model="loud")


mlflow.models.set_model(Loud())
