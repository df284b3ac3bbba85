"""Feature-interaction models: published CTR architectures, tiny widths."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.survey.case import Case, bags, dense, ids

ROWS = (50, 30, 20, 40, 11, 7)
FIELDS = len(ROWS)
DIM = 8
DENSE = 5


def mlp(*widths, norm=False, dropout=0.0, act=nn.ReLU):
    layers = []
    for i, o in itertools.pairwise(widths):
        layers.append(nn.Linear(i, o))
        if norm:
            layers.append(nn.BatchNorm1d(o))
        layers.append(act())
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers)


class Net(nn.Module):
    # Sizes that torch.jit.script may read in forward().
    __constants__ = ("dim", "fields_count", "steps")
    dim, fields_count, steps = DIM, FIELDS, 7


class Fields(Net):
    """One merged table; every field's ids are shifted to its part of it."""

    def __init__(self, dim=DIM):
        super().__init__()
        self.table = nn.Embedding(sum(ROWS), dim)
        starts = [0, *itertools.accumulate(ROWS)][:-1]
        self.register_buffer("starts", torch.tensor(starts))

    def forward(self, x):
        return self.table(x + self.starts)


class Dlrm(Net):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(r, DIM, mode="sum") for r in ROWS[:3]
        )
        self.bottom = mlp(DENSE, 16, DIM)
        self.top = mlp(DIM + 6, 16)
        self.out = nn.Linear(16, 1)
        rows, columns = torch.tril_indices(4, 4, -1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)

    def forward(self, x, ids_0, offsets_0, ids_1, offsets_1, ids_2, offsets_2):
        x = self.bottom(x)
        pairs = [(ids_0, offsets_0), (ids_1, offsets_1), (ids_2, offsets_2)]
        vectors = [x]
        for bag, (i, o) in zip(self.bags, pairs):
            vectors.append(bag(i, o))
        t = torch.stack(vectors, dim=1)
        z = torch.bmm(t, t.transpose(1, 2))[:, self.rows, self.columns]
        return torch.sigmoid(self.out(self.top(torch.cat([x, z], 1)))).squeeze(1)


class DlrmFeatureMajor(Dlrm):
    """The inputs of Meta's dlrm_s_pytorch.py: a row of offsets for each table."""

    def forward(self, x, offsets, ids):
        pairs = [each for k, i in enumerate(ids) for each in (i, offsets[k])]
        return super().forward(x, *pairs)


def feature_major_inputs(batch, generator):
    pairs = [bags(generator, rows, batch) for rows in ROWS[:3]]
    ids, offsets = zip(*pairs)
    return dense(generator, batch, DENSE), torch.stack(offsets), list(ids)


def dlrm_inputs(batch, generator):
    args = [dense(generator, batch, DENSE)]
    for rows in ROWS[:3]:
        args += bags(generator, rows, batch)
    return tuple(args)


class DcnV1(Net):
    def __init__(self):
        super().__init__()
        self.fields = Fields()
        width = FIELDS * DIM + DENSE
        self.weights = nn.ParameterList(torch.randn(width, 1) * 0.1 for _ in range(3))
        self.biases = nn.ParameterList(torch.randn(width, 1) * 0.1 for _ in range(3))
        self.deep = mlp(width, 16, 8, norm=True, dropout=0.2)
        self.out = nn.Linear(width + 8, 1)

    def forward(self, x, sparse):
        x = torch.cat([self.fields(sparse).flatten(1), x], dim=-1)
        x_0 = x.unsqueeze(2)
        x_l = x_0
        for w, b in zip(self.weights, self.biases):
            x_l = torch.matmul(x_0, torch.tensordot(x_l, w, dims=([1], [0]))) + b + x_l
        cross = torch.squeeze(x_l, dim=2)
        return self.out(torch.cat([cross, self.deep(x)], 1)).sigmoid().view(-1)


