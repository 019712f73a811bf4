"""Chat templates: rendered as `transformers` renders them, kept from Python, and served only if both agree."""

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="the `transformers` extra is not installed")

from shiplift.runtime.guest.generation.chat import CHAT, CONVERSATION, PROMPT, Renderer, load
from shiplift.runtime.guest.generation.front import MAX_MESSAGES, BadRequest, conversation
from shiplift.runtime.model.generation import chatting
from tests.generating import CHAT_TEMPLATE, tokenizer
from tests.unit.runtime.guest.generation.test_front import front

# Each has what others have not: marks for training, loops with `break`, filters, arguments of `tojson`, refusals.
TEMPLATES = {
    "chatml": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "alternating": "{{ bos_token }}{% for message in messages %}\n"
    "    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\n"
    "        {{ raise_exception('roles must alternate') }}\n    {% endif %}\n"
    "    {%- if message.role == 'user' -%}\n[INST] {{ message.content.strip() }} [/INST]\n"
    "    {%- else -%}\n{% generation %}{{ ' ' + message.content | trim + ' ' + eos_token }}{% endgeneration %}\n"
    "    {%- endif %}\n{% endfor %}",
    "json": "{% set ns = namespace(first=true) %}{% for message in messages %}"
    "{% if message.role == 'tool' %}{% break %}{% endif %}"
    "{{ message | tojson(indent=1, sort_keys=true) }}{% if not ns.first %}, {% endif %}"
    "{% set ns.first = false %}{% endfor %}{{ tools is none }}{{ unknown is defined }}{{ dict(a=1) | tojson }}",
    "sliced": "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}"
    "<sys>{{ messages[0].content }}</sys>{% else %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{{ m.content.split('\\n')[-1].lstrip() }}|"
    "{{ m.role[:1] | upper }}{% endfor %}{{ strftime_now('%Y') }}",
}


def renderer(folder: Path, template: str, **tokens: str) -> Renderer:
    (folder / CHAT).write_text(json.dumps({"template": template, "tokens": tokens}))
    return Renderer(folder / CHAT)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prompt_is_that_of_transformers_or_both_refuse(name: str, tmp_path: Path) -> None:
    words = tokenizer()
    words.chat_template = TEMPLATES[name]
    chats = chatting.write(words, tmp_path / CHAT)
    ours = Renderer(tmp_path / CHAT)
    answered = 0
    for messages in chatting.conversations():
        try:
            expected = words.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception:
            with pytest.raises(Exception, match=r".+"):
                ours.prompt(messages)
        else:
            assert ours.prompt(messages) == expected
            answered += 1
    assert answered >= 3
    assert len(chats) == len(chatting.conversations())
    assert sum(chat["ids"] is not None for chat in chats) == answered


def test_the_hosted_process_is_sent_json_and_answers_one_text(tmp_path: Path) -> None:
    renderer(tmp_path, "{{ bos_token }}{{ messages[0].content }} {{ strftime_now('%Y') }}", bos_token="<s>")
    served = load({"model": str(tmp_path)})
    sent = np.array([json.dumps([{"role": "user", "content": "é"}])], object)
    assert served.answer({CONVERSATION: sent})[PROMPT].tolist() == [f"<s>é {datetime.now().year}"]


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['sys'] }}",
        "{{ (messages | first).__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{% for a in range(10 ** 8) %}{% endfor %}",
    ],
)
def test_a_template_gets_at_nothing_of_python(template: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"unsafe|no loader|Range too big"):
        renderer(tmp_path, template).prompt([{"role": "user", "content": "a"}])


@pytest.fixture
def chats(tmp_path: Path) -> list[dict[str, Any]]:
    words = tokenizer()
    words.chat_template = CHAT_TEMPLATE
    return [
        chat
        | {
            "ids": chat["ids"]
            and list(
                front()
                .tokenizer.encode(
                    words.apply_chat_template(chat["messages"], add_generation_prompt=True, tokenize=False),
                    add_special_tokens=False,
                )
                .ids
            )
        }
        for chat in chatting.write(words, tmp_path / CHAT)
    ]


def test_what_agrees_is_served_with_a_golden_conversation(tmp_path: Path, chats: list[dict[str, Any]]) -> None:
    same = chatting.compared(tmp_path / CHAT, front(), chats)
    assert (same.same, same.problem) == (True, "")
    assert same.golden is not None
    assert conversation(same.golden.body) == chatting.conversations()[0]
    assert front().read(same.golden.fields).ids == tuple(chats[0]["ids"])


def test_what_differs_is_not_served_and_says_where(tmp_path: Path, chats: list[dict[str, Any]]) -> None:
    path = tmp_path / CHAT
    other = [*chats[:2], chats[2] | {"ids": [1, 2]}, *chats[3:]]
    assert "conversation 3 gives other tokens" in chatting.compared(path, front(), other).problem
    allowed = [chat | {"ids": [1]} for chat in chats]  # also where only transformers takes a conversation
    assert not chatting.compared(path, front(), [allowed[-1]]).same
    refused = [chat | {"ids": None} for chat in chats]
    renderer(tmp_path, "{{ raise_exception('never') }}")
    assert "refuses every conversation" in chatting.compared(path, front(), refused).problem
    assert "TemplateError: never" in chatting.compared(path, front(), chats).problem
    renderer_text = json.dumps({"template": "{% for %}", "tokens": {}})
    path.write_text(renderer_text)
    assert "can't be read: TemplateSyntaxError" in chatting.compared(path, front(), chats).problem
    path.unlink()
    assert chatting.compared(path, front(), []).problem == "it has no chat template"


def test_a_tokenizer_without_a_template_has_no_conversations(tmp_path: Path) -> None:
    assert chatting.write(tokenizer(), tmp_path / CHAT) == []
    assert not (tmp_path / CHAT).exists()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff", "not UTF-8"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", f"a list of 1 to {MAX_MESSAGES} messages"),
        (json.dumps([{"role": "user", "content": "a"}] * (MAX_MESSAGES + 1)), f"1 to {MAX_MESSAGES} messages"),
        ('{"role": "user", "content": "a"}', "a list of 1 to"),
        ('["a"]', "message 1 must have a role and a content"),
        ('[{"role": "user", "content": "a"}, {"role": "user"}]', "message 2 must have a role and a content"),
        ('[{"role": "user", "content": "a", "tool_calls": []}]', "nothing else"),
        ('[{"role": "user", "content": ["a"]}]', "message 1: its content must be a text"),
        ('[{"role": 1, "content": "a"}]', "message 1: its role must be a text"),
        (json.dumps([{"role": "user", "content": "a" * (1 << 20)}]), "the limit is 1048576"),
    ],
)
def test_what_is_no_conversation_is_refused_with_the_reason(body: Any, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        conversation(body)


def test_a_rendered_prompt_has_its_special_tokens_already() -> None:
    assert math.isclose(front().read({"prompt": "ab"}).top_p, 0.9)
    assert front().read({"prompt": "<s>ab", "rendered": True}).ids == front().read({"prompt": "<s>ab"}).ids
