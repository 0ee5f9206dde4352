"""Where a model's files are: the embedded one, a folder, or a hub id that is downloaded once and kept."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftc.errors import CheckpointError

EMBEDDED = "demo"
PHASE = "download"

# What an engine needs; top level only, since some repositories keep the same weights once more in a subfolder.
WANTED = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "chat_template*",
)
UNWANTED = ("*/*", "consolidated*.safetensors")

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

ProgressSink = Callable[[str, int, int], None]


def locate(model: str, progress: ProgressSink = lambda phase, done, total: None) -> Path:
    """The checkpoint folder of "demo", of an existing folder, or of `org/name` or `org/name@revision` on the hub.

    A download that breaks off goes on where it stopped: within a file while this process lives, else at the first
    file that is not complete. Without a network, what a finished download left is used. Raises CheckpointError.

    `progress` gets (PHASE, bytes done, bytes known so far), from any thread.
    """
    if model == EMBEDDED:
        return Path(str(importlib.resources.files("ftc_models").joinpath(EMBEDDED)))
    path = Path(model).expanduser()
    if model and path.is_dir():
        return path
    if path.is_file():
        raise CheckpointError(
            f"a model is a folder, and this is a file{f' of type {path.suffix}' if path.suffix else ''}",
            where=model,
            hint=f"supported: a folder with config.json and *.safetensors, a hub id like org/name, or {EMBEDDED!r}",
        )
    name, _, revision = model.partition("@")
    if not _ID.fullmatch(name):
        raise CheckpointError(
            "no such folder, and not a hub id like org/name", where=model, hint=f"the embedded model is {EMBEDDED!r}"
        )
    return _download(name, revision or None, progress)


def _download(name: str, revision: str | None, progress: ProgressSink) -> Path:
    # Imported here: it takes half a second that a local folder does not need.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = name if revision is None else f"{name}@{revision}"
    try:
        folder = snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(WANTED),
            ignore_patterns=list(UNWANTED),
            tqdm_class=_bars(progress),
        )
    except GatedRepoError:
        raise CheckpointError(
            "the hub gives this model only to those who accepted its terms",
            where=where,
            hint="accept them there and log in",
        ) from None
    except RepositoryNotFoundError:
        raise CheckpointError("the hub has no such model, or it is private", where=where) from None
    except RevisionNotFoundError:
        raise CheckpointError("the hub has this model, but not this revision", where=where) from None
    except LocalEntryNotFoundError:
        raise CheckpointError(
            "the hub cannot be reached, and no complete download is in the local cache",
            where=where,
            hint="connect to the network, or give the path of a folder",
        ) from None
    except Exception as e:  # the HTTP library below, and so the class of its errors, differs between hub versions
        first = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise CheckpointError(
            f"the download failed: {first}", where=where, hint="run the same command again; finished files are kept"
        ) from None
    return Path(folder)


def _bars(progress: ProgressSink) -> type[Any]:
    """A stand-in for the library's bar that hands the bytes written so far to `progress`."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts = kwargs.pop("name", None) == "huggingface_hub.snapshot_download"
            self._done = int(kwargs.get("initial") or 0)
            kwargs["disable"] = True
            super().__init__(*args, **kwargs)
            self.total = kwargs.get("total")

        def update(self, n: float | None = 1) -> None:
            self._done += int(n or 0)
            if self._counts:
                progress(PHASE, self._done, int(self.total or 0))

        def refresh(self, *args: Any, **kwargs: Any) -> None:
            if self._counts:
                progress(PHASE, self._done, int(self.total or 0))

        def display(self, *args: Any, **kwargs: Any) -> None:
            return None

    return Bar
