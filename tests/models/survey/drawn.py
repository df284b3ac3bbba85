"""Recommendation models drawn at random, for the survey.

    REFRACT_TEST_SEED=7 python -m tests.models.survey.survey \\
        --cases tests.models.survey.drawn --forms pt2,trace

A model is features, each looked up in a way of its own, an interaction, towers
and heads. The seed draws every choice and every width. REFRACT_TEST_DRAWN is the
number of models (default 20).
"""

import os
import random

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.survey.case import Case, bags, dense, ids

SEED = int(os.environ.get("REFRACT_TEST_SEED", 1))
COUNT = int(os.environ.get("REFRACT_TEST_DRAWN", 20))


# Features: the tensors that draw() gives → [batch, width].


class OneHot(nn.Module):
    """An id a row; its number folded into the table in one of three ways."""

    def __init__(self, r):
        super().__init__()
        self.rows = r.randint(3, 60)
        self.how = r.choice(("plain", "hashed", "quotient", "int32", "column"))
        self.width = r.choice((1, 3, 4, 8, 16, 20))
        self.table = nn.Embedding(self.rows, self.width)
        self.second = nn.Embedding(7, self.width)

    def draw(self, batch, g):
        top = 10_000_000 if self.how == "hashed" else self.rows
        shape = (batch, 1) if self.how == "column" else (batch,)
        x = ids(g, top, *shape)
        return (x.int() if self.how == "int32" else x,)

    def forward(self, x):
        if self.how == "hashed":
            x = (x * 2654435761 + 97) % self.rows
        if self.how == "quotient":
            return self.table(x // 7) * self.second(x % 7)
        if self.how == "column":
            return self.table(x).squeeze(1)
        return self.table(x)


class Bag(nn.Module):
    """nn.EmbeddingBag over values and offsets."""

    def __init__(self, r):
        super().__init__()
        self.rows = r.randint(3, 60)
        self.mode = r.choice(("sum", "mean", "max"))
        self.weighted = self.mode == "sum" and r.random() < 0.4
        self.last = r.random() < 0.4
        self.padding = r.choice((None, None, 0, self.rows - 1))
        self.width = r.choice((4, 8, 12, 16))
        self.table = nn.EmbeddingBag(
            self.rows, self.width, mode=self.mode, padding_idx=self.padding,
            include_last_offset=self.last,
        )  # fmt: skip

    def draw(self, batch, g):
        values, offsets = bags(g, self.rows, batch, last=self.last)
        if self.weighted:
            return values, offsets, torch.rand(values.shape, generator=g)
        return values, offsets

    def forward(self, values, offsets, weights=None):
        return self.table(values, offsets, per_sample_weights=weights)


class FixedBag(nn.Module):
    """As many ids in each row, pooled by one operator or by several."""

    def __init__(self, r):
        super().__init__()
        self.rows, self.count = r.randint(3, 60), r.randint(2, 6)
        self.width = r.choice((4, 8, 16))
        self.how = r.choice(("bag", "weighted", "sum", "mean", "max", "flat", "one_hot"))
        self.bag = nn.EmbeddingBag(self.rows, self.width, mode="sum")
        self.table = nn.Embedding(self.rows, self.width, padding_idx=0)
        self.weights = nn.Parameter(torch.rand(self.count))
        self.flat = nn.Linear(self.width * self.count, self.width)

    def draw(self, batch, g):
        return (ids(g, self.rows, batch, self.count),)

    def forward(self, x):
        if self.how == "bag":
            return self.bag(x)
        if self.how == "weighted":
            return self.bag(x, per_sample_weights=self.weights.expand(x.shape))
        if self.how == "one_hot":
            return F.one_hot(x, self.rows).float().sum(1) @ self.table.weight
        v = self.table(x)
        if self.how == "flat":
            return self.flat(v.flatten(1))
        if self.how == "max":
            return v.amax(1)
        return v.sum(1) if self.how == "sum" else v.mean(dim=1)


class History(nn.Module):
    """A padded sequence of ids, with a mask of the ids that are not 0."""

    def __init__(self, r):
        super().__init__()
        self.rows, self.length = r.randint(5, 60), r.randint(3, 8)
        self.width = r.choice((4, 8))
        self.how = r.choice(
            ("mean", "attention", "target", "conv", "gru", "last", "position", "heads")
        )
        self.table = nn.Embedding(self.rows, self.width, padding_idx=0)
        self.places = nn.Embedding(self.length, self.width)
        self.query = nn.Linear(self.width, self.width)
        self.score = nn.Sequential(
            nn.Linear(4 * self.width, 6), nn.PReLU(), nn.Linear(6, 1)
        )
        self.conv = nn.Conv1d(self.width, self.width, 3, padding=1)
        self.gru = nn.GRU(self.width, self.width, batch_first=True)
        self.heads = nn.MultiheadAttention(self.width, 2, batch_first=True)

    def draw(self, batch, g):
        x = ids(g, self.rows, batch, self.length)
        keep = torch.randint(1, self.length + 1, (batch, 1), generator=g)
        x = x.clamp(min=1) * (torch.arange(self.length) < keep)
        return (x, ids(g, self.rows, batch)) if self.how == "target" else (x,)

    def forward(self, x, target=None):
        mask = x != 0
        v = self.table(x)
        if self.how == "conv":
            return self.conv(v.transpose(1, 2)).relu().amax(-1)
        if self.how == "gru":
            return self.gru(v)[0][:, -1]
        if self.how == "heads":
            return self.heads(v, v, v, key_padding_mask=~mask, need_weights=False)[0].mean(1)
        if self.how == "last":
            last = mask.long().sum(1) - 1
            return v.gather(1, last.view(-1, 1, 1).expand(-1, 1, self.width)).squeeze(1)
        if self.how == "position":
            v = v + self.places(torch.arange(self.length, device=x.device))
        if self.how == "attention":
            w = (self.query(v) @ v.transpose(-1, -2)) / self.width**0.5
            w = w.masked_fill(~mask.unsqueeze(1), -1e9).softmax(-1)
            return (w @ v).sum(1)
        if self.how == "target":
            t = self.table(target).unsqueeze(1).expand_as(v)
            s = self.score(torch.cat([t, v, t - v, t * v], -1)).squeeze(-1)
            s = torch.where(mask, s, torch.full_like(s, float("-inf")))
            return torch.einsum("bl,bld->bd", torch.softmax(s, 1), v)
        m = mask.unsqueeze(-1).to(v.dtype)
        return (v * m).sum(1) / m.sum(1).clamp(min=1.0)


class Numbers(nn.Module):
    """Dense features after one of the usual transforms."""

    def __init__(self, r):
        super().__init__()
        self.count = r.randint(1, 9)
        self.width = self.count
        self.how = r.choice(("plain", "log", "scale", "norm", "batch", "bucket", "periodic"))
        self.norm = nn.LayerNorm(self.count)
        self.batch = nn.BatchNorm1d(self.count)
        self.register_buffer("mean", torch.randn(self.count))
        self.register_buffer("edges", torch.linspace(-2, 2, 9))
        self.buckets = nn.Embedding(10, 4)
        if self.how == "bucket":
            self.width = 4 * self.count
        if self.how == "periodic":
            self.width = 2 * self.count

    def draw(self, batch, g):
        return (dense(g, batch, self.count),)

    def forward(self, x):
        if self.how == "log":
            return torch.log1p(x.clamp(min=0))
        if self.how == "scale":
            return ((x - self.mean) / 1.7).clamp(-3, 3)
        if self.how == "norm":
            return self.norm(x)
        if self.how == "batch":
            return self.batch(x)
        if self.how == "bucket":
            return self.buckets(torch.bucketize(x, self.edges)).flatten(1)
        if self.how == "periodic":
            return torch.cat([torch.sin(x * 3), torch.cos(x * 3)], dim=-1)
        return torch.nan_to_num(x)


FEATURES = (OneHot, OneHot, Bag, Bag, FixedBag, History, Numbers)


# Interactions: [batch, fields, width] → [batch, any].


class Interaction(nn.Module):
    HOWS = ("cat", "dot", "triu", "fm", "cross", "cross_v2", "cin", "attention", "senet",
            "pairs", "gates", "fwfm", "mixer")  # fmt: skip

    def __init__(self, r, fields, width):
        super().__init__()
        self.fields, self.dim = fields, width
        self.how = r.choice(self.HOWS)
        flat = fields * width
        self.cross = nn.ParameterList(torch.randn(flat) * 0.1 for _ in range(2))
        self.v = nn.Linear(flat, 3, bias=False)
        self.u = nn.Linear(3, flat)
        self.maps = nn.Parameter(torch.randn(5, fields, fields) * 0.2)
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width, bias=False)
        self.squeeze = nn.Linear(fields, 2)
        self.excite = nn.Linear(2, fields)
        self.strength = nn.Parameter(torch.randn(fields, fields))
        self.mix = nn.Linear(fields, fields)
        rows, columns = torch.triu_indices(fields, fields, 1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)

    def forward(self, x):
        flat = x.flatten(1)
        how = self.how
        if how == "dot":
            z = torch.bmm(x, x.transpose(1, 2))
            return torch.cat([flat, z[:, self.columns, self.rows]], 1)
        if how == "triu":
            z = torch.matmul(x, x.mT).triu(1).reshape(x.shape[0], -1)
            return torch.cat((z, flat), dim=1)
        if how == "fm":
            return torch.cat([0.5 * (x.sum(1).square() - x.pow(2).sum(1)), flat], -1)
        if how == "cross":
            y = flat
            for w in self.cross:
                y = flat * (y @ w).unsqueeze(1) + y
            return y
        if how == "cross_v2":
            y = flat
            for _ in range(2):
                y = torch.addcmul(y, flat, self.u(self.v(y)))
            return y
        if how == "cin":
            return torch.einsum("hij,bid,bjd->bhd", self.maps, x, x).relu().sum(-1)
        if how == "attention":
            w = F.scaled_dot_product_attention(self.q(x), self.k(x), x)
            return (F.leaky_relu(w) + x).reshape(-1, self.fields * self.dim)
        if how == "senet":
            z = self.excite(F.relu(self.squeeze(x.mean(-1))))
            return (x * torch.sigmoid(z).unsqueeze(-1)).flatten(1)
        if how == "pairs":
            return (x[:, self.rows] * x[:, self.columns]).sum(-1)
        if how == "gates":
            return (x * torch.tanh(self.q(x)) * F.softplus(x)).view(x.size(0), -1)
        if how == "fwfm":
            z = (x.unsqueeze(2) * x.unsqueeze(1)).sum(-1) * self.strength
            return torch.cat([z.tril(-1).flatten(1), flat], 1)
        if how == "mixer":
            return (self.mix(x.permute(0, 2, 1)).permute(0, 2, 1) + x).contiguous().flatten(1)
        return flat


