"""The manifest: rules, prefixes, skips and the time it takes; files play no part here."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from ftc.errors import Problems
from ftc.spec import Config, Model, Skip, WeightRules, rows, tensor
from ftc.weights.checkpoint import Checkpoint, StoredTensor
from ftc.weights.manifest import resolve
from ftc_models import qwen3_moe

CONFIG = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 6,
    "moe_intermediate_size": 3,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 16,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6,
}


def made(**changes: object) -> Model:
    return qwen3_moe.model(Config({**CONFIG, **changes}))


def tensors(model: Model, experts: int, prefix: str = "model.") -> dict[str, tuple[int, ...]]:
    """Every tensor of a per-expert checkpoint of the model."""
    h, w = model.hidden, 3
    found: dict[str, tuple[int, ...]] = {"lm_head.weight": (model.vocab, h)}
    found |= {prefix + "embed_tokens.weight": (model.vocab, h), prefix + "norm.weight": (h,)}
    for i in range(len(model.blocks)):
        at = f"{prefix}layers.{i}."
        found |= {at + f"{n}_layernorm.weight": (h,) for n in ("input", "post_attention")}
        sizes = {"q_proj": (8, h), "k_proj": (4, h), "v_proj": (4, h), "o_proj": (h, 8), "q_norm": (4,), "k_norm": (4,)}
        found |= {at + f"self_attn.{n}.weight": shape for n, shape in sizes.items()}
        found[at + "mlp.gate.weight"] = (experts, h)
        for e in range(experts):
            own = {"gate": (w, h), "up": (w, h), "down": (h, w)}
            found |= {at + f"mlp.experts.{e}.{n}_proj.weight": shape for n, shape in own.items()}
    return found


def checkpoint(shapes: dict[str, tuple[int, ...]]) -> Checkpoint:
    return Checkpoint(Path("x"), {n: StoredTensor(n, "f", "BF16", s, 0, 0) for n, s in shapes.items()})


def with_rules(model: Model, rules: dict, skip: tuple[Skip, ...] = (), prefixes: tuple[str, ...] = ("model.",)) -> Model:
    return msgspec.structs.replace(model, weights=WeightRules({**model.weights.rules, **rules}, skip, prefixes))


def test_every_parameter_has_one_source_of_its_shape() -> None:
    model = made()
    shapes = tensors(model, 4)
    manifest = resolve(model, checkpoint(shapes))
    assert manifest.used == set(shapes) and not manifest.skipped
    assert manifest.entries["blocks.1.mixer.qkv"].shape == (16, 8)
    down = manifest.entries["blocks.1.ffn.experts.down"]
    assert down.shape == (4, 3, 8) and down.routed and down.precision == "run"
    assert manifest.entries["embedding"].source == tensor("model.embed_tokens.weight")


@pytest.mark.parametrize("prefix", ["", "model.", "model.language_model."])
def test_the_prefix_that_fits_is_found(prefix: str) -> None:
    model = with_rules(made(), {}, prefixes=("", "model.", "model.language_model."))
    manifest = resolve(model, checkpoint(tensors(model, 4, prefix)))
    assert manifest.prefix == prefix


def test_a_prefix_is_found_even_where_its_embedding_is_missing() -> None:
    model = with_rules(made(), {}, prefixes=("", "model."))
    shapes = tensors(model, 4)
    del shapes["model.embed_tokens.weight"]
    with pytest.raises(Problems, match="model.embed_tokens.weight: missing") as e:
        resolve(model, checkpoint(shapes))
    assert len(e.value.problems) == 1


def test_a_rule_for_one_block_goes_before_the_pattern() -> None:
    model = with_rules(made(), {"blocks.1.mixer.norm": "special"})
    shapes = tensors(model, 4)
    shapes["special"] = shapes.pop("model.layers.1.input_layernorm.weight")
    manifest = resolve(model, checkpoint(shapes))
    assert manifest.entries["blocks.1.mixer.norm"].source == tensor("special")
    assert manifest.entries["blocks.0.mixer.norm"].source == tensor("model.layers.0.input_layernorm.weight")


def test_skipped_and_unused_tensors() -> None:
    model = with_rules(made(), {}, (Skip("*.rotary.*", "computed"), Skip("mtp.*", "not served")))
    shapes = tensors(model, 4) | {"model.layers.0.rotary.inv_freq": (4,), "mtp.norm.weight": (8,)}
    reasons = {"model.layers.0.rotary.inv_freq": "computed", "mtp.norm.weight": "not served"}
    assert resolve(model, checkpoint(shapes)).skipped == reasons
    with pytest.raises(Problems, match=r"f: other: no parameter uses this tensor") as e:
        resolve(model, checkpoint(shapes | {"other": (1,)}))
    assert len(e.value.problems) == 1


def test_a_rule_never_skips_what_a_parameter_uses() -> None:
    model = with_rules(made(), {}, (Skip("*", "all"),))
    shapes = tensors(model, 4)
    assert resolve(model, checkpoint(shapes)).used == set(shapes)


def test_a_parameter_without_a_rule() -> None:
    model = made()
    rules = {k: v for k, v in model.weights.rules.items() if k != "final_norm"}
    model = msgspec.structs.replace(model, weights=WeightRules(rules, (Skip("model.norm.weight", "x"),), ("model.",)))
    with pytest.raises(Problems, match="final_norm: the spec has no weight rule") as e:
        resolve(model, checkpoint(tensors(model, 4)))
    assert len(e.value.problems) == 1


def test_wrong_number_of_experts() -> None:
    model = made(num_experts=5)
    with pytest.raises(Problems) as e:
        resolve(model, checkpoint(tensors(model, 4)))
    text = str(e.value)
    assert "experts.4.gate_proj.weight: missing tensor" in text
    assert "model.layers.0.mlp.gate.weight: wrong shape: blocks.0.ffn.router needs [5, 8] (got [4, 8])" in text


def test_wrong_shapes_inside_an_expression() -> None:
    model = made()
    shapes = tensors(model, 4) | {"model.layers.0.self_attn.k_proj.weight": (4, 9)}
    with pytest.raises(Problems, match=r"k_proj.weight: blocks.0.mixer.qkv: cannot be joined .* \(got \[4, 9\]\)"):
        resolve(model, checkpoint(shapes))
    model = with_rules(model, {"final_norm": rows("model.norm.weight", 4, 8)})
    with pytest.raises(Problems, match=r"model.norm.weight: final_norm: too small for 8 entries"):
        resolve(model, checkpoint(tensors(model, 4)))


def test_a_hundred_thousand_tensors_take_seconds_at_most() -> None:
    model = made(num_hidden_layers=90, num_experts=384)
    held = checkpoint(tensors(model, 384))
    assert len(held.tensors) > 100_000
    begin = time.process_time()
    resolve(model, held)
    # 1.3 s on a slow core; a search per tensor would take minutes.
    assert time.process_time() - begin < 8
    broken = checkpoint({n.replace(".experts.", ".expert."): t.shape for n, t in held.tensors.items()})
    begin = time.process_time()
    with pytest.raises(Problems):
        resolve(model, broken)
    assert time.process_time() - begin < 8


def test_manifests_need_no_torch() -> None:
    code = "import sys, ftc.weights.manifest, ftc.weights.hub, ftc.cli.spec; print('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[3]
    out = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
