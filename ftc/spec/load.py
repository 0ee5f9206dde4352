"""From a checkpoint's `config.json` to a spec: which file describes it, and the checked model it gives."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from ftc.errors import CheckpointError, FtcError, SpecError
from ftc.spec.check import check_model
from ftc.spec.config import Config
from ftc.spec.model import Model


def registry() -> dict[str, str]:
    """Architecture string -> module name, over the live spec files."""
    found: dict[str, str] = {}
    for name in spec_modules():
        for architecture in importlib.import_module(name).ARCHITECTURES:
            if architecture in found:
                raise SpecError("two spec files claim one architecture", where=name, value=architecture)
            found[architecture] = name
    return found


def spec_modules() -> list[str]:
    """Module names of all spec files (those without a leading underscore)."""
    package = importlib.import_module("ftc_models")
    return sorted(
        f"ftc_models.{m.name}" for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_") and not m.ispkg
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's `config.json`, or CheckpointError naming what is wrong with it."""
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError("no config.json in the checkpoint folder", where=str(folder)) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as e:
        raise CheckpointError(f"not valid JSON: {e}", where=str(path)) from None
    if not isinstance(values, dict):
        raise CheckpointError("not a JSON object", where=str(path))
    return values


def read_model(folder: Path, spec: Path | None = None) -> Model:
    """The checked model of a checkpoint folder; `spec` is a user's own spec file, run as code because the user asked."""
    values = read_config(folder)
    return build_model(values, str(folder / "config.json"), spec)


def build_model(values: dict[str, Any], where: str = "config.json", spec: Path | None = None) -> Model:
    """Runs the spec that claims the config's architecture; every failure is a SpecError naming the key."""
    module = _own_spec(spec) if spec is not None else _claimed(values, where)
    try:
        model = module.model(Config(values, where))
    except FtcError:
        raise
    except KeyError as e:
        key = _holder(values, e.args[0])
        raise SpecError("the spec knows no such value", where=f"{where}: {key or module.__name__}", value=e.args[0]) from e
    except (TypeError, ValueError, ZeroDivisionError, AttributeError, msgspec.ValidationError) as e:
        raise SpecError(f"the config does not fit the spec: {e}", where=f"{where} ({module.__name__})") from e
    try:
        check_model(model, where)
    except SpecError as e:
        raise _with_keys(e, values) from None
    return model


def spec_hash(model: Model) -> str:
    """Stable hex over everything the spec says."""
    return hashlib.sha256(msgspec.json.encode(model, order="deterministic")).hexdigest()[:16]


def _with_keys(error: SpecError, values: dict[str, Any]) -> SpecError:
    """The same, with the keys of the config that hold the refused value: of the kind of the field, or else all."""
    value = error.value[0] if isinstance(error.value, tuple) else error.value
    if not isinstance(value, int | float):
        return error
    field = (error.where or "").rpartition(": ")[2].rpartition(".")[2]
    held = _keys_with(values, value)
    akin = [key for key in held if {w.rstrip("s") for w in key.split("_")} & {w.rstrip("s") for w in field.split("_")}]
    found = [f"the file has this value in {', '.join(akin or held)}"] if held else []
    hint = "; ".join([*([error.hint] if error.hint else []), *found])
    return SpecError(error.what, where=error.where, value=error.value, hint=hint or None)


def _keys_with(values: dict[str, Any], wanted: float) -> list[str]:
    """Names of the keys, at any depth, that hold this number."""
    found = [key for key, value in values.items() if type(value) is type(wanted) and value == wanted]
    return found + [k for value in values.values() if isinstance(value, dict) for k in _keys_with(value, wanted)]


def _holder(values: dict[str, Any], wanted: object) -> str | None:
    """The key whose value is `wanted`, or a list with it."""
    for key, value in values.items():
        if value == wanted or (isinstance(value, list) and wanted in value):
            return key
        found = _holder(value, wanted) if isinstance(value, dict) else None
        if found is not None:
            return f"{key}: {found}"
    return None


def _claimed(values: dict[str, Any], where: str) -> ModuleType:
    named = values.get("architectures") or []
    known = registry()
    for architecture in named:
        if architecture in known:
            return importlib.import_module(known[architecture])
    import difflib

    # without what all of them end in, or a short stranger is near to any
    stems = {_stem(a): a for a in known}
    near = [stems[s] for s in difflib.get_close_matches(_stem(str(named[0])) if named else "", stems, n=1, cutoff=0.75)]
    raise SpecError(
        "no spec file describes this architecture",
        where=f"{where}: architectures",
        value=named,
        hint=f"the nearest known is {near[0]}" if near else f"known: {', '.join(sorted(known))}; or give --spec FILE",
    )


def _stem(architecture: str) -> str:
    return architecture.partition("For")[0]


def _own_spec(path: Path) -> ModuleType:
    if not path.is_file():
        raise SpecError("no such spec file", where="--spec", value=str(path))
    found = importlib.util.spec_from_file_location(f"user_spec_{path.stem}", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except Exception as e:
        raise SpecError(f"the spec file does not run: {type(e).__name__}: {e}", where=str(path)) from e
    if not callable(getattr(module, "model", None)):
        raise SpecError("the spec file has no function model(config)", where=str(path))
    return module
