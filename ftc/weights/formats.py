"""Which number formats of weights are read; anything else is refused from the config alone."""

from __future__ import annotations

from typing import Any

from ftc.errors import CheckpointError
from ftc.weights.manifest import READABLE


def refuse_format(config: dict[str, Any], where: str) -> None:
    """Raises CheckpointError where the config announces quantised weights: none of those formats is read yet."""
    for part, place in ((config, where), (config.get("text_config"), f"{where}: text_config")):
        given = part.get("quantization_config") if isinstance(part, dict) else None
        if given:
            method = given.get("quant_method", given.get("format")) if isinstance(given, dict) else given
            raise CheckpointError(
                "this number format of weights is not read",
                where=f"{place}: quantization_config", value=method,
                hint=f"supported: unquantised safetensors in {', '.join(READABLE)}",
            )  # fmt: skip
