"""Sizes that the data decide."""

import torch

from tests.models.survey.case import dense, ids
from tests.models.survey.language.base import WIDTH, Cases
from tests.models.survey.sequence import DIM, ITEMS, STEPS

case = Cases()


@case()
def data_masked_sum(self, x, item):
    h, w = self.both(x, item)
    chosen = w[w.sum(1) > 0.3]
    return self.out(w), chosen.sum() + torch.nonzero(item).sum()


@case()
def data_unique(self, x, item):
    h, w = self.both(x, item)
    values, inverse = torch.unique(item, return_inverse=True)
    return self.out(self.items(values)[inverse].sum(1) + w)


@case(lambda b, g: (lambda n: (ids(g, ITEMS, int(n.sum())), n, dense(g, b, WIDTH)))(torch.randint(2, 5, (b,), generator=g)))
def data_lengths(self, values, lengths, x):
    segments = torch.repeat_interleave(torch.arange(lengths.size(0)), lengths, output_size=values.size(0))
    pooled = torch.zeros(lengths.size(0), DIM).index_add(0, segments, self.items(values))
    return self.out(pooled + self.wide(x))


@case()
def data_chosen_rows(self, x, item):
    h, w = self.both(x, item)
    rows = torch.nonzero(item[:, 0] > 3).squeeze(1)
    filled = torch.zeros_like(w).index_copy(0, rows, w[rows] * 2)
    return self.out(filled), torch.masked_select(item, item > 5).sum(), torch.where(item[:, 0] > 3)[0].shape[0] + w[:, 0]


@case()
def data_scattered_rows(self, x, item):
    _, w = self.both(x, item)
    known = w[:, 0] > 0.2
    return self.out(w.masked_scatter(known[:, None].expand_as(w), w.flip(1))), known


@case(lambda b, g: (dense(g, b, WIDTH), ids(g, ITEMS, b, STEPS), torch.tensor(2)))
def data_number(self, x, item, k):
    h, w = self.both(x, item)
    n = k.item()
    torch._check(n >= 1)
    torch._check(n <= STEPS)
    return self.out(h[:, :n].sum(1) + w * n)


@case(lambda b, g: (lambda n: (ids(g, ITEMS, int(n.sum())), n, dense(g, b, WIDTH)))(torch.randint(1, 5, (b,), generator=g)))
def data_jagged_to_padded(self, values, lengths, x):
    ends = torch.cumsum(lengths, 0)
    place = torch.arange(4)[None] + (ends - lengths)[:, None]
    there = torch.arange(4)[None] < lengths[:, None]
    padded = torch.where(there, values[place.clamp(max=values.size(0) - 1)], 0)
    return self.out((self.items(padded) * there[..., None]).sum(1) + self.wide(x)), padded
