"""The `load` cases: what public checkpoints were seen to be wrong with, and what is said about it."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ftc.errors import CheckpointError, Problems, SpecError
from ftc.spec.load import read_model
from ftc.weights.checkpoint import open_checkpoint
from ftc.weights.head import settle_head
from ftc.weights.hub import locate
from ftc.weights.load import Weights, load
from ftc.weights.manifest import resolve
from tests.unit.weights.layout import case, values, write

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Log lines also where an earlier test sent them to stderr only."""
    monkeypatch.setattr(logging.getLogger("ftc"), "propagate", True)
    return caplog


def opened(folder: Path, dtype: torch.dtype = torch.bfloat16) -> Weights:
    return load(read_model(folder), folder, dtype)


def refusal(folder: Path) -> str:
    with pytest.raises(Problems) as e:
        opened(folder)
    return str(e.value)


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {k: v for f in folder.glob("*.safetensors") for k, v in load_file(f).items()}


def equal_experts(weights: Weights, folder: Path) -> bool:
    assert weights.bank is not None
    tensors, views = stored(folder), weights.bank.views()
    for e in range(weights.bank.experts):
        at = f"model.layers.0.mlp.experts.{e}."
        if not (
            torch.equal(views["gate"][e], tensors[at + "gate_proj.weight"])
            and torch.equal(views["up"][e], tensors[at + "up_proj.weight"])
            and torch.equal(views["down"][e], tensors[at + "down_proj.weight"].T)
        ):
            return False
    return True


def test_c107_every_tensor_is_used(tmp_path: Path) -> None:
    folder = write(case("c107")["input"], tmp_path)
    checkpoint = open_checkpoint(folder)
    manifest = resolve(read_model(folder), checkpoint)
    assert manifest.used == set(checkpoint.tensors) and not manifest.skipped and not manifest.warnings
    weights = opened(folder)
    assert equal_experts(weights, folder)
    assert torch.equal(weights.model["head"], stored(folder)["lm_head.weight"])


def test_c108_truncated_shard(tmp_path: Path) -> None:
    c = case("c108")
    text = refusal(write(c["input"], tmp_path))
    assert all(words in text for words in c["expect"]["message_has"])
    size = (tmp_path / SECOND).stat().st_size
    assert f"expected size {size + 64} bytes, actual size {size} bytes" in text
    assert text.startswith(f"{tmp_path}: 1 problem found")


@pytest.mark.parametrize("variant", range(4))
def test_c109_broken_header(tmp_path: Path, variant: int) -> None:
    c = case("c109")
    text = refusal(write(c["input"], tmp_path, c["input"]["corrupt_variants"][variant]))
    assert all(words in text for words in c["expect"]["message_has"])
    assert "the file is incomplete; download it again" in text
    assert "1 problem found" in text, "what the unreadable shard holds must not be listed as missing as well"


def test_c112_missing_weight(tmp_path: Path) -> None:
    c = case("c112")
    text = refusal(write(c["input"], tmp_path))
    assert all(words in text for words in c["expect"]["message_has"])
    assert "missing tensor, needed for blocks.0.ffn.experts.down" in text and "1 problem found" in text


def test_c112_all_missing_weights_at_once(tmp_path: Path) -> None:
    given = case("c107")["input"]
    given["tensors"] = [t for t in given["tensors"] if ".mlp.experts." not in t["name"]]
    text = refusal(write(given, tmp_path))
    assert text.count("missing tensor, needed for") == 10 and "... and 2 more of this kind" in text


def test_c113_tensor_that_the_index_leaves_out(tmp_path: Path, heard: pytest.LogCaptureFixture) -> None:
    folder = write(case("c113")["input"], tmp_path)
    with heard.at_level(logging.WARNING, "ftc"):
        weights = opened(folder)
    name = "model.layers.0.self_attn.o_proj.weight"
    assert [name in r.message for r in heard.records] == [True]
    assert torch.equal(weights.blocks[0]["mixer.out"], stored(folder)[name])


def test_c116_wrong_dtypes(tmp_path: Path) -> None:
    c = case("c116")
    text = refusal(write(c["input"], tmp_path))
    assert all(words in text for words in c["expect"]["message_has"])
    at = "model.layers.0.mlp.experts."
    assert f"{at}1.gate_proj.weight: wrong dtype F64" in text
    assert f"F8_E4M3: such values need a scale, and {at}2.gate_proj.weight_scale_inv is missing" in text
    assert "3 problems found" in text


def test_c118_unknown_architecture(tmp_path: Path) -> None:
    given = case("c118")["input"]["variants"][0]
    with pytest.raises(SpecError) as e:
        read_model(write(given, tmp_path))
    assert "FooBarForCausalLM" in str(e.value) and "known: " in str(e.value) and "Qwen3MoeForCausalLM" in str(e.value)


def test_c118_unknown_quantisation_is_seen_in_the_config_alone(tmp_path: Path) -> None:
    given = case("c118")["input"]["variants"][1]
    (tmp_path / "config.json").write_text(json.dumps(given["config.json"]))
    with pytest.raises(CheckpointError) as e:
        opened(tmp_path)
    assert "exl3" in str(e.value) and "quantization_config" in str(e.value) and "supported:" in str(e.value)


def test_c118_file_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / case("c118")["input"]["variants"][2]["path"]
    path.write_bytes(b"GGUF")
    with pytest.raises(CheckpointError) as e:
        locate(str(path))
    assert ".gguf" in str(e.value) and "supported:" in str(e.value)


