"""Models that are not papers but spellings: operators and result structures
that CTR code in PyTorch uses beside the published architectures."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.survey.case import Case, bags, dense, ids
from tests.models.survey.interaction import Net, mlp
from tests.models.survey.sequence import DIM, ITEMS, STEPS, USERS


class BagModes(Net):
    """Every kind of bag: sum, mean, max, weighted, padded, sliced offsets."""

    def __init__(self):
        super().__init__()
        self.sum = nn.EmbeddingBag(ITEMS, DIM, mode="sum", padding_idx=3)
        self.mean = nn.EmbeddingBag(ITEMS, DIM, mode="mean", include_last_offset=True)
        self.max = nn.EmbeddingBag(ITEMS, DIM, mode="max")
        self.out = nn.Linear(4 * DIM, 1)

    def forward(self, ids_0, offsets_0, weights, ids_1, offsets_1, ids_2, offsets_2):
        parts = [
            self.sum(ids_0, offsets_0, per_sample_weights=weights),
            self.mean(ids_1, offsets_1),
            self.max(ids_2, offsets_2),
            F.embedding_bag(
                ids_1, self.sum.weight, offsets_1[:-1], mode="sum", padding_idx=0
            ),
        ]
        return torch.sigmoid(self.out(torch.cat(parts, 1)))


def bag_inputs(batch, generator):
    ids_0, offsets_0 = bags(generator, ITEMS, batch)
    weights = torch.rand(ids_0.shape, generator=generator)
    ids_1, offsets_1 = bags(generator, ITEMS, batch, last=True)
    return ids_0, offsets_0, weights, ids_1, offsets_1, *bags(generator, ITEMS, batch)


class InPlace(Net):
    """Writes through views, accumulates, clamps and fills in place."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM)
        self.layer = nn.Linear(DIM, DIM)
        self.out = nn.Linear(DIM, 1)

    def forward(self, x, item):
        v = self.items(item)
        h = self.layer(v)
        h.relu_().mul_(0.5)
        h[:, 0] = x[:, 0]
        h[:, 1:3] += x[:, 1:3]
        h.masked_fill_(h > 2.0, 2.0)
        acc = torch.zeros_like(h)
        for i in range(3):
            acc += h * (i + 1)
        acc.clamp_(-3.0, 3.0).sub_(v)
        return torch.sigmoid_(self.out(acc)).squeeze_(1)


class Shapes(Net):
    """Spellings of shape: expand, tile, repeat, chunk, unbind, roll, pad."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM)
        self.users = nn.Embedding(USERS, DIM)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, DIM))

    def forward(self, user, history):
        u = self.users(user)
        h = self.items(history)
        b, t, d = h.shape
        tiled = u.unsqueeze(1).tile((1, t, 1))
        expanded = u[:, None].expand_as(h)
        repeated = u.repeat(1, t).reshape(b, t, d)
        first, second = torch.chunk(h * self.scale, 2, dim=-1)
        shifted = torch.roll(second, shifts=1, dims=1)
        padded = F.pad(first, (0, d - first.size(-1)), value=0.25)
        joined = torch.cat([first, shifted], dim=2) + padded
        total = torch.zeros(b, d, device=h.device, dtype=h.dtype)
        for row in joined.unbind(dim=1):
            total = total + row
        flipped = torch.flip(h, dims=[1]).transpose(1, 2).contiguous()
        gram = torch.einsum("btd,bde->bte", tiled + expanded - repeated, flipped)
        upper = gram[:, torch.triu(torch.ones(t, t)) > 0]
        return total.mean(-1), upper.amax(dim=-1), h.view(b, -1).std(dim=1)


class Numbers(Net):
    """Buckets, one-hot, where, logic, integer arithmetic, half precision."""

    def __init__(self):
        super().__init__()
        self.register_buffer("edges", torch.tensor([-1.0, -0.3, 0.2, 0.9]))
        self.buckets = nn.Embedding(5, DIM)
        self.small = nn.Embedding(ITEMS, DIM).half()
        self.out = nn.Linear(DIM + 5 + 3, 1)

    def forward(self, x, item):
        bucket = torch.bucketize(x, self.edges)
        v = self.buckets(bucket).sum(1) + self.small(item // 2).float()
        hot = F.one_hot(bucket[:, 0], num_classes=5).to(v.dtype)
        known = (item > 0) & (item != 7)
        v = torch.where(known.unsqueeze(-1), v, torch.zeros_like(v))
        logs = torch.sign(x) * torch.log1p(x.abs())
        logs = torch.nan_to_num(logs / (x - x.detach() + 1.0))
        z = torch.cat([v, hot, logs.clamp(-2, 2)[:, :3]], dim=-1)
        y = self.out(F.dropout(F.elu(z), 0.5, self.training))
        return torch.clamp(y.sigmoid(), 1e-6, 1 - 1e-6), known, bucket.argmax(1)


class Normed(Net):
    """Normalisations and gates: RMS, group, layer, batch 2-d, GLU, SiLU."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM, max_norm=None)
        self.batch = nn.BatchNorm1d(STEPS)
        self.group = nn.GroupNorm(2, DIM)
        self.rms = nn.RMSNorm(DIM)
        self.glu = nn.Linear(DIM, 2 * DIM)
        self.out = nn.Sequential(nn.Linear(DIM, 4), nn.SiLU(), nn.Linear(4, 1))

    def forward(self, history):
        h = self.batch(self.items(history))
        h = self.rms(h + F.glu(self.glu(h), dim=-1))
        h = self.group(h.transpose(1, 2)).mean(dim=2)
        h = F.layer_norm(h, (h.size(-1),))
        return F.softplus(self.out(h)).log().flatten()


