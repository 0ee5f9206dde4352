"""What a person wants to know of a spec, as labelled lines."""

from __future__ import annotations

from ftc.spec.model import Block, Model
from ftc.spec.size import RUN_BYTES, Size

# bits of one element, scales included: 8 bits with a float32 for 128 x 128, 4 bits with a byte for 32
EXPERT_BITS = {"in 8": 8 + 32 / (128 * 128), "in 4": 4 + 8 / 32}


def summary(model: Model, size: Size) -> list[tuple[str, str]]:
    """(label, text) lines about the whole model."""
    percent = 100 * size.active_parameters / size.parameters
    active = f"{short(size.active_parameters)} active per token ({percent:.0f} %)"
    outside = size.embedding_parameters + size.head_parameters
    lines = [
        ("parameters", f"{short(size.parameters)} in all, {active}"),
        ("", f"of both, {short(outside)} in embedding and head"),
        ("weights", bytes_text(size.weight_bytes)),
    ]
    if size.expert_count:
        elements = size.expert_bytes // RUN_BYTES
        sizes = (f"{bytes_text(elements * bits / 8)} {name}" for name, bits in EXPERT_BITS.items())
        lines.append(("experts", f"{size.expert_count} of {bytes_text(size.expert_bytes)} each in 16 bits, {', '.join(sizes)}"))
    lines += [
        ("hidden", f"{model.hidden}"),
        ("vocabulary", f"{model.vocab}, head {'tied to the embedding' if model.head.tied else 'of its own'}"),
        ("context", f"{model.context_tokens} tokens"),
        ("cache", f"{bytes_text(size.token_bytes)} per token, {bytes_text(size.sequence_bytes)} per sequence"),
        ("arithmetic", f"{short(size.token_flops)}FLOP per token, {short(size.context_flops)}FLOP per earlier token"),
    ]
    for extra in size.extra:
        layers = f"{extra.layers} layer{'s' * (extra.layers != 1)} for {extra.name}"
        lines.append(("not counted", f"{layers}, {short(extra.parameters)} parameters, not served"))
    return lines


def branches(block: Block) -> list[tuple[str, str]]:
    """(branch name, description) of one layer."""
    return [(b.name, b.body.describe()) for b in block.branches]


def numbers(blocks: tuple[int, ...]) -> str:
    """Layer numbers as ranges: `0-2, 4-6`."""
    ranges: list[list[int]] = []
    for i in blocks:
        if ranges and ranges[-1][1] == i - 1:
            ranges[-1][1] = i
        else:
            ranges.append([i, i])
    return ", ".join(f"{a}-{b}" if a != b else f"{a}" for a, b in ranges)


def short(count: float) -> str:
    """A count with three digits: `19.1 M`."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} "


def bytes_text(count: float) -> str:
    """Bytes with three digits in binary units: `96 KiB`."""
    for size, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= size:
            return f"{count / size:.{3 if count / size < 1000 else 4}g} {unit}"
    return f"{count:.0f} B"
