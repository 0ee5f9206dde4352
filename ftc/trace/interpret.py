"""Runs a spec with ops: the one description of the forward pass, eager as the reference model and traced into regions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ftc.ops import attention as attention_ops
from ftc.ops import recurrent
from ftc.ops.activation import activate
from ftc.ops.experts import experts
from ftc.ops.linear import linear
from ftc.ops.norm import gated_norm, norm, rms
from ftc.ops.rope import angles, rotate
from ftc.ops.router import route
from ftc.spec.ffn import MLP, MoE
from ftc.spec.mixer import Attention, GatedDelta
from ftc.spec.model import Block, Branch, HyperConnections, Model
from ftc.spec.norm import Norm
from ftc.trace.regions import Kind

Inputs = dict[str, Tensor]


def region_function(model: Model, kind: Kind) -> Callable[..., tuple[Tensor, ...]]:
    """The region as a function of its inputs, in the order `kind.inputs` names them; returns `kind.outputs`."""

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        inputs = dict(zip(kind.inputs, tensors, strict=True))
        if kind.name == "embed":
            return _embed(model, inputs)
        if kind.name == "head":
            return (_head(model, inputs),)
        assert kind.block is not None
        return _Layer(model, kind.block, inputs).run()

    return run


def constants(block: Block) -> Inputs:
    """What a block derives from its spec: `BRANCH.rope` -> radians per position of each pair, float32."""
    return {
        f"{b.name}.rope": torch.tensor(b.body.rope.frequencies(), dtype=torch.float32)
        for b in block.branches
        if isinstance(b.body, Attention) and b.body.rope is not None
    }


def _embed(model: Model, x: Inputs) -> tuple[Tensor, ...]:
    hidden = F.embedding(x["step.tokens"], x["w.embedding"])
    if model.embedding.scale != 1.0:
        hidden = hidden * model.embedding.scale
    if isinstance(model.residual, HyperConnections):
        hidden = hidden.unsqueeze(1).repeat(1, model.residual.streams, 1)
    extra = [
        torch.full((hidden.shape[0], *c.shape), -1, dtype=getattr(torch, c.dtype), device=hidden.device)
        for c in model.carry()[1:]
    ]
    return (hidden, *extra)


def _head(model: Model, x: Inputs) -> Tensor:
    hidden = x["carry.residual"].index_select(0, x["step.select"])
    if isinstance(model.residual, HyperConnections):
        weights = _stream_weights(hidden, model.residual, x, "w.final")
        pre = torch.sigmoid(weights * x["w.final.streams_scale"] + x["w.final.streams_base"]) + model.residual.eps
        hidden = (pre.unsqueeze(-1) * hidden).sum(1).to(hidden.dtype)
    hidden = norm(hidden, model.final_norm, x.get("w.final_norm"), x.get("w.final_norm_bias"))
    weight = x["w.embedding"] if model.head.tied else x["w.head"]
    # one row a sequence here: in decode as many as live rows, in a prefill chunk (one sequence) at most that many
    logits = linear(hidden, weight, x["step.rows"], x.get("w.head_bias"), torch.float32)
    if model.head.scale != 1.0:
        logits = logits * model.head.scale
    return model.head.softcap * torch.tanh(logits / model.head.softcap) if model.head.softcap > 0 else logits


def _stream_weights(streams: Tensor, residual: HyperConnections, x: Inputs, at: str) -> Tensor:
    flat = rms(streams.flatten(1).float(), residual.eps)
    return flat @ x[f"{at}.streams"].T


class _Layer:
    """One block over its inputs; `carry` changes as branches run."""

    def __init__(self, model: Model, block: Block, x: Inputs) -> None:
        self.model, self.block, self.x = model, block, x
        self.rows = x["step.rows"]
        self.carry = {c.name: x[f"carry.{c.name}"] for c in model.carry()}
        self.bank = {name.removeprefix("bank."): t for name, t in x.items() if name.startswith("bank.")}

    def run(self) -> tuple[Tensor, ...]:
        for branch in self.block.branches:
            if isinstance(self.model.residual, HyperConnections):
                self._hyper(branch, self.model.residual)
            else:
                self.carry["residual"] = self.carry["residual"] + self._branch(branch, self.carry["residual"])
        return tuple(self.carry.values())

    def _hyper(self, branch: Branch, residual: HyperConnections) -> None:
        n, streams, at = residual.streams, self.carry["residual"], f"w.{branch.name}"
        raw = _stream_weights(streams, residual, self.x, at)
        scale, base = self.x[f"{at}.streams_scale"], self.x[f"{at}.streams_base"]
        pre = torch.sigmoid(raw[:, :n] * scale[0] + base[:n]) + residual.eps
        post = 2 * torch.sigmoid(raw[:, n : 2 * n] * scale[1] + base[n : 2 * n])
        mix = (raw[:, 2 * n :] * scale[2] + base[2 * n :]).unflatten(-1, (n, n)).softmax(-1) + residual.eps
        mix = mix / (mix.sum(-2, keepdim=True) + residual.eps)
        for _ in range(residual.iterations - 1):
            mix = mix / (mix.sum(-1, keepdim=True) + residual.eps)
            mix = mix / (mix.sum(-2, keepdim=True) + residual.eps)
        y = self._branch(branch, (pre.unsqueeze(-1) * streams).sum(1).to(streams.dtype))
        # a broadcast product and sum, not a matmul: n is 4, and the compiler fuses it
        mixed = (mix.unsqueeze(-1) * streams.unsqueeze(2)).sum(1)
        self.carry["residual"] = (post.unsqueeze(-1) * y.unsqueeze(1) + mixed).to(streams.dtype)

    def _branch(self, branch: Branch, stream: Tensor) -> Tensor:
        h = self._norm(f"{branch.name}.norm", branch.norm, stream)
        match branch.body:
            case Attention() as a:
                y = self._attention(branch.name, a, h)
            case GatedDelta() as d:
                y = self._gated_delta(branch.name, d, h)
            case MLP() as m:
                y = self._mlp(branch.name, m, h)
            case MoE() as m:
                y = self._moe(branch.name, m, h)
        y = self._norm(f"{branch.name}.post_norm", branch.post_norm, y)
        return y if branch.scale == 1.0 else y * branch.scale

    def _norm(self, path: str, spec: Norm | None, x: Tensor) -> Tensor:
        return x if spec is None else norm(x, spec, self.x.get(f"w.{path}"), self.x.get(f"w.{path}_bias"))

    def _linear(self, x: Tensor, path: str, dtype: torch.dtype | None = None) -> Tensor:
        return linear(x, self.x[f"w.{path}"], self.rows, self.x.get(f"w.{path}_bias"), dtype)

    def _attention(self, name: str, a: Attention, h: Tensor) -> Tensor:
        n = h.shape[0]
        both = self._linear(h, f"{name}.qkv")
        q, k, v = both.split((a.query_width, a.kv_heads * a.head_dim, a.kv_heads * a.v_dim), -1)
        q, k, v = q.unflatten(-1, (a.heads, -1)), k.unflatten(-1, (a.kv_heads, -1)), v.unflatten(-1, (a.kv_heads, -1))
        gate = None
        if a.gate is not None:
            if a.gate.source == "query":
                q, gate = q.split(a.head_dim, -1)
            else:
                gate = self._linear(h, f"{name}.gate").unflatten(-1, (a.heads, -1))
        if a.qk_norm_at == "before_rope":
            q, k = self._qk_norm(name, a, q, k)
        if a.rope is not None:
            cos, sin = angles(self.x["step.positions"], self.x[f"const.{name}.rope"])
            q, k = rotate(q, cos, sin, a.rope), rotate(k, cos, sin, a.rope)
        if a.qk_norm_at == "after_rope":
            q, k = self._qk_norm(name, a, q, k)
        selected = None if a.indexer is None else self._indices(name, a, h)
        scale = a.head_dim**-0.5 if a.scale is None else a.scale
        o = attention_ops.attention(
            q,
            k,
            v,
            *self._pool(name, a.cache),
            *(self.x[f"step.{s}"] for s in ("pages", "offsets", "lengths")),
            scale,
            a.window,
            a.softcap,
            self.x.get(f"w.{name}.sinks"),
            selected,
        )
        if gate is not None:
            assert a.gate is not None
            wide = gate.float()
            o = (o.float() * (torch.sigmoid(wide) if a.gate.activation == "sigmoid" else F.softplus(wide))).to(o.dtype)
        return self._linear(o.reshape(n, -1), f"{name}.out")

    def _qk_norm(self, name: str, a: Attention, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if a.qk_norm is None:
            return q, k
        if a.qk_norm.over == "projection":
            q, k = q.flatten(1), k.flatten(1)
        q, k = self._norm(f"{name}.q_norm", a.qk_norm, q), self._norm(f"{name}.k_norm", a.qk_norm, k)
        return q.view(-1, a.heads, a.head_dim), k.view(-1, a.kv_heads, a.head_dim)

    def _indices(self, name: str, a: Attention, h: Tensor) -> Tensor:
        i = a.indexer
        assert i is not None
        if i.mode == "full":
            self.carry["indices"] = attention_ops.choose_tokens(
                self._linear(h, f"{name}.index_q").unflatten(-1, (i.heads, i.dim)),
                self._linear(h, f"{name}.index_k"),
                self._linear(h, f"{name}.index_weights", torch.float32) * (i.dim**-0.5 * i.heads**-0.5),
                *self._pool(name, "index"),
                *(self.x[f"step.{s}"] for s in ("pages", "offsets", "lengths")),
                i.top_k,
            )
        return self.carry["indices"]

    def _pool(self, name: str, group: str) -> tuple[Tensor, Tensor, Tensor]:
        return self.x[f"pool.{group}"], self.x[f"state.{group}"], self.x[f"ord.{name}.{group}"]

    def _gated_delta(self, name: str, d: GatedDelta, h: Tensor) -> Tensor:
        n, inner = h.shape[0], d.value_heads * d.value_dim
        both = self._linear(h, f"{name}.in")
        decays = d.in_width - d.conv_channels - inner - d.value_heads
        x, z, b, decay = both.split((d.conv_channels, inner, d.value_heads, decays), -1)
        slots = tuple(self.x[f"step.{s}"] for s in ("state_in", "state_out", "offsets"))
        x = recurrent.causal_conv(x, self.x[f"w.{name}.conv"], None, *self._pool(name, "conv"), *slots, True)
        keys = d.key_heads * d.key_dim
        q, k, v = x.split((keys, keys, inner), -1)
        rate = -self.x[f"w.{name}.log_decay"].exp()
        soft = F.softplus(decay.float() + self.x[f"w.{name}.decay_bias"])
        g = rate * soft if d.decay_per == "head" else rate.unsqueeze(-1) * soft.unflatten(-1, (d.value_heads, d.key_dim))
        o = recurrent.delta_rule(
            q.unflatten(-1, (d.key_heads, d.key_dim)),
            k.unflatten(-1, (d.key_heads, d.key_dim)),
            v.unflatten(-1, (d.value_heads, d.value_dim)),
            g,
            torch.sigmoid(b.float()),
            *self._pool(name, "delta"),
            *slots,
            d.key_dim**-0.5,
            True,
        )
        gate = z.unflatten(-1, (d.value_heads, d.value_dim))
        o = gated_norm(o, gate, d.norm, self.x[f"w.{name}.inner_norm"])
        return self._linear(o.reshape(n, inner), f"{name}.out")

    def _mlp(self, name: str, m: MLP, h: Tensor) -> Tensor:
        return self._linear(activate(self._linear(h, f"{name}.gate_up"), m.activation), f"{name}.down")

    def _moe(self, name: str, m: MoE, h: Tensor) -> Tensor:
        logits = linear(h, self.x[f"w.{name}.router"], self.rows, None, torch.float32)
        ids, weights = route(logits, m.router, self.x.get(f"w.{name}.router_bias"), self.rows)
        e = m.experts
        y = experts(h, ids, weights, self.bank, self.x[f"ord.{name}.moe"], e.count, e.activation, self.rows)
        if e.identity:
            share = torch.where(ids >= e.count, weights, 0.0).sum(-1, keepdim=True)
            y = (y.float() + share * h.float()).to(y.dtype)
        if m.shared is None:
            return y
        s = activate(self._linear(h, f"{name}.shared_gate_up"), m.shared.activation)
        s = self._linear(s, f"{name}.shared_down")
        if m.shared.gate == "sigmoid":
            s = (s.float() * torch.sigmoid(self._linear(h, f"{name}.shared_gate", torch.float32))).to(s.dtype)
        return y + s
