"""Writes docs/api.md: which fields each API takes, of which type, and what becomes of them, read from the code itself.

    python tools/docgen.py            writes the page
    python tools/docgen.py --check    says whether the page is up to date
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ftc.serve.admit import chat as admit_chat  # noqa: E402
from ftc.serve.admit import completions as admit_completions  # noqa: E402
from ftc.serve.admit import messages as admit_messages  # noqa: E402
from ftc.serve.admit import responses as admit_responses  # noqa: E402
from ftc.serve.app import ROUTES  # noqa: E402
from ftc.serve.schema import chat, completions, messages, responses, tokens  # noqa: E402

PAGE = ROOT / "docs" / "api.md"

HEAD = """# The HTTP API

<!-- Written by tools/docgen.py from ftc/serve/schema and ftc/serve/admit; do not edit by hand. -->

One server speaks the chat, completion and response dialects below `/v1`, and the messages dialect at `/v1/messages`. A body
that is no request is refused with a 400 that names the field; a field that is not listed is unknown and refused too. `null`
means that a field is absent. Errors have the shape of the API that was called.

| what becomes of a field | meaning |
|---|---|
| honoured | It changes the answer as the standard says. |
| no effect | It is taken and changes nothing, as the standard allows. |
| refused | It gives a 400 that names it, except for the values listed. |

A prompt that does not fit gives a 400 whose text has "prompt is too long: N tokens > M maximum" (and, outside the messages
API, the code `context_length_exceeded`). A full queue gives 429, in the messages API 529; an engine that is loading or
restarting gives 503. All three may be sent again. Keys, if the server has any (`FTC_API_KEY`, `FTC_API_KEY_FILE`), go in
`Authorization: Bearer KEY` or `x-api-key: KEY`; only `/health` and `/ready` are open. Every
answer has an `x-request-id`; one sent by the client is kept.

A tool choice that forces a call, strict tools and response formats other than text are not there yet: they are refused by name.

## Routes
"""

APIS: tuple[tuple[str, str, type, Collection[str], Mapping[str, tuple[Any, ...]]], ...] = (
    ("Chat completions", "POST /v1/chat/completions", chat.ChatRequest, chat.NO_EFFECT, admit_chat.REFUSED),
    ("Responses", "POST /v1/responses", responses.ResponsesRequest, responses.NO_EFFECT, admit_responses.REFUSED),
    ("Messages", "POST /v1/messages", messages.MessagesRequest, messages.NO_EFFECT, admit_messages.REFUSED),
    (
        "Counting tokens",
        "POST /v1/messages/count_tokens",
        messages.CountRequest,
        messages.NO_EFFECT,
        admit_messages.REFUSED_IN_COUNT,
    ),
    (
        "Text completions",
        "POST /v1/completions",
        completions.CompletionRequest,
        completions.NO_EFFECT,
        admit_completions.REFUSED,
    ),
    ("Tokenize", "POST /tokenize, POST /v1/tokenize", tokens.TokenizeRequest, (), {}),
    ("Detokenize", "POST /detokenize, POST /v1/detokenize", tokens.DetokenizeRequest, (), {}),
)


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_routes(), *(line for api in APIS for line in _api(*api))]) + "\n"


def _routes() -> Iterator[str]:
    yield "| method | path | what it does |"
    yield "|---|---|---|"
    rows = []
    for handler in ROUTES:
        doc = " ".join((handler.fn.__doc__ or "").split("\n\n")[0].split()).partition(" Raises ")[0]
        method = min(handler.http_methods - {"OPTIONS", "HEAD"})
        for path in sorted(handler.paths):
            rows.append((path.replace(":str", "").replace(":path", ""), method, doc))
    for path, method, doc in sorted(rows):
        yield f"| {method} | `{path}` | {doc} |"


def _api(
    title: str, route: str, kind: type, no_effect: Collection[str], refused: Mapping[str, tuple[Any, ...]]
) -> Iterator[str]:
    yield f"\n## {title}\n\n`{route}`\n\n| field | type | what becomes of it |\n|---|---|---|"
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    for field in sorted(described.fields, key=lambda one: (not one.required, one.name)):
        fate = "honoured"
        if field.encode_name in no_effect:
            fate = "no effect"
        elif field.encode_name in refused:
            allowed = [f"`{msgspec.json.encode(value).decode()}`" for value in refused[field.encode_name]]
            fate = f"refused, except {', '.join(allowed)}" if allowed else "refused"
        need = " (required)" if field.required else ""
        yield f"| `{field.encode_name}` | {_type(field.type)}{need} | {fate} |"


def _type(one: inspect.Type) -> str:
    """A type in words, with its bounds."""
    match one:
        case inspect.UnionType(types=types):
            return " or ".join(_type(each) for each in types if not isinstance(each, inspect.NoneType))
        case inspect.StrType():
            return "text" + (" (not empty)" if one.min_length else "")
        case inspect.IntType():
            return "whole number" + _bounds(one)
        case inspect.FloatType():
            return "number" + _bounds(one)
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return ", ".join(f"`{value}`" for value in values)
        case inspect.ListType(item_type=item):
            limits = [f"{word} {n}" for word, n in (("at least", one.min_length), ("at most", one.max_length)) if n]
            return f"list of {_type(item)}" + (f" ({', '.join(limits)})" if limits else "")
        case inspect.DictType(key_type=key, value_type=value):
            plain = isinstance(value, inspect.AnyType)
            return "object" if plain else f"object of {_type(key)} to {_type(value)}"
        case inspect.StructType(fields=fields):
            return "object of " + ", ".join(f"`{field.encode_name}`" for field in fields)
    return "any"


def _bounds(one: inspect.IntType | inspect.FloatType) -> str:
    pairs = ((">", one.gt), ("≥", one.ge), ("<", one.lt), ("≤", one.le))
    limits = [f"{sign} {bound}" for sign, bound in pairs if bound is not None]
    return f" ({', '.join(limits)})" if limits else ""


def main() -> None:
    """Writes the page, or with --check exits with 1 when it is out of date."""
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == page() else "docs/api.md is out of date: run tools/docgen.py")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
