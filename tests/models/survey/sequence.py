"""Sequence models, two towers and multi-task models, tiny widths."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.survey.case import Case, bags, dense, ids
from tests.models.survey.interaction import Net, mlp

ITEMS, USERS, STEPS, DIM = 60, 40, 7, 8


class Din(Net):
    """Target attention; padding steps are masked by their length."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM, padding_idx=0)
        self.attention = nn.Sequential(
            nn.Linear(4 * DIM, 16), nn.PReLU(), nn.Linear(16, 1)
        )
        self.deep = mlp(2 * DIM, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, item, history, lengths):
        query = self.items(item)
        keys = self.items(history)
        steps = keys.size(1)
        queries = query.unsqueeze(1).expand(-1, steps, -1)
        pairs = torch.cat([queries, keys, queries - keys, queries * keys], dim=-1)
        scores = self.attention(pairs).transpose(1, 2)
        mask = torch.arange(steps, device=keys.device)[None, :] < lengths[:, None]
        paddings = torch.ones_like(scores) * (-(2**32) + 1)
        scores = torch.where(mask.unsqueeze(1), scores, paddings)
        pooled = torch.matmul(torch.softmax(scores, -1), keys).squeeze(1)
        return torch.sigmoid(self.out(self.deep(torch.cat([pooled, query], -1))))


class Dien(Net):
    """Interest extraction by GRU, evolution by an attentional GRU cell."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM)
        self.extract = nn.GRU(DIM, DIM, batch_first=True)
        self.cell = nn.GRUCell(DIM, DIM)
        self.score = nn.Bilinear(DIM, DIM, 1)
        self.out = nn.Linear(2 * DIM, 1)

    def forward(self, item, history):
        query = self.items(item)
        states, _ = self.extract(self.items(history))
        weights = F.softmax(
            self.score(states, query.unsqueeze(1).repeat(1, self.steps, 1)).squeeze(-1), 1
        )
        h = torch.zeros_like(query)
        for t, state in enumerate(states.unbind(1)):
            a = weights[:, t : t + 1]
            h = (1 - a) * h + a * self.cell(state, h)
        return torch.sigmoid(self.out(torch.cat([h, query], dim=1)).squeeze(-1))


class LstmRanker(Net):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM)
        self.lstm = nn.LSTM(DIM, DIM, 2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(3 * DIM, 1)

    def forward(self, history):
        states, _ = self.lstm(self.items(history))
        last = torch.cat([states[:, -1], states[:, 0]], dim=1)
        return self.out(torch.cat([last, states.amax(dim=1)], 1)).sigmoid()


class Bst(Net):
    """Behaviour sequence transformer with nn.TransformerEncoderLayer."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM)
        self.positions = nn.Embedding(STEPS + 1, DIM)
        self.encoder = nn.TransformerEncoderLayer(
            DIM, 2, 16, dropout=0.1, batch_first=True
        )
        self.deep = mlp((STEPS + 1) * DIM, 16, act=nn.LeakyReLU)
        self.out = nn.Linear(16, 1)

    def forward(self, item, history):
        seq = torch.cat([history, item.unsqueeze(1)], dim=1)
        places = torch.arange(seq.size(1), device=seq.device)
        x = self.items(seq) + self.positions(places)
        x = self.encoder(x, src_key_padding_mask=seq == 0)
        return torch.sigmoid(self.out(self.deep(x.flatten(1))))


