"""The one error tree: every refusal says what is wrong, where, with which value, and what would help."""

from __future__ import annotations


class FtcError(Exception):
    """An error a user can act on.

    `what` is one sentence; `where` a file, field or flag; `value` what was found there; `hint` what would help.
    The text form is `where: what (got value)` and a second line `hint: ...`.
    """

    def __init__(self, what: str, *, where: str | None = None, value: object = None, hint: str | None = None) -> None:
        self.what, self.where, self.value, self.hint = what, where, value, hint
        super().__init__(str(self))

    @property
    def message(self) -> str:
        """The sentence without the hint, for one-line places."""
        head = f"{self.where}: {self.what}" if self.where else self.what
        return head if self.value is None else f"{head} (got {self.value!r})"

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class SpecError(FtcError):
    """A spec or a config that describes no legal model; `where` is the field."""


class CheckpointError(FtcError):
    """Weights, tokenizer or template files that are missing, damaged or do not fit the spec."""


class Problems(CheckpointError):
    """Several checkpoint errors found in one look, listed together."""

    def __init__(self, where: str, problems: list[CheckpointError]) -> None:
        self.problems = problems
        count = len(problems)
        lines = "".join(f"\n  - {p.message}" + (f" [{p.hint}]" if p.hint else "") for p in problems)
        super().__init__(f"{count} problem{'s' * (count != 1)} found:{lines}", where=where)


class RequestError(FtcError):
    """A request that cannot be served as it stands; `where` is the request field. HTTP 4xx."""


class OverloadError(FtcError):
    """The queue is full; the same request may succeed later. HTTP 429."""


class EngineError(FtcError):
    """The engine failed or went away while it held the request. HTTP 5xx."""


class TargetError(FtcError):
    """This machine lacks something that was asked for: a compiler, an instruction set, memory, a GPU."""


class PassError(FtcError):
    """A pass or the validator met a graph that breaks the contract; a programmer's error."""


class ArtefactError(FtcError):
    """A stored artefact that is damaged or belongs to another machine or version."""
