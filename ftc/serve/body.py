"""From the bytes of a request to its struct; every mistake becomes one RequestError that names the field."""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeVar

import msgspec

from ftc.errors import RequestError

T = TypeVar("T")

# Only bodies up to this size are searched for the field of a syntax error: it takes a second decoder.
SEARCH_BYTES = 1 << 20
_PATH = re.compile(r" - at `(?:key` in `)?\$\.?(.*?)`$")
_FIELD = re.compile(r"field `(.*?)`")


def decode(body: bytes, kind: type[T]) -> T:
    """`body` as a `kind`. Raises RequestError naming the field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        path = _PATH.search(text)
        what, where = _PATH.sub("", text), path.group(1) if path else ""
        if field := _FIELD.search(what):
            where = f"{where}.{field.group(1)}".strip(".")
            what = "unknown field" if "unknown" in what else "missing"
        raise RequestError(what[0].lower() + what[1:], where=where or "body") from None
    except msgspec.DecodeError as error:
        where = _not_finite(body) if len(body) <= SEARCH_BYTES else None
        if where is not None:
            raise RequestError("not a finite number", where=where) from None
        raise RequestError(f"not valid JSON: {error}", where="body") from None
    except UnicodeDecodeError:
        raise RequestError("not UTF-8", where="body") from None
    except RecursionError:
        raise RequestError("nested too deeply", where="body") from None


def _not_finite(body: bytes) -> str | None:
    """The path of the first NaN or Infinity in a body that is legal apart from these, or None."""
    try:
        return _path_of_bad(json.loads(body), "")
    except (ValueError, RecursionError):
        return None


def _path_of_bad(value: Any, path: str) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return path
    if isinstance(value, dict):
        children = [(f"{path}.{key}".strip("."), one) for key, one in value.items()]
    elif isinstance(value, list):
        children = [(f"{path}[{at}]", one) for at, one in enumerate(value)]
    else:
        children = []
    return next((found for at, one in children if (found := _path_of_bad(one, at)) is not None), None)
