"""Turns conversations into prompts with a model's chat template, rendered as `transformers` does.

A template is a program by the model's author. Jinja's sandbox keeps it away from Python, but does not stop endless
loops or limit its memory. So in production it is rendered in a process that can be killed (`python/worker.py`).

Process: one of its own beside Triton, as `python_host/served.py`; Shiplift's sandbox.
Python: the server's
Packages: jinja2 (in the package), markupsafe (in the package), numpy
"""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

CHAT = "chat.json"
CONVERSATION, PROMPT = "conversation", "prompt"  # what the process gets, and what it answers


def load(settings: Mapping[str, Any]) -> "Renderer":
    """Makes what answers in the hosted process; the folder `settings["model"]` has `chat.json` and the libraries."""
    sys.path.insert(0, settings["model"])
    return Renderer(Path(settings["model"]) / CHAT)


class Renderer:
    """Renders conversations with the template in a file: `template`, and the special `tokens` by name."""

    def __init__(self, path: Path) -> None:
        chat = json.loads(path.read_text())
        self._template, self._tokens = _compiled(chat["template"]), chat["tokens"]

    def answer(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The prompt of one conversation, which comes as JSON. Both are arrays of one text."""
        import numpy as np  # noqa: PLC0415 - from the environment

        return {PROMPT: np.array([self.prompt(json.loads(inputs[CONVERSATION][0]))], object)}

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt that the model continues as the assistant. It includes special tokens.

        Raises:
            jinja2.TemplateError: the template fails, or refuses the conversation.
        """
        return str(
            self._template.render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self._tokens
            )
        )


def _compiled(source: str) -> Any:
    """Compiles a template in the environment that `transformers` gives it (`utils.chat_template_utils`)."""
    from jinja2 import TemplateError, nodes  # noqa: PLC0415 - in a package, it lies beside this file's folder
    from jinja2.ext import Extension, loopcontrols  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    class Generation(Extension):
        """`{% generation %}` marks the assistant's words for training. Here, only its body counts."""

        tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)