ACTIVATIONS = (nn.ReLU, nn.GELU, lambda: nn.GELU(approximate="tanh"), nn.SiLU, nn.Tanh,
               nn.LeakyReLU, nn.PReLU, nn.Sigmoid, nn.Softplus, nn.ELU, nn.SELU, nn.Mish,
               nn.Hardswish, nn.Hardtanh, nn.ReLU6, nn.Softsign)  # fmt: skip


class Block(nn.Module):
    def __init__(self, r, i, o):
        super().__init__()
        self.linear = nn.Linear(i, o, bias=r.random() < 0.8)
        self.norm = r.choice((nn.Identity, nn.BatchNorm1d, nn.LayerNorm, nn.RMSNorm, nn.Identity))
        self.norm = self.norm() if self.norm is nn.Identity else self.norm(o)
        self.act = r.choice(ACTIVATIONS)()
        self.residual = i == o and r.random() < 0.7
        self.first = r.random() < 0.3
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        y = self.linear(x)
        y = self.norm(self.act(y)) if self.first else self.act(self.norm(y))
        y = self.drop(y)
        return x + y if self.residual else y


def tower(r, width):
    blocks = []
    for _ in range(r.randint(1, 3)):
        o = r.choice((4, 7, 8, 16, 16, 24, 33))
        blocks.append(Block(r, width, o))
        width = o
    return nn.Sequential(*blocks), width


