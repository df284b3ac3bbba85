"""Recurrent rankers at the sizes that their papers use.

Histories of 20 steps, vectors of 32 to 64, states of 32 to 128. PyTorch's exports of
these are right from batch 2 on: prepare with --batches 2,16,64,256.
"""

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.survey.case import Case, ids

ITEMS = 20_000
STEPS = 20


def mlp(width, *layers):
    steps = []
    for wide in layers:
        steps += [nn.Linear(width, wide), nn.ReLU()]
        width = wide
    return nn.Sequential(*steps, nn.Linear(width, 1))


class Gru4Rec(nn.Module):
    """A session's next item: the last state against a candidate."""

    def __init__(self, layers=1, width=64, state=100):
        super().__init__()
        self.items = nn.Embedding(ITEMS, width)
        self.gru = nn.GRU(width, state, layers, batch_first=True)
        self.dense = nn.Linear(state, width)

    def forward(self, item, history):
        states, _ = self.gru(self.items(history))
        return (self.dense(states[:, -1]) * self.items(item)).sum(-1)


class Narm(nn.Module):
    """Global and local interest: the last state, and all by attention to it."""

    def __init__(self, width=50, state=100):
        super().__init__()
        self.items = nn.Embedding(ITEMS, width)
        self.gru = nn.GRU(width, state, batch_first=True)
        self.a_1 = nn.Linear(state, state, bias=False)
        self.a_2 = nn.Linear(state, state, bias=False)
        self.v = nn.Linear(state, 1, bias=False)
        self.b = nn.Linear(2 * state, width, bias=False)

    def forward(self, item, history):
        states, last = self.gru(self.items(history))
        last = last[-1]
        q = torch.sigmoid(self.a_1(states) + self.a_2(last).unsqueeze(1))
        local = (self.v(q) * states).sum(1)
        return (self.b(torch.cat([local, last], 1)) * self.items(item)).sum(-1)


class AttentionCell(nn.Module):
    """AUGRU: attention scales the update gate."""

    def __init__(self, width, state):
        super().__init__()
        self.ih = nn.Linear(width, 3 * state)
        self.hh = nn.Linear(state, 3 * state)

    def forward(self, x, h, attention):
        i_r, i_z, i_n = self.ih(x).chunk(3, 1)
        h_r, h_z, h_n = self.hh(h).chunk(3, 1)
        r = torch.sigmoid(i_r + h_r)
        z = torch.sigmoid(i_z + h_z) * attention
        n = torch.tanh(i_n + r * h_n)
        return (1 - z) * h + z * n


class Dien(nn.Module):
    """Interests by a GRU, their evolution towards the candidate by AUGRU."""

    def __init__(self, width=32):
        super().__init__()
        self.items = nn.Embedding(ITEMS, width)
        self.extract = nn.GRU(width, width, batch_first=True)
        self.attention = nn.Linear(width, width, bias=False)
        self.evolve = AttentionCell(width, width)
        self.deep = mlp(3 * width, 200, 80)

    def forward(self, item, history):
        query = self.items(item)
        keys = self.items(history)
        states, _ = self.extract(keys)
        weights = F.softmax((self.attention(states) * query.unsqueeze(1)).sum(-1), 1)
        h = torch.zeros_like(query)
        for t in range(STEPS):
            h = self.evolve(states[:, t], h, weights[:, t : t + 1])
        return torch.sigmoid(self.deep(torch.cat([h, query, keys.mean(1)], 1)))


class Cells(nn.Module):
    """nn.GRUCell over the steps, gated by attention outside (AGRU)."""

    def __init__(self, width=32):
        super().__init__()
        self.items = nn.Embedding(ITEMS, width)
        self.cell = nn.GRUCell(width, width)
        self.deep = mlp(2 * width, 80)

    def forward(self, item, history):
        query = self.items(item)
        keys = self.items(history)
        weights = F.softmax((keys * query.unsqueeze(1)).sum(-1), 1)
        h = torch.zeros_like(query)
        for t in range(STEPS):
            a = weights[:, t : t + 1]
            h = (1 - a) * h + a * self.cell(keys[:, t], h)
        return torch.sigmoid(self.deep(torch.cat([h, query], 1)))


class Lstm(nn.Module):
    """Two layers, a score from the last state and the mean."""

    def __init__(self, width=64, state=128, both=False):
        super().__init__()
        self.items = nn.Embedding(ITEMS, width)
        self.lstm = nn.LSTM(width, state, 2, batch_first=True, bidirectional=both)
        self.deep = mlp(state * (2 if both else 1) + width, 64)

    def forward(self, item, history):
        states, _ = self.lstm(self.items(history))
        return torch.sigmoid(self.deep(torch.cat([states[:, -1], self.items(item)], 1)))


class Rnn(nn.Module):
    def __init__(self, width=32, state=64):
        super().__init__()
        self.items = nn.Embedding(ITEMS, width)
        self.rnn = nn.RNN(width, state, batch_first=True)
        self.deep = mlp(state + width, 64)

    def forward(self, item, history):
        _, last = self.rnn(self.items(history))
        return torch.sigmoid(self.deep(torch.cat([last[0], self.items(item)], 1)))


def request(batch, generator):
    return ids(generator, ITEMS, batch), ids(generator, ITEMS, batch, STEPS)


CASES = [
    Case(name, build, request, script=False)
    for name, build in [
        ("gru4rec", Gru4Rec),
        ("gru4rec_2", lambda: Gru4Rec(2, 64, 64)),
        ("narm", Narm),
        ("dien", Dien),
        ("gru_cells", Cells),
        ("lstm", Lstm),
        ("bilstm", lambda: Lstm(32, 32, True)),
        ("rnn", Rnn),
    ]
]
