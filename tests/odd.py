"""The odd model of tests/data/specs: a random checkpoint of it on disk, and the same model once more in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from ftc.spec.load import build_model
from ftc.spec.parameters import block_parameters, expert_record, model_parameters

SPEC = Path(__file__).parent / "data" / "specs" / "odd.py"
CONFIG: dict[str, Any] = dict(
    layers=4, hidden=32, vocab=64, streams=4, heads=4, kv_heads=2, head_dim=8, index_heads=8, index_dim=8, index_top_k=6,
    delta_heads=2, delta_dim=8, experts=6, top_k=2, width=24,
)  # fmt: skip


def write(folder: Path, **changes: Any) -> dict[str, Tensor]:
    """Writes the checkpoint and gives its tensors, float32; equal names have equal values whatever the depth."""
    config = {**CONFIG, **changes}
    model = build_model(config, spec=SPEC)
    shapes = {p.path: p.shape for p in model_parameters(model)}
    for i, block in enumerate(model.blocks):
        shapes |= {f"blocks.{i}.{p.path}": p.shape for p in block_parameters(model, block)}
    for i, branch in model.moe_branches:
        r = expert_record(model, branch)
        sizes = {m: (r.count, r.hidden, r.width) if m == "down" else (r.count, r.width, r.hidden) for m in r.matrices}
        # stored as the record holds them: intermediate-major, down too
        shapes |= {f"blocks.{i}.{r.path}.{m}": (r.count, r.width, r.hidden) for m in sizes}
    tensors = {name: _value(name, shape) for name, shape in shapes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return tensors


def _value(name: str, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(sum(ord(c) * (n + 1) for n, c in enumerate(name)))
    r = torch.randn(shape, generator=generator)
    if name.endswith("streams_scale"):
        return 1.0 + 0.3 * r
    if name.endswith("norm"):
        return 1.0 + 0.1 * r
    if len(shape) == 1:
        return 0.5 * r
    return r if name == "embedding" else 1.3 * r / shape[-1] ** 0.5


class Odd:
    """The forward pass over a whole text, float64, one plain formula after the other: no cache, no op of ftc.

    `margin` becomes the smallest lead by which a token or an expert was chosen over the best one that was not.
    """

    def __init__(self, tensors: dict[str, Tensor], **changes: Any) -> None:
        self.c = {**CONFIG, **changes}
        self.w = {name: t.double() for name, t in tensors.items()}
        self.margin = float("inf")

    def logits(self, tokens: list[int]) -> Tensor:
        """[tokens, vocab]"""
        c = self.c
        x = self.w["embedding"][tokens]
        streams = x[:, None].repeat(1, c["streams"], 1)
        chosen: Tensor | None = None
        for i in range(c["layers"]):
            at = f"blocks.{i}."
            if i % 2 == 0:
                normed: dict[str, Tensor] = {}

                def full(h: Tensor, at: str = at, keep: dict[str, Tensor] = normed) -> Tensor:
                    keep["chosen"] = self._choose(at + "mixer.", h)
                    return self._attention(at + "mixer.", h, keep["chosen"])

                streams = self._mix(streams, at + "mixer", full)
                chosen = normed["chosen"]
                streams = self._mix(streams, at + "ffn", lambda h, at=at: self._mlp(h, at + "ffn.gate_up", at + "ffn.down"))
            else:
                assert chosen is not None
                streams = self._mix(
                    streams, at + "mixer", lambda h, at=at, chosen=chosen: self._attention(at + "mixer.", h, chosen)
                )
                streams = self._mix(streams, at + "memory", lambda h, at=at: self._delta(at + "memory.", h))
                streams = self._mix(streams, at + "ffn", lambda h, at=at: self._moe(at + "ffn.", h))
        if c["streams"] > 1:
            read = torch.sigmoid(self._maps(streams, "final") * self.w["final.streams_scale"] + self.w["final.streams_base"])
            x = torch.einsum("ns,nsh->nh", read + 1e-6, streams)
        else:
            x = streams[:, 0]
        return _norm(x, self.w["final_norm"]) @ self.w["head"].T

    def _maps(self, streams: Tensor, at: str) -> Tensor:
        flat = streams.reshape(streams.shape[0], -1)
        return flat / (flat.pow(2).mean(1, keepdim=True) + 1e-6).sqrt() @ self.w[f"{at}.streams"].T

    def _mix(self, streams: Tensor, at: str, branch: Any) -> Tensor:
        weight = self.w[f"{at}.norm"]
        n = self.c["streams"]
        if n == 1:
            return streams + branch(_norm(streams[:, 0], weight))[:, None]
        maps, scale, base = self._maps(streams, at), self.w[f"{at}.streams_scale"], self.w[f"{at}.streams_base"]
        out = torch.empty_like(streams)
        reads, writes = [], []
        for t in range(streams.shape[0]):
            read = torch.sigmoid(maps[t, :n] * scale[0] + base[:n]) + 1e-6
            square = maps[t, 2 * n :].view(n, n) * scale[2] + base[2 * n :].view(n, n)
            square = torch.exp(square) / torch.exp(square).sum(1, keepdim=True) + 1e-6
            square = square / (square.sum(0, keepdim=True) + 1e-6)
            for _ in range(3):  # four Sinkhorn iterations in all
                square = square / (square.sum(1, keepdim=True) + 1e-6)
                square = square / (square.sum(0, keepdim=True) + 1e-6)
            out[t] = square.T @ streams[t]
            reads.append(read @ streams[t])
            writes.append(2 * torch.sigmoid(maps[t, n : 2 * n] * scale[1] + base[n : 2 * n]))
        y = branch(_norm(torch.stack(reads), weight))
        return out + torch.stack(writes)[:, :, None] * y[:, None, :]

    def _choose(self, at: str, h: Tensor) -> Tensor:
        """[tokens, tokens] bool: which earlier tokens each may attend to."""
        heads, dim, k = self.c["index_heads"], self.c["index_dim"], self.c["index_top_k"]
        if k == 0:
            return torch.ones(h.shape[0], h.shape[0], dtype=torch.bool).tril()
        q = (h @ self.w[at + "index_q"].T).view(-1, heads, dim)
        keys, weights = h @ self.w[at + "index_k"].T, h @ self.w[at + "index_weights"].T / (heads * dim) ** 0.5
        kept = torch.zeros(h.shape[0], h.shape[0], dtype=torch.bool)
        for t in range(h.shape[0]):
            score = (torch.relu(q[t] @ keys[: t + 1].T) * weights[t, :, None]).sum(0)
            order = score.argsort(descending=True)
            kept[t, order[:k]] = True
            if t + 1 > k:
                self.margin = min(self.margin, float(score[order[k - 1]] - score[order[k]]))
        return kept

    def _attention(self, at: str, h: Tensor, kept: Tensor) -> Tensor:
        heads, kv, d, n = self.c["heads"], self.c["kv_heads"], self.c["head_dim"], h.shape[0]
        q, k, v = (h @ self.w[at + "qkv"].T).split((heads * d, kv * d, kv * d), 1)
        q, k, v = _turn(q.view(n, heads, d)), _turn(k.view(n, kv, d)), v.view(n, kv, d)
        out = torch.empty(n, heads, d, dtype=torch.float64)
        for head in range(heads):
            group = head * kv // heads
            score = (q[:, head] @ k[:, group].T / d**0.5).masked_fill(~kept, float("-inf"))
            out[:, head] = score.softmax(1) @ v[:, group]
        return out.reshape(n, -1) @ self.w[at + "out"].T

    def _delta(self, at: str, h: Tensor) -> Tensor:
        heads, d, n = self.c["delta_heads"], self.c["delta_dim"], h.shape[0]
        inner = heads * d
        x, z, b, a = (h @ self.w[at + "in"].T).split((3 * inner, inner, heads, heads), 1)
        padded = torch.cat((torch.zeros(3, 3 * inner, dtype=torch.float64), x))
        x = F.silu(torch.stack([(padded[t : t + 4] * self.w[at + "conv"].T).sum(0) for t in range(n)]))
        q, k, v = (part.view(n, heads, d) for part in x.split(inner, 1))
        q, k = (p / (p.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for p in (q, k))
        decay = torch.exp(-self.w[at + "log_decay"].exp() * F.softplus(a + self.w[at + "decay_bias"]))
        out = torch.empty(n, heads, d, dtype=torch.float64)
        for head in range(heads):
            memory = torch.zeros(d, d, dtype=torch.float64)
            for t in range(n):
                key = k[t, head]
                memory = decay[t, head] * memory
                memory = memory + torch.sigmoid(b[t, head]) * torch.outer(key, v[t, head] - key @ memory)
                out[t, head] = q[t, head] @ memory / d**0.5
        out = _norm(out, self.w[at + "inner_norm"]) * F.silu(z.view(n, heads, d))
        return out.reshape(n, -1) @ self.w[at + "out"].T

    def _moe(self, at: str, h: Tensor) -> Tensor:
        scores, k = (h @ self.w[at + "router"].T).softmax(1), self.c["top_k"]
        out = self._mlp(h, at + "shared_gate_up", at + "shared_down") * torch.sigmoid(h @ self.w[at + "shared_gate"].T)
        gate, up, down = (self.w[f"{at}experts.{m}"] for m in ("gate", "up", "down"))
        for t in range(h.shape[0]):
            order = scores[t].argsort(descending=True)
            self.margin = min(self.margin, float(scores[t, order[k - 1]] - scores[t, order[k]]))
            for e in order[:k]:
                y = (F.silu(gate[e] @ h[t]) * (up[e] @ h[t])) @ down[e]
                out[t] = out[t] + y * scores[t, e] / scores[t, order[:k]].sum()
        return out

    def _mlp(self, h: Tensor, gate_up: str, down: str) -> Tensor:
        gate, up = (h @ self.w[gate_up].T).chunk(2, 1)
        return (F.silu(gate) * up) @ self.w[down].T


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def _turn(x: Tensor) -> Tensor:
    """Rotates element i with element i + d/2 by position * 10000 ** (-2i / d)."""
    n, _, d = x.shape
    out = x.clone()
    for i in range(d // 2):
        angle = torch.arange(n, dtype=torch.float64) * 10000.0 ** (-2 * i / d)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        out[:, :, i] = x[:, :, i] * cos - x[:, :, i + d // 2] * sin
        out[:, :, i + d // 2] = x[:, :, i + d // 2] * cos + x[:, :, i] * sin
    return out