class DcnV2Mix(Net):
    """Low-rank cross layers, several experts of them."""

    def __init__(self, experts=3, rank=4):
        super().__init__()
        self.fields = Fields()
        width = FIELDS * DIM + DENSE
        self.u = nn.Parameter(torch.randn(2, experts, width, rank) * 0.1)
        self.v = nn.Parameter(torch.randn(2, experts, width, rank) * 0.1)
        self.c = nn.Parameter(torch.randn(2, experts, rank, rank) * 0.1)
        self.bias = nn.Parameter(torch.zeros(2, width))
        self.gate = nn.Linear(width, experts, bias=False)
        self.out = nn.Linear(width, 1)

    def forward(self, x, sparse):
        x_0 = torch.cat([self.fields(sparse).reshape(x.size(0), -1), x], -1)
        x_l = x_0
        for i in range(2):
            v = torch.tanh(torch.einsum("bd,edr->ber", x_l, self.v[i]))
            v = torch.tanh(torch.einsum("ber,ers->bes", v, self.c[i]))
            u = torch.einsum("ber,edr->bed", v, self.u[i]) + self.bias[i]
            g = F.softmax(self.gate(x_l), dim=-1)
            x_l = x_0 * torch.einsum("bed,be->bd", u, g) + x_l
        return torch.sigmoid(self.out(x_l))


class DeepFm(Net):
    def __init__(self):
        super().__init__()
        self.fields = Fields()
        self.linear = Fields(1)
        self.bias = nn.Parameter(torch.zeros(1))
        self.deep = mlp(FIELDS * DIM, 16, 8, norm=True, dropout=0.5)
        self.out = nn.Linear(8, 1)

    def forward(self, sparse):
        v = self.fields(sparse)
        square_of_sum = v.sum(dim=1).pow(2)
        sum_of_square = (v**2).sum(dim=1)
        fm = 0.5 * (square_of_sum - sum_of_square).sum(1, keepdim=True)
        y = self.linear(sparse).sum(1) + self.bias + fm
        y += self.out(self.deep(v.view(-1, self.fields_count * self.dim)))
        return torch.sigmoid(y.squeeze(1))


class XDeepFm(Net):
    """CIN: outer products by einsum, compressed by conv1d, split in halves."""

    def __init__(self, layers=(8, 6)):
        super().__init__()
        self.fields = Fields()
        self.convs = nn.ModuleList()
        before, total = FIELDS, 0
        for i, width in enumerate(layers):
            self.convs.append(nn.Conv1d(before * FIELDS, width, 1))
            last = i == len(layers) - 1
            total += width if last else width // 2
            before = width // 2
        self.out = nn.Linear(total, 1)

    def forward(self, sparse):
        x = self.fields(sparse)
        h = x
        kept = []
        for i, conv in enumerate(self.convs):
            z = torch.einsum("bhd,bmd->bhmd", h, x)
            z = z.view(x.shape[0], h.shape[1] * x.shape[1], self.dim)
            z = F.relu(conv(z))
            if i != len(self.convs) - 1:
                h, keep = torch.split(z, z.shape[1] // 2, dim=1)
            else:
                keep = z
            kept.append(keep)
        return torch.sigmoid(self.out(torch.sum(torch.cat(kept, 1), 2)))[:, 0]


class AutoInt(Net):
    def __init__(self, heads=2):
        super().__init__()
        self.fields = Fields()
        self.attention = nn.ModuleList(
            nn.MultiheadAttention(DIM, heads, dropout=0.1, batch_first=True)
            for _ in range(2)
        )
        self.residual = nn.Linear(DIM, DIM)
        self.out = nn.Linear(FIELDS * DIM, 1)

    def forward(self, sparse):
        x = self.fields(sparse)
        y = x
        for layer in self.attention:
            y, _ = layer(y, y, y)
        y = F.relu(y + self.residual(x)).contiguous().view(-1, self.fields_count * self.dim)
        return self.out(y).sigmoid()


class InteractingLayers(Net):
    """AutoInt with heads made by split and stack (DeepCTR's way)."""

    def __init__(self, heads=2):
        super().__init__()
        self.heads = heads
        self.fields = Fields()
        self.query = nn.Parameter(torch.randn(DIM, DIM) * 0.3)
        self.key = nn.Parameter(torch.randn(DIM, DIM) * 0.3)
        self.value = nn.Parameter(torch.randn(DIM, DIM) * 0.3)
        self.out = nn.Linear(FIELDS * DIM, 1, bias=False)

    def forward(self, sparse):
        x = self.fields(sparse)
        q = torch.tensordot(x, self.query, dims=([-1], [0]))
        k = torch.tensordot(x, self.key, dims=([-1], [0]))
        v = torch.tensordot(x, self.value, dims=([-1], [0]))
        size = self.dim // self.heads
        q = torch.stack(torch.split(q, size, dim=2))
        k = torch.stack(torch.split(k, size, dim=2))
        v = torch.stack(torch.split(v, size, dim=2))
        scores = torch.einsum("bnik,bnjk->bnij", q, k) / size**0.5
        r = torch.matmul(F.softmax(scores, dim=-1), v)
        r = torch.cat(torch.split(r, 1), dim=-1).squeeze(0)
        return torch.sigmoid(self.out(torch.flatten(F.relu(r), start_dim=1)))


class FiBiNet(Net):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(r, DIM) for r in ROWS)
        self.squeeze = nn.Sequential(
            nn.Linear(FIELDS, 2), nn.ReLU(), nn.Linear(2, FIELDS), nn.ReLU()
        )
        pairs = list(itertools.combinations(range(FIELDS), 2))
        self.pairs = pairs
        self.bilinear = nn.ModuleList(
            nn.Linear(DIM, DIM, bias=False) for _ in pairs
        )
        self.deep = mlp(2 * len(pairs) * DIM, 16)
        self.out = nn.Linear(16, 1)

    def cross(self, x):
        parts = torch.split(x, 1, dim=1)
        return torch.cat(
            [
                layer(parts[i]) * parts[j]
                for (i, j), layer in zip(self.pairs, self.bilinear)
            ],
            dim=1,
        )

    def forward(self, sparse):
        x = torch.cat(
            [table(sparse[:, i : i + 1]) for i, table in enumerate(self.tables)], 1
        )
        weights = self.squeeze(torch.mean(x, dim=-1))
        senet = torch.mul(x, torch.unsqueeze(weights, dim=2))
        both = torch.cat((self.cross(x), self.cross(senet)), dim=1)
        return torch.sigmoid(self.out(self.deep(both.flatten(start_dim=1))))


