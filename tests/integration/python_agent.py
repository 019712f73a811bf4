"""An agent that answers in capitals, with ids of its own, as MLflow's documentation shows."""

from collections.abc import Iterator
from uuid import uuid4

import mlflow
from mlflow.pyfunc import ResponsesAgent
from mlflow.types.responses import ResponsesAgentRequest, ResponsesAgentResponse, ResponsesAgentStreamEvent


class Loud(ResponsesAgent):  # type: ignore[misc] # mlflow has no types here
    def predict(self, request: ResponsesAgentRequest) -> ResponsesAgentResponse:
        said = f"{request.input[-1].content.upper()} within {request.max_output_tokens}"
        return ResponsesAgentResponse(output=[self.create_text_output_item(text=said, id=str(uuid4()))])

    def predict_stream(self, request: ResponsesAgentRequest) -> Iterator[ResponsesAgentStreamEvent]:
        for item in self.predict(request).output:
            yield ResponsesAgentStreamEvent(type="response.output_item.done", item=item)


mlflow.models.set_model(Loud())
