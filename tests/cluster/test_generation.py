"""A text generator on a cluster: released through Argo, streamed through the gateway, and asked in OpenAI's terms."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from shiplift.runtime.host.processes import free_port
from tests.cluster.conftest import Lab, until
from tests.cluster.test_commands import COMMAND
from tests.cluster.test_release import promoted
from tests.generating import CHAT_TEMPLATE, PROMPTS, pipeline
from tests.integration.conftest import FAST

pytestmark = pytest.mark.slow
MODEL = "teller"
SPEC = FAST.replace("load: {", "load: {tokens: 16, ")


@pytest.fixture(scope="module")
def released(lab: Lab) -> Any:
    """The pipeline, whose model is released and serves."""
    pytest.importorskip("transformers", reason="the `transformers` extra is not installed")
    model = pipeline(template=CHAT_TEMPLATE)

    def log_model(**options: Any) -> Any:
        return lab.mlflow.transformers.log_model(model, input_example=PROMPTS, **options)

    promoted(lab, MODEL, lab.log(MODEL, log_model, spec=SPEC))
    return model


def continued(model: Any, ids: Any) -> str:
    written = model.model.generate(ids, attention_mask=ids * 0 + 1, do_sample=False, max_new_tokens=12)
    return str(model.tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True))


def test_openai_s_client_reaches_it_through_the_gateway(lab: Lab, released: Any, tmp_path: Path) -> None:
    openai = pytest.importorskip("openai")
    url = f"http://127.0.0.1:{free_port()}"
    words = ["openai", "--port", url.rsplit(":", 1)[1], "--engine", "argo", "--namespace", lab.namespace]
    with (
        subprocess.Popen([*COMMAND, "--home", str(tmp_path), *words], stderr=sys.stderr) as process,
        httpx.Client(trust_env=False, timeout=60) as http,
    ):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", http_client=http, max_retries=0)

        def listed() -> bool:
            try:
                return MODEL in [each.id for each in client.models.list()]
            except openai.APIError:
                assert process.poll() is None
                return False

        try:
            until(listed, seconds=60)
            prompt = PROMPTS[1]
            answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=12, temperature=0)
            assert answer.choices[0].text == continued(
                released, released.tokenizer(prompt, return_tensors="pt").input_ids
            )
            messages = [{"role": "user", "content": "ships carry"}]
            ids = released.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_tensors="pt"
            ).input_ids
            asked = {"model": MODEL, "messages": messages, "max_tokens": 12, "temperature": 0}
            parts = list(client.chat.completions.create(**asked, stream=True))
            assert len(parts) > 3
            assert "".join(part.choices[0].delta.content or "" for part in parts) == continued(released, ids)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=30)


def test_the_operator_finds_its_golden_answers_right(lab: Lab, released: Any) -> None:
    until(lambda: lab.condition(MODEL, "Verified")["status"] == "True", seconds=60)
    assert lab.condition(MODEL, "Ready")["status"] == "True"