class Pnn(Net):
    def __init__(self):
        super().__init__()
        self.fields = Fields()
        rows, columns = zip(*itertools.combinations(range(FIELDS), 2))
        self.rows, self.columns = list(rows), list(columns)
        self.kernel = nn.Parameter(torch.randn(DIM, len(rows), DIM) * 0.3)
        self.deep = mlp(FIELDS * DIM + 2 * len(rows), 16, act=nn.Tanh)
        self.out = nn.Linear(16, 1)

    def forward(self, sparse):
        x = self.fields(sparse)
        p, q = x[:, self.rows], x[:, self.columns]
        inner = torch.sum(p * q, dim=2)
        kp = torch.sum(p.unsqueeze(1) * self.kernel, dim=-1).permute(0, 2, 1)
        outer = torch.sum(kp * q, -1)
        z = torch.cat([x.flatten(1), inner, outer], dim=1)
        return self.out(self.deep(z)).sigmoid()


class Nfm(Net):
    def __init__(self):
        super().__init__()
        self.fields = Fields()
        self.linear = Fields(1)
        self.norm = nn.BatchNorm1d(DIM)
        self.deep = mlp(DIM, 16, dropout=0.3)
        self.out = nn.Linear(16, 1)

    def forward(self, sparse):
        x = self.fields(sparse)
        bi = 0.5 * (torch.pow(x.sum(1), 2) - torch.pow(x, 2).sum(1))
        y = self.out(self.deep(self.norm(bi)))
        y.add_(self.linear(sparse).sum(dim=1))
        return y.sigmoid_()


class Afm(Net):
    def __init__(self):
        super().__init__()
        self.fields = Fields()
        self.register_buffer("pairs", torch.combinations(torch.arange(FIELDS)).t())
        self.attention = nn.Linear(DIM, 4)
        self.projection = nn.Linear(4, 1, bias=False)
        self.out = nn.Linear(DIM, 1)

    def forward(self, sparse):
        x = self.fields(sparse)
        p = x.index_select(1, self.pairs[0])
        q = x.index_select(1, self.pairs[1])
        inner = p * q
        scores = F.softmax(self.projection(F.relu(self.attention(inner))), dim=1)
        pooled = torch.sum(scores * inner, dim=1)
        return torch.sigmoid(self.out(F.dropout(pooled, p=0.2, training=self.training)))


class WideDeepHashed(Net):
    """Raw 64-bit features hashed into the tables inside the model."""

    def __init__(self, buckets=97):
        super().__init__()
        self.buckets = buckets
        self.wide = nn.EmbeddingBag(buckets, 1, mode="sum")
        self.deep_table = nn.Embedding(buckets, DIM)
        self.deep = mlp(FIELDS * DIM + DENSE, 16, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x, raw):
        mixed = torch.bitwise_xor(raw, raw >> 7) * 2654435761
        hashed = torch.remainder(mixed, self.buckets)
        deep = self.deep_table(hashed).flatten(1)
        x = torch.log1p(x.clamp(min=0.0))
        return torch.sigmoid(
            self.wide(hashed) + self.out(self.deep(torch.cat([x, deep], dim=1)))
        )


