"""What a chat template may do: read plain data and make text, within bounds on steps, time and size.

A template comes with a checkpoint, so it is foreign code. It cannot reach Python's internals, change its inputs or read
files. One rendering is bounded by MAX_STEPS loop passes and calls, by MAX_SECONDS (looked at on every 256th step), by
MAX_TEXT characters in any text it builds (output, macros, `~`, `+`, `*`, join, replace), by ranges of MAX_RANGE, by
numbers of 4,096 bits and by whole-number arguments of MAX_ARGUMENT (paddings, counts).
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import ext, nodes, runtime, utils
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.visitor import NodeTransformer

MAX_STEPS = 5_000_000
MAX_SECONDS = 10.0
MAX_TEXT = 1 << 25
MAX_RANGE = 100_000
MAX_ARGUMENT = 100_000
MAX_BITS = 4096


class LimitError(Exception):
    """A rendering went over one of the bounds."""


class Refusal(jinja2.TemplateError):
    """The template called raise_exception."""


class Meter(threading.local):
    """Steps taken by the rendering of this thread."""

    steps = 0
    deadline = 0.0

    def start(self) -> None:
        """Begins a rendering."""
        self.steps = 0
        self.deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        """One loop pass or call more."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise LimitError(f"it takes more than {MAX_STEPS:,} steps")
        if not self.steps & 255 and time.monotonic() > self.deadline:
            raise LimitError(f"it takes more than {MAX_SECONDS:g} seconds")


METER = Meter()


class Counted:
    """An iterable whose passes are counted; has a length where the original has one."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            METER.step()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]


def _text(pieces: Iterable[Any]) -> str:
    """Joins pieces of text; the bound is checked before the memory is taken."""
    parts, size = [], 0
    for piece in pieces:
        parts.append(piece if isinstance(piece, str) else str(piece))
        size += len(parts[-1])
        _check_size(size)
    return "".join(parts)


def _check_size(size: int) -> None:
    if size > MAX_TEXT:
        raise LimitError(f"it builds a text or list of more than {MAX_TEXT:,} elements")


def _check_call(name: str, subject: Any, arguments: Iterable[Any]) -> None:
    """Bounds the size that a filter or a method may reach from a short subject and short arguments."""
    arguments = list(arguments)
    for argument in arguments:
        if isinstance(argument, int) and abs(argument) > MAX_ARGUMENT:
            raise LimitError(f"it calls {name!r} with the number {argument}")
    if not isinstance(subject, str):
        if name == "join" and arguments and isinstance(arguments[0], str) and hasattr(subject, "__len__"):
            _check_size(len(subject) * len(arguments[0]))
        return
    if name == "replace" and len(arguments) > 1 and all(isinstance(a, str) for a in arguments[:2]):
        _check_size(len(subject) + (subject.count(arguments[0])) * len(arguments[1]))
    elif name == "join" and arguments and hasattr(arguments[0], "__len__"):
        _check_size(len(subject) * len(arguments[0]))
    elif name in ("format", "format_map") and _WIDE.search(subject):
        raise LimitError("it formats a number with too wide a field")
    elif name == "indent":
        lines = subject.count("\n") + 1
        _check_size(len(subject) + lines * max((a if isinstance(a, int) else len(a)) for a in [4, *arguments]
                                               if isinstance(a, int | str)))  # fmt: skip


_WIDE = re.compile(r"\d{6,}|%[-+ #0]*\*|\.\*")


class _Count(NodeTransformer):
    """Sends every loop through Counted and every `~` through the bounded join."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _filter(node.iter, "counted passes")  # type: ignore[arg-type]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "bounded concat")


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generation(ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here it only passes its body on."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment that chat templates are written for, with the bounds of this module."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(_text)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols, _Generation])
        self.filters = {name: _bounded_filter(name, f) for name, f in self.filters.items()}
        self.filters["tojson"] = _to_json
        self.filters["counted passes"] = Counted
        self.filters["bounded concat"] = _text
        del self.globals["lipsum"]
        self.globals |= {
            "range": _bounded_range,
            "raise_exception": _refuse,
            "strftime_now": lambda format: datetime.now().strftime(format),
            "dict": _new_dict,
            "namespace": _Namespace,
        }

    def compile_chat(self, source: str, name: str) -> jinja2.Template:
        """A template whose traceback lines carry `name`. Raises jinja2.TemplateSyntaxError."""
        tree = _Count().visit(self.parse(source, name, name))
        code = self.compile(tree, name, name)
        return self.template_class.from_code(self, code, self.make_globals(None))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: B902, N805
        METER.step()
        if isinstance(__obj, runtime.LoopContext) and args:
            args = (Counted(args[0]), *args[1:])
        subject = getattr(__obj, "__self__", None)
        if isinstance(subject, str | bytes | int | list | tuple):
            _check_call(getattr(__obj, "__name__", "call"), subject, [*args, *kwargs.values()])
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        formatted = super().wrap_str_format(value)
        if formatted is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            _check_call("format", value.__self__, [*args, *kwargs.values()])
            return formatted(*args, **kwargs)

        return bounded

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(side) if isinstance(side, str | list | tuple) else None for side in (left, right)]
        match operator, left, right:
            case "+", _, _ if None not in sizes:
                _check_size(sum(size or 0 for size in sizes))
            case "*", int(), int():
                _check_bits(left.bit_length() + right.bit_length())
            case "*", _, int():
                _check_size((sizes[0] or 0) * right)
            case "*", int(), _:
                _check_size((sizes[1] or 0) * left)
            case "**", int(), int() if right > 0:
                _check_bits(left.bit_length() * right)
            case "%", str(), _ if _WIDE.search(left):
                raise LimitError("it formats a number with too wide a field")
        return super().call_binop(context, operator, left, right)


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise LimitError(f"it computes a number of more than {MAX_BITS:,} bits")


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    passes_context = getattr(function, "jinja_pass_arg", None) is not None  # the first argument is then not the subject

    def bounded(*args: Any, **kwargs: Any) -> Any:
        METER.step()
        subject, *rest = args[passes_context:]
        _check_call(name, subject, [*rest, *kwargs.values()])
        return function(*args, **kwargs)

    bounded.__dict__.update(getattr(function, "__dict__", {}))
    return bounded


def _bounded_range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MAX_RANGE:
        raise LimitError(f"it asks for a range of {len(numbers):,} numbers, more than {MAX_RANGE:,}")
    return numbers


def _refuse(message: Any) -> None:
    raise Refusal(str(message))


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates expect it: nothing escaped for HTML, other scripts kept."""
    _check_call("tojson", None, [indent])
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Namespace(utils.Namespace):
    """A namespace that takes no private names, so that none of Python's own can be shadowed."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: B902
        self, rest = args[0], args[1:]
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may not hold the private name {name!r}")
