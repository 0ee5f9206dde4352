"""No model family or maker is named under ftc/ or native/; clients and rivals only where the command line must."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.rules.tree import ROOT, at, parse, python, read, report, under

# Written by hand: families and makers. A match begins where a word or a part of one does: `is_qwen`, `QwenBlock`.
FAMILIES = """
afmoe alibaba baichuan bailing chatglm cohere(?!n) deepseek dots1 ernie exaone falcon flex_?olmo gemini gemma glm4
glm_moe gpt.?oss gpt.?2 gpt.?neox granite hunyuan internlm jamba kimi laguna lfm2 llama longcat mimo.?v2 minicpm
minimax mistral mixtral moonshot muse_?(glimmer|spark) nemotron olmo phi.?moe phi.?[1-4] qwen smollm solar_?open
tencent xiaomi yi.?34b zhipu hermes harmony
""".split()  # fmt: skip

# Programs that talk to ftc or compete with it. Where ftc launches or measures them, in ftc/cli, they must be named.
PROGRAMS = """
aider claude cline codex continue\\.dev crush exllama fastllm goose ktransformers llama\\.?.?cpp llama.?server
lm.?studio mlc.?llm ollama open.?code open.?hands sglang text.?generation.?inference vllm
""".split()  # fmt: skip


def registry() -> dict[str, Path]:
    """What the live spec files say they are: architecture strings, model types and file names -> the file."""
    found: dict[str, Path] = {}
    for path in python("models"):
        if path.parent != ROOT / "models" or path.stem.startswith("_"):
            continue
        found[path.stem] = path
        for node in parse(path).body:
            targets = [t.id for t in getattr(node, "targets", []) if isinstance(t, ast.Name)]
            if isinstance(node, ast.Assign) and {"ARCHITECTURES", "MODEL_TYPES"} & set(targets):
                found |= dict.fromkeys(ast.literal_eval(node.value), path)
    return found


def families() -> re.Pattern[str]:
    words = sorted([*map(re.escape, registry()), *FAMILIES], key=len, reverse=True)
    # A capital after a small letter begins a part of a word too, so the letters before decide, not \b.
    return re.compile(rf"(?<![a-z])(?i:{'|'.join(words)})|(?<=[a-z])(?=[A-Z])(?i:{'|'.join(words)})")


def programs() -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z])(?:{'|'.join(PROGRAMS)})(?![a-z])", re.IGNORECASE)


def named(text: str, forbidden: re.Pattern[str], allowed: re.Pattern[str] | None) -> list[tuple[int, str]]:
    """(line, word) of each forbidden name in `text`, after what is allowed has been blanked out."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        left = allowed.sub("", line) if allowed else line
        found += [(number, match.group()) for match in forbidden.finditer(left)]
    return found


def test_the_registry_is_live():
    architectures = [name for name in registry() if name.endswith(("ForCausalLM", "ForConditionalGeneration"))]
    assert architectures, "no spec file under models/ names an architecture"


def test_engine_names_no_model():
    models, rivals = families(), programs()
    problems = []
    for path in under("ftc", "native"):
        is_cli = ROOT / "ftc" / "cli" in path.parents
        short = at(path)
        for _, word in named(short, models, rivals if is_cli else None):
            problems.append(f"{short}: its name holds {word!r}")
        checks = [(models, rivals if is_cli else None)] + ([] if is_cli else [(rivals, None)])
        for forbidden, allowed in checks:
            problems += [f"{at(path, line)}: names {word!r}" for line, word in named(read(path), forbidden, allowed)]
    report(problems)


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("if arch == 'Qwen3MoeForCausalLM':", True),
        ("# as DeepSeek does it", True),
        ("def gpt_oss_swiglu(x):", True),
        ("rope_type = 'llama3'", True),
        ("graph.algorithm = 'dolphin'", False),
        ("swiglu with a clamp, wavelength bands, json in tags", False),
        ("phi = golden_ratio", False),
        ("class TinyQwen:", True),
        ("is_qwen = True", True),
        ("a coherent view", False),
    ],
)
def test_the_rule_itself(line: str, is_found: bool):
    assert bool(named(line, families(), None)) == is_found


def test_words_that_hold_a_program_are_not_programs():
    assert named("the raider declined to recline in the crusher", programs(), None) == []


def test_programs_may_be_named_beside_families():
    assert named("run llama.cpp", families(), programs()) == []
    assert named("run llama.cpp", programs(), None) == [(1, "llama.cpp")]