class Heads(nn.Module):
    HOWS = ("sigmoid", "column", "tasks", "dict", "softmax", "mmoe", "esmm", "exp", "topk",
            "cosine", "logit")  # fmt: skip

    def __init__(self, r, width):
        super().__init__()
        self.how = r.choice(self.HOWS)
        self.one = nn.Linear(width, 1)
        self.two = nn.Linear(width, 1)
        self.many = nn.Linear(width, 5)
        self.experts = nn.ModuleList(nn.Linear(width, 6) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(width, 3) for _ in range(2))
        self.outs = nn.ModuleList(nn.Linear(6, 1) for _ in range(2))

    def forward(self, x):
        how = self.how
        if how == "column":
            return torch.sigmoid(self.one(x))
        if how == "tasks":
            return self.one(x).sigmoid().view(-1), torch.sigmoid(self.two(x)).reshape(-1)
        if how == "dict":
            return {"click": self.one(x).squeeze(-1).sigmoid(), "value": self.two(x).exp()[:, 0]}
        if how == "softmax":
            return F.softmax(self.many(x), dim=-1)
        if how == "mmoe":
            e = torch.stack([F.relu(expert(x)) for expert in self.experts], dim=1)
            return [
                torch.sigmoid(out((gate(x).softmax(-1).unsqueeze(-1) * e).sum(1))).squeeze(1)
                for gate, out in zip(self.gates, self.outs)
            ]
        if how == "esmm":
            ctr, cvr = self.one(x).sigmoid(), self.two(x).sigmoid()
            return torch.cat([ctr, cvr, ctr * cvr], dim=1)
        if how == "exp":
            return torch.exp(self.one(x).clamp(max=4)).squeeze(1), self.many(x).argmax(-1)
        if how == "topk":
            values, places = torch.topk(self.many(x), 2, dim=1)
            return values.sigmoid(), places
        if how == "cosine":
            a, b = self.experts[0](x), self.experts[1](x)
            return F.cosine_similarity(a, b), F.normalize(a, dim=-1)
        if how == "logit":
            return self.one(x).flatten()
        return torch.sigmoid(self.one(x)).squeeze(1)