def tied_case(number: int, folder: Path) -> tuple[Path, dict[str, Any]]:
    """One variant of c126, built from the good layout as the case says."""
    variant = case("c126")["input"]["variants"][number]
    given = copy.deepcopy(case("c107")["input"])
    config = given["config.json"]
    del config["tie_word_embeddings"]
    if "text_config" in variant:
        config["architectures"], inner = ["Qwen3_5MoeForConditionalGeneration"], dict(config)
        inner |= {"layer_types": ["full_attention"], "attn_output_gate": False, "shared_expert_intermediate_size": 32}
        inner |= {f"linear_{key}": 4 for key in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")}
        given["config.json"] = config | {"text_config": inner | {"linear_conv_kernel_dim": 4} | variant["text_config"]}
        at = "model.layers.0.mlp.shared_expert"
        for name, shape in (
            (".gate_proj", [32, 64]),
            (".up_proj", [32, 64]),
            (".down_proj", [64, 32]),
            ("_gate", [1, 64]),
        ):
            given["tensors"].append({"name": f"{at}{name}.weight", "dtype": "BF16", "shape": shape, "shard": SECOND})
    else:
        config["tie_word_embeddings"] = variant["tie_word_embeddings"]
    if not variant["lm_head_stored"]:
        given["tensors"] = [t for t in given["tensors"] if t["name"] != "lm_head.weight"]
    return write(given, folder), variant


@pytest.mark.parametrize("number", [0, 4])
def test_c126_tied_without_a_stored_head(tmp_path: Path, number: int) -> None:
    folder, variant = tied_case(number, tmp_path)
    assert variant["expect"] == "head = embedding"
    model = read_model(folder)
    assert model.head.tied and settle_head(model, open_checkpoint(folder)) == model
    assert "head" not in load(model, folder, torch.bfloat16).model


@pytest.mark.parametrize("number", [2, 5])
def test_c126_untied_with_a_stored_head(tmp_path: Path, number: int) -> None:
    folder, variant = tied_case(number, tmp_path)
    assert variant["expect"] == "stored head used"
    assert torch.equal(opened(folder).model["head"], stored(folder)["lm_head.weight"])


def test_c126_untied_without_a_stored_head(tmp_path: Path) -> None:
    folder, variant = tied_case(3, tmp_path)
    assert variant["expect"].startswith("refused naming lm_head.weight")
    assert "lm_head.weight: missing tensor" in refusal(folder)


def test_c126_tied_with_a_stored_head_that_differs(tmp_path: Path, heard: pytest.LogCaptureFixture) -> None:
    folder, variant = tied_case(1, tmp_path)
    assert variant["expect"] == "stored head used, one warning"
    model = read_model(folder)
    with pytest.raises(CheckpointError, match="differs from the embedding"):
        load(model, folder, torch.bfloat16)
    heard.clear()
    with heard.at_level(logging.WARNING, "ftc"):
        settled = settle_head(model, open_checkpoint(folder))
        weights = load(settled, folder, torch.bfloat16)
    assert len(heard.records) == 1 and "lm_head.weight" in heard.records[0].getMessage()
    assert torch.equal(weights.model["head"], stored(folder)["lm_head.weight"])


def test_c126_tied_with_an_equal_stored_head(tmp_path: Path) -> None:
    given = case("c107")["input"]
    given["config.json"]["tie_word_embeddings"] = True
    for t in given["tensors"]:
        if t["name"] == "lm_head.weight":
            t["bytes"] = values("model.embed_tokens.weight", "BF16", t["shape"])
    folder = write(given, tmp_path)
    model = read_model(folder)
    checkpoint = open_checkpoint(folder)
    assert settle_head(model, checkpoint) == model
    assert resolve(model, checkpoint).skipped == {"lm_head.weight": "tied: the head reads the embedding"}
    assert list(load(model, folder, torch.bfloat16).model) == ["embedding", "final_norm"]


def test_c127_five_experts(tmp_path: Path) -> None:
    folder = write(case("c127")["input"]["variants"][0], tmp_path)
    weights = opened(folder)
    assert weights.bank is not None and weights.bank.rows == 5
    assert equal_experts(weights, folder)


def test_c127_block_quantisation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(case("c127")["input"]["variants"][1]["config.json"]))
    with pytest.raises(CheckpointError, match="fp8"):
        opened(tmp_path)


def test_everything_that_is_wrong_is_listed_at_once(tmp_path: Path) -> None:
    given = case("c107")["input"]
    for t in given["tensors"]:
        match t["name"]:
            case "model.norm.weight":
                t["shape"] = [63]
            case "model.layers.0.self_attn.q_proj.weight":
                t["name"] = "model.layers.0.self_attn.query_proj.weight"
            case "model.layers.0.mlp.gate.weight":
                t["dtype"] = "I32"
    damage = [{"op": "truncate", "file": SECOND, "bytes": 2}]
    text = refusal(write(given, tmp_path, damage))
    for words in (
        f"{SECOND}: the file is truncated",
        "model.norm.weight: wrong shape: final_norm needs [64] (got [63])",
        "self_attn.q_proj.weight: missing tensor, needed for blocks.0.mixer.qkv",
        "similar name: model.layers.0.self_attn.query_proj.weight",
        "model.layers.0.mlp.gate.weight: wrong dtype I32",
        "model.layers.0.self_attn.query_proj.weight: no parameter uses this tensor",
        "5 problems found",
    ):
        assert words in text