class SasRec(Net):
    """Causal attention by scaled_dot_product_attention, pre-norm."""

    def __init__(self, heads=2):
        super().__init__()
        self.heads = heads
        self.items = nn.Embedding(ITEMS, DIM, padding_idx=0)
        self.places = nn.Parameter(torch.randn(STEPS, DIM) * 0.1)
        self.norm_1, self.norm_2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.ffn = nn.Sequential(nn.Linear(DIM, 16), nn.GELU(), nn.Linear(16, DIM))

    def forward(self, history, candidates):
        x = self.items(history) * self.dim**0.5 + self.places
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        q = q.view(b, s, self.heads, d // self.heads).transpose(1, 2)
        k = k.view(b, s, self.heads, d // self.heads).transpose(1, 2)
        v = v.view(b, s, self.heads, d // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(1, 2).reshape(b, s, d)
        x = x + self.ffn(self.norm_2(x))
        x = x.masked_fill((history == 0).unsqueeze(-1), 0.0)
        return (self.items(candidates) * x[:, -1:, :]).sum(-1)


class Caser(Net):
    """Convolutions over the sequence seen as an image."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM)
        self.users = nn.Embedding(USERS, DIM)
        self.vertical = nn.Conv2d(1, 2, (STEPS, 1))
        self.horizontal = nn.ModuleList(nn.Conv2d(1, 3, (i, DIM)) for i in (2, 3))
        self.out = nn.Linear(2 * DIM + 6 + DIM, 1)

    def forward(self, user, history):
        x = self.items(history).unsqueeze(1)
        parts = [self.vertical(x).view(-1, 2 * self.dim)]
        for conv in self.horizontal:
            c = F.relu(conv(x).squeeze(3))
            parts.append(F.max_pool1d(c, c.size(2)).squeeze(2))
        parts.append(self.users(user))
        return self.out(torch.cat(parts, 1)).sigmoid()


class Mmoe(Net):
    def __init__(self, experts=3, tasks=2):
        super().__init__()
        self.users = nn.Embedding(USERS, DIM)
        self.bag = nn.EmbeddingBag(
            ITEMS, DIM, mode="mean", padding_idx=0, include_last_offset=True
        )
        self.experts = nn.ModuleList(mlp(2 * DIM, 12) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(2 * DIM, experts) for _ in range(tasks))
        self.towers = nn.ModuleList(nn.Linear(12, 1) for _ in range(tasks))

    def forward(self, user, item_ids, item_offsets):
        x = torch.cat([self.users(user), self.bag(item_ids, item_offsets)], 1)
        stacked = torch.stack([e(x) for e in self.experts], dim=1)
        scores = []
        for gate, tower in zip(self.gates, self.towers):
            g = gate(x).softmax(dim=1).unsqueeze(1)
            scores.append(torch.sigmoid(tower(g.matmul(stacked).squeeze(1))))
        return scores[0], scores[1]


class Ple(Net):
    """Two levels of shared and own experts; a dict of task outputs."""

    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, DIM)
        self.items = nn.Embedding(ITEMS, DIM)
        def experts(width):
            return nn.ModuleList(
                nn.ModuleList(mlp(width, 8) for _ in range(2)) for _ in range(3)
            )
        self.level_1, self.level_2 = experts(2 * DIM), experts(8)
        self.gates_1 = nn.ModuleList(nn.Linear(2 * DIM, n) for n in (4, 4, 6))
        self.gates_2 = nn.ModuleList(nn.Linear(8, 4) for _ in range(2))
        self.ctr, self.cvr = nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, user, item):
        x = torch.cat([self.users(user), self.items(item)], -1)
        a = [e(x) for e in self.level_1[0]]
        b = [e(x) for e in self.level_1[1]]
        s = [e(x) for e in self.level_1[2]]
        g = [torch.softmax(gate(x), -1).unsqueeze(-1) for gate in self.gates_1]
        xa = (g[0] * torch.stack(a + s, 1)).sum(1)
        xb = (g[1] * torch.stack(b + s, 1)).sum(1)
        xs = (g[2] * torch.stack(a + b + s, 1)).sum(1)
        a = [e(xa) for e in self.level_2[0]]
        b = [e(xb) for e in self.level_2[1]]
        s = [e(xs) for e in self.level_2[2]]
        ga = torch.softmax(self.gates_2[0](xa), -1)
        gb = torch.softmax(self.gates_2[1](xb), -1)
        ya = torch.einsum("be,bed->bd", ga, torch.stack(a + s, 1))
        yb = torch.einsum("be,bed->bd", gb, torch.stack(b + s, 1))
        return {
            "ctr": torch.sigmoid(self.ctr(ya)).flatten(),
            "cvr": torch.sigmoid(self.cvr(yb)).flatten(),
        }


class Esmm(Net):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, DIM)
        self.tags = nn.EmbeddingBag(ITEMS, DIM, mode="max")
        self.ctr, self.cvr = nn.Linear(2 * DIM, 1), nn.Linear(2 * DIM, 1)

    def forward(self, user, tags):
        x = torch.cat([self.users(user), self.tags(tags)], dim=1)
        ctr = torch.sigmoid(self.ctr(x))
        cvr = torch.sigmoid(self.cvr(x))
        return [ctr, ctr * cvr, torch.cat((ctr, cvr), -1)]


class TwoTowerTopK(Net):
    """Retrieval: normalised towers, softmax over a catalogue, top-k."""

    def __init__(self):
        super().__init__()
        self.users = nn.EmbeddingBag(USERS, DIM, mode="sum")
        self.user = mlp(DIM + 3, DIM)
        self.register_buffer("catalogue", torch.randn(25, DIM))

    def forward(self, x, user_ids, user_weights):
        u = self.users(user_ids, per_sample_weights=user_weights)
        u = F.normalize(self.user(torch.cat([u, x], 1)), p=2.0, dim=1)
        items = F.normalize(self.catalogue, dim=1)
        scores = F.softmax(u @ items.t() / 0.1, dim=1)
        best = torch.topk(scores, 4, dim=1)
        return best.values, best.indices


class FloatColumns(Net):
    """One float matrix holds ids and numbers (DeepCTR's input)."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM)
        self.users = nn.Embedding(USERS, DIM)
        self.linear = nn.Linear(3, 1, bias=False)
        self.deep = mlp(2 * DIM + 3, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        user = self.users(x[:, 0:1].long())
        item = self.items(x[:, 1].to(torch.int64)).unsqueeze(1)
        mean = self.items(x[:, 2:6].long())
        mask = (x[:, 2:6] != 0).float().unsqueeze(-1)
        count = mask.sum(1).clamp_min(1.0)
        pooled = (mean * mask).sum(1) / count
        numbers = x[:, 6:9]
        deep = torch.cat([user.squeeze(1), item.flatten(1) + pooled, numbers], -1)
        y = self.linear(numbers) + self.out(self.deep(deep))
        return torch.sigmoid(y)


def din_inputs(batch, generator):
    return (
        ids(generator, ITEMS, batch),
        ids(generator, ITEMS, batch, STEPS),
        torch.randint(1, STEPS + 1, (batch,), generator=generator),
    )


def item_history(batch, generator):
    return ids(generator, ITEMS, batch), ids(generator, ITEMS, batch, STEPS)


def mmoe_inputs(batch, generator):
    return ids(generator, USERS, batch), *bags(generator, ITEMS, batch, last=True)


def float_columns(batch, generator):
    x = torch.empty(batch, 9)
    x[:, 0] = ids(generator, USERS, batch)
    x[:, 1:6] = ids(generator, ITEMS, batch, 5)
    x[:, 6:] = dense(generator, batch, 3)
    return (x,)


CASES = [
    Case("din", Din, din_inputs),
    Case("dien", Dien, item_history),
    Case("lstm", LstmRanker, lambda b, g: (ids(g, ITEMS, b, STEPS),)),
    Case("bst", Bst, item_history),
    Case(
        "sasrec",
        SasRec,
        lambda b, g: (ids(g, ITEMS, b, STEPS), ids(g, ITEMS, b, 6)),
    ),
    Case(
        "caser",
        Caser,
        lambda b, g: (ids(g, USERS, b), ids(g, ITEMS, b, STEPS)),
    ),
    Case("mmoe", Mmoe, mmoe_inputs),
    Case("ple_dict", Ple, lambda b, g: (ids(g, USERS, b), ids(g, ITEMS, b))),
    Case(
        "esmm_list",
        Esmm,
        lambda b, g: (ids(g, USERS, b), ids(g, ITEMS, b, 4)),
    ),
    Case(
        "two_tower_topk",
        TwoTowerTopK,
        lambda b, g: (dense(g, b, 3), ids(g, USERS, b, 4), dense(g, b, 4)),
    ),
    Case("float_columns", FloatColumns, float_columns),
]