class FinalMlp(Net):
    def __init__(self, heads=2):
        super().__init__()
        self.heads = heads
        self.fields = Fields()
        width = FIELDS * DIM
        self.gate_1 = nn.Sequential(nn.Linear(DIM, width), nn.Sigmoid())
        self.gate_2 = nn.Sequential(nn.Linear(DIM, width), nn.Sigmoid())
        self.left = mlp(width, 16, 8, norm=True)
        self.right = mlp(width, 12, 8)
        self.w_x = nn.Linear(8, 1)
        self.w_y = nn.Linear(8, 1)
        self.w_xy = nn.Parameter(torch.randn(heads * 4 * 4, 1) * 0.3)

    def forward(self, sparse):
        v = self.fields(sparse)
        flat = v.flatten(1)
        x = self.left(flat * self.gate_1(v[:, 0]) * 2)
        y = self.right(flat * self.gate_2(v[:, -1]) * 2)
        out = self.w_x(x) + self.w_y(y)
        hx = x.view(-1, self.heads, 4)
        hy = y.view(-1, self.heads, 4)
        xy = torch.matmul(
            torch.matmul(hx.unsqueeze(2), self.w_xy.view(self.heads, 4, -1)).view(
                -1, self.heads, 1, 4
            ),
            hy.unsqueeze(-1),
        ).squeeze(-1)
        return torch.sigmoid((out + xy.sum(dim=1)[:, :1]).squeeze(-1))


class MaskNet(Net):
    def __init__(self, blocks=2):
        super().__init__()
        self.fields = Fields()
        width = FIELDS * DIM
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(FIELDS))
        self.masks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, width))
            for _ in range(blocks)
        )
        self.hidden = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 8), nn.LayerNorm(8), nn.ReLU())
            for _ in range(blocks)
        )
        self.out = nn.Linear(8 * blocks, 1)

    def forward(self, sparse):
        x = self.fields(sparse)
        flat = x.flatten(start_dim=1)
        normed = torch.cat(
            [norm(x[:, i, :]) for i, norm in enumerate(self.norms)], dim=1
        )
        parts = [h(m(flat) * normed) for m, h in zip(self.masks, self.hidden)]
        return self.out(torch.hstack(parts)).sigmoid()


class Fwfm(Net):
    """Field-weighted FM over a Python list of look-ups."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict(
            {f"c{i}": nn.Embedding(r, DIM, padding_idx=0) for i, r in enumerate(ROWS)}
        )
        self.weight = nn.Parameter(torch.randn(FIELDS, FIELDS))

    def forward(self, features: dict[str, torch.Tensor]):
        vectors = []
        for name, table in self.tables.items():
            vectors.append(table(features[name]))
        x = torch.stack(vectors, 1)
        gram = torch.matmul(x, x.permute(0, 2, 1))
        upper = torch.triu(self.weight, diagonal=1)
        return {"score": torch.sigmoid((gram * upper).sum((1, 2))), "gram": gram}


def two(batch, generator):
    return dense(generator, batch, DENSE), sparse(batch, generator)[0]


def sparse(batch, generator):
    return (torch.stack([ids(generator, r, batch) for r in ROWS], 1),)


def raw_ids(batch, generator):
    return (
        dense(generator, batch, DENSE),
        torch.randint(2**40, (batch, FIELDS), generator=generator),
    )


def features(batch, generator):
    return ({f"c{i}": ids(generator, r, batch) for i, r in enumerate(ROWS)},)


CASES = [
    Case("dlrm", Dlrm, dlrm_inputs, script=False),
    Case("dlrm_feature_major", DlrmFeatureMajor, feature_major_inputs, script=False),
    Case("dcn_v1", DcnV1, two),
    Case("dcn_v2_mix", DcnV2Mix, two),
    Case("deepfm", DeepFm, sparse),
    Case("xdeepfm", XDeepFm, sparse),
    Case("autoint_mha", AutoInt, sparse),
    Case("autoint_split", InteractingLayers, sparse),
    Case("fibinet", FiBiNet, sparse, script=False),
    Case("pnn", Pnn, sparse),
    Case("nfm", Nfm, sparse),
    Case("afm", Afm, sparse),
    Case("wide_deep_hashed", WideDeepHashed, raw_ids),
    Case("finalmlp", FinalMlp, sparse),
    Case("masknet", MaskNet, sparse),
    Case("fwfm_dict", Fwfm, features),
]