class Model(nn.Module):
    def __init__(self, seed):
        super().__init__()
        r = random.Random(seed)
        torch.manual_seed(seed)
        self.features = nn.ModuleList(
            r.choice(FEATURES)(r) for _ in range(r.randint(2, 6))
        )
        self.dim = r.choice((4, 8, 16))
        self.project = nn.ModuleList(
            nn.Identity() if f.width == self.dim else nn.Linear(f.width, self.dim)
            for f in self.features
        )
        self.interact = Interaction(r, len(self.features), self.dim)
        width = self.interact(torch.zeros(2, len(self.features), self.dim)).shape[1]
        self.tower, width = tower(r, width)
        self.heads = Heads(r, width)
        for m in self.modules():
            if isinstance(m, nn.BatchNorm1d):
                m.running_mean.uniform_(-1, 1)
                m.running_var.uniform_(0.5, 2)
        self.eval()

    def inputs(self, batch, generator):
        return tuple(t for f in self.features for t in f.draw(batch, generator))

    def scores(self, *args):
        vectors, at = [], 0
        for feature, project, count in zip(self.features, self.project, self.takes):
            vectors.append(project(feature(*args[at : at + count])))
            at += count
        return self.heads(self.tower(self.interact(torch.stack(vectors, dim=1))))


def make(seed):
    """The model, with a forward() whose parameters have names."""
    model = Model(seed)
    model.takes = [len(f.draw(2, torch.Generator())) for f in model.features]
    names = ", ".join(f"input_{i}" for i in range(sum(model.takes)))
    code = {}
    exec(f"def forward(self, {names}):\n    return self.scores({names})", code)
    model.__class__ = type("Drawn", (Model,), {"forward": code["forward"]})
    return model


def case(seed):
    model = make(seed)
    return Case(f"drawn_{seed}", lambda: make(seed), model.inputs, script=False)


CASES = [case(SEED * 1000 + i) for i in range(COUNT)]
