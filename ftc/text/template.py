"""Which chat template a checkpoint has, and the prompt it makes of a conversation."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import SecurityError

from ftc.errors import CheckpointError, RequestError
from ftc.text.conversation import text_arguments_as_objects
from ftc.text.sandbox import MAX_TEXT, METER, LimitError, Refusal, Sandbox

CONFIG = "tokenizer_config.json"
JINJA = "chat_template.jinja"
JSON = "chat_template.json"


class Template:
    """A compiled chat template. Made by `Template.load`; safe to use from several threads.

    `variants` are Jinja sources by name; one called `tool_use` serves requests with tools, else `default` does.
    `variables` (such as `bos_token`) are visible to the template. `where` names the file in errors.
    """

    def __init__(self, variants: Mapping[str, str], variables: Mapping[str, Any], where: str) -> None:
        self.variants = dict(variants)
        self.where = where
        self._variables = dict(variables)
        sandbox = Sandbox()
        self._compiled = {name: _compile(sandbox, source, where) for name, source in variants.items()}

    @classmethod
    def load(cls, folder: str | Path) -> Template | None:
        """The template of a checkpoint folder, or None where it has none.

        Looked for in chat_template.jinja, then chat_template.json, then tokenizer_config.json. Raises CheckpointError
        naming file and line for a template that does not compile and for a file that is no JSON.
        """
        folder = Path(folder)
        config = _read_json(folder / CONFIG)
        found: tuple[Any, Path] | None = None
        if (folder / JINJA).is_file():
            found = _read(folder / JINJA), folder / JINJA
        elif (entry := _read_json(folder / JSON).get("chat_template")) is not None:
            found = entry, folder / JSON
        elif (entry := config.get("chat_template")) is not None:
            found = entry, folder / CONFIG
        if found is None:
            return None
        entry, path = found
        return cls(_variants(entry, str(path)), _special_texts(config), str(path))

    @property
    def source(self) -> str:
        """The Jinja source that serves requests with tools."""
        return self.variants[self._pick(True)]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for `messages` (as `conversation.normalize` gives them) and `tools` (OpenAI-shaped, or None).

        Raises RequestError when the template refuses the conversation, fails on it or goes over a bound of the
        sandbox, and CheckpointError when it tries to leave the sandbox.
        """
        values = {
            **self._variables,
            "documents": None,
            **variables,
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        template = self._compiled[self._pick(bool(tools))]
        try:
            return self._render(template, values)
        except RequestError:
            # Some templates walk through the arguments of a call, which fails on broken arguments kept as text.
            objects = text_arguments_as_objects(values["messages"])
            if objects == values["messages"]:
                raise
            return self._render(template, values | {"messages": objects})

    def _pick(self, tools: bool) -> str:
        if tools and "tool_use" in self.variants:
            return "tool_use"
        return "default" if "default" in self.variants else next(iter(self.variants))

    def _render(self, template: jinja2.Template, values: dict[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        METER.start()
        try:
            for piece in template.generate(values):
                size += len(piece)
                if size > MAX_TEXT:
                    raise LimitError(f"its output is longer than {MAX_TEXT:,} characters")
                pieces.append(piece)
        except Refusal as error:
            raise RequestError(
                f"the model's chat template refuses this conversation: {error}", where="messages"
            ) from error
        except SecurityError as error:
            raise CheckpointError(
                f"the chat template tries to leave its sandbox: {error}",
                where=self._line(error),
                hint="do not use this checkpoint's template",
            ) from error
        except LimitError as error:
            raise RequestError(
                f"the chat template was stopped: {error}", where="messages", hint=f"see {self._line(error)}"
            ) from error
        except Exception as error:  # foreign code fails in any way it likes
            raise RequestError(
                f"the chat template fails on this conversation: {type(error).__name__}: {error}",
                where="messages",
                hint=f"see {self._line(error)}",
            ) from error
        return "".join(pieces)

    def _line(self, error: BaseException) -> str:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == self.where]
        return f"{self.where}, line {lines[-1]} of the template" if lines else self.where


def missing_template_error(folder: str | Path) -> RequestError:
    """What a chat request gets from a checkpoint without a template."""
    return RequestError(
        "the model has no chat template, so it cannot chat",
        where=str(Path(folder) / CONFIG),
        hint=f"put the template in a file {JINJA} in that folder, or use text completion",
    )


def _compile(sandbox: Sandbox, source: str, where: str) -> jinja2.Template:
    try:
        return sandbox.compile_chat(source, where)
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(
            f"the chat template is broken: {error.message}", where=f"{where}, line {error.lineno} of the template"
        ) from error
    except (RecursionError, SyntaxError, ValueError) as error:
        raise CheckpointError(f"the chat template is broken: {error}", where=where) from error


def _variants(entry: Any, where: str) -> dict[str, str]:
    if isinstance(entry, str):
        return {"default": entry}
    named = entry if isinstance(entry, list) else []
    if not named or not all(
        isinstance(e, dict) and isinstance(e.get("name"), str) and isinstance(e.get("template"), str) for e in named
    ):
        raise CheckpointError(
            "chat_template must be a text or a list of {name, template}", where=where, value=type(entry).__name__
        )
    return {e["name"]: e["template"] for e in named}


def _special_texts(config: dict[str, Any]) -> dict[str, Any]:
    """`bos_token` and its kin as plain text, as the configuration gives them."""
    texts: dict[str, Any] = {}
    for key, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            texts[key] = text
    return texts


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"the file cannot be read: {error}", where=str(path)) from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read(path))
    except ValueError as error:
        raise CheckpointError(f"the file is no JSON: {error}", where=str(path), hint="download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError("the file must hold a JSON object", where=str(path), value=type(value).__name__)
    return value