class Structures(Net):
    """Nested arguments and results: lists and tuples in tuples."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM)
        self.out = nn.Linear(2 * DIM, 2)

    def forward(self, x: list[torch.Tensor], pair: tuple[torch.Tensor, torch.Tensor]):
        v = self.items(pair[0]) * self.items(pair[1])
        parts = []
        for item in x:
            parts.append(item.mean(1, keepdim=True) * v)
        z = torch.cat(parts, 1)
        click, buy = self.out(z).sigmoid().unbind(1)
        return (click, click * buy), z.norm(p=2, dim=1)


def structures(batch, generator):
    lists = [dense(generator, batch, 3), dense(generator, batch, 4)]
    return lists, (ids(generator, ITEMS, batch), ids(generator, ITEMS, batch))


class Gather(Net):
    """Sorted, gathered and scattered rows; ids by index and index_select."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(ITEMS, DIM))
        self.users = nn.Parameter(torch.randn(USERS, DIM))

    def forward(self, user, items):
        v = self.table[items]
        u = torch.index_select(self.users, 0, user)
        scores = torch.bmm(v, u.unsqueeze(-1)).squeeze(-1)
        ordered, order = torch.sort(scores, dim=1, descending=True, stable=True)
        best = torch.gather(v, 1, order[:, :2].unsqueeze(-1).expand(-1, -1, self.dim))
        counts = torch.zeros_like(scores).scatter_add(1, order, ordered.exp())
        rank = torch.cumsum(F.softmax(ordered, dim=-1), dim=1)
        return best.flatten(1), counts, rank


class CrossRows(Net):
    """Softmax over the batch: right at every size, yet rows are not alone."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM)
        self.out = nn.Linear(DIM, 1)

    def forward(self, item):
        v = self.items(item)
        return torch.softmax(self.out(v - v.mean(0, keepdim=True)).squeeze(-1), dim=0)


class Hyper(Net):
    """Weights made from features: batched matrices, bilinear and cosine."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM)
        self.make = nn.Linear(DIM, DIM * 4)
        self.bilinear = nn.Bilinear(DIM, DIM, 3)
        self.deep = mlp(DIM, 6, 1, act=nn.Tanh)

    def forward(self, a, b):
        x, y = self.items(a), self.items(b)
        w = self.make(y).view(-1, self.dim, 4)
        z = torch.baddbmm(torch.zeros(1, 1, 4), x.unsqueeze(1), w).squeeze(1)
        c = F.cosine_similarity(x, y, dim=1, eps=1e-6)
        d = torch.cdist(x.unsqueeze(1), y.unsqueeze(1)).flatten(1)
        e = self.bilinear(x, y).logsumexp(dim=1, keepdim=True)
        return self.deep(x) + z.prod(1, keepdim=True) + c[:, None] + d + e


CASES = [
    Case("bag_modes", BagModes, bag_inputs),
    Case("in_place", InPlace, lambda b, g: (dense(g, b, 4), ids(g, ITEMS, b))),
    Case("shapes", Shapes, lambda b, g: (ids(g, USERS, b), ids(g, ITEMS, b, STEPS))),
    Case("numbers", Numbers, lambda b, g: (dense(g, b, 4), ids(g, ITEMS, b))),
    Case("normed", Normed, lambda b, g: (ids(g, ITEMS, b, STEPS),)),
    Case("structures", Structures, structures),
    Case("gather", Gather, lambda b, g: (ids(g, USERS, b), ids(g, ITEMS, b, 5))),
    Case("cross_rows", CrossRows, lambda b, g: (ids(g, ITEMS, b),)),
    Case("hyper", Hyper, lambda b, g: (ids(g, ITEMS, b), ids(g, ITEMS, b))),
]
