"""Orders, masks, scatters, scans and counts."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.survey.language.base import WIDTH, Cases, layers
from tests.models.survey.sequence import DIM, ITEMS, STEPS

case = Cases()


@case()
def orders(self, x, item):
    h, w = self.both(x, item)
    v, i = torch.topk(w, 3, dim=1)
    s, j = torch.sort(item, dim=1, stable=True)
    k = torch.argsort(w, descending=True, stable=True)
    m = w.median(1).values + w.kthvalue(2).values
    picked = torch.gather(h, 1, j[..., None].expand(-1, -1, DIM))[:, 0]
    return self.out(picked), v.sum(1) + m, i, k, s


@case()
def masks(self, x, item):
    h, w = self.both(x, item)
    a = torch.where(item[..., None] > 3, h, torch.zeros((), dtype=h.dtype))
    b = h.masked_fill((item < 2).unsqueeze(-1), 0.0).sum(1)
    c = torch.where(w > 0.5, w, 1.0)
    d = torch.any(item == 3, dim=1) | torch.all(item > 0, dim=1)
    return self.out(a.mean(1) + b + c), d, torch.isin(item, torch.tensor([1, 4, 6])).sum(1)


@case()
def scatters(self, x, item):
    h, w = self.both(x, item)
    bins = torch.zeros(x.size(0), 4).scatter_add_(1, item % 4, h[..., 0])
    most = torch.zeros_like(bins).scatter_reduce(1, item % 4, h[..., 1], "amax")
    put = torch.zeros_like(w).scatter(1, item[:, :1] % DIM, 1.0)
    add = w.index_add(1, torch.tensor([0, 2]), w[:, 3:5])
    copy = w.index_copy(1, torch.tensor([1]), w[:, :1]).index_fill(1, torch.tensor([4]), 0.5)
    return bins, most, self.out(put + add + copy)


@case()
def writes(self, x, item):
    h, w = self.both(x, item)
    w = w.clone()
    w[:, 1] = 0.5
    w[:, 2:4] += x[:, :2]
    w[w > 1.0] = 1.0
    w[:, torch.tensor([5, 6])] = x[:, 2:4]
    h = h.clone()
    h[:, 0].mul_(2.0)
    h[:, :, ::2] -= 1
    w.add_(h.sum(1)).div_(3).tanh_()
    return self.out(w), w.sum(1)


@case()
def last_valid(self, x, item):
    h, w = self.both(x, item)
    lengths = (item != 0).sum(1).clamp(min=1)
    last = h[torch.arange(item.size(0)), lengths - 1]
    steps = torch.arange(STEPS)[None] < lengths[:, None]
    return self.out(last), (h * steps[..., None]).sum(1) / lengths[:, None]


@case(make=layers(edges=lambda: torch.tensor([-1.0, 0.0, 0.7]), rows=lambda: nn.Embedding(4, DIM)))
def buckets(self, x, item):
    b = torch.bucketize(x, self.edges, right=True)
    s = torch.searchsorted(self.edges, x)
    return self.out(self.rows(b).sum(1)), s, F.one_hot(b, 4).sum(1)


@case()
def scans(self, x, item):
    h, w = self.both(x, item)
    a = torch.cumsum(w, 1) + torch.cumprod(w, 1) + torch.logcumsumexp(w, 1)
    b, i = torch.cummax(h, dim=1)
    return self.out(a + b[:, -1]), i.sum((1, 2)), torch.diff(w, dim=1)


@case()
def reductions(self, x, item):
    h, w = self.both(x, item)
    a = h.std(1) + h.var((1, 2), keepdim=True).squeeze(1) + h.amin(1) + h.logsumexp(1)
    b = torch.aminmax(w, dim=1).max + w.argmax(1) + w.norm(p=1, dim=1) + w.nansum(1)
    c = F.cosine_similarity(h, w[:, None], dim=-1) + F.pairwise_distance(h, w[:, None])
    return self.out(a), b, c, (item > 2).sum(1), torch.count_nonzero(item, dim=1)


@case()
def counts(self, x, item):
    h, w = self.both(x, item)
    per_row = torch.zeros(item.size(0), ITEMS).scatter_add(1, item, torch.ones_like(item, dtype=torch.float32))
    over_all = torch.bincount(item.flatten(), minlength=ITEMS)[:ITEMS].float()
    spread = torch.histc(w, bins=4, min=0.0, max=2.0)
    return self.out(w), per_row.amax(1), over_all, spread


@case(make=layers(edges=lambda: torch.sort(torch.rand(WIDTH, 5), dim=1).values, steps=lambda: torch.tensor([2, 9, 30])))
def searches(self, x, item):
    _, w = self.both(x, item)
    a = torch.searchsorted(self.edges, x.T.contiguous(), side="right").T
    b = torch.bucketize(item, self.steps, out_int32=True)
    return self.out(w), a, b, F.one_hot(b.long(), 4).float().mean(1)


@case()
def index_puts(self, x, item):
    h, w = self.both(x, item)
    rows = torch.arange(item.size(0))
    a = w.index_put((rows, item[:, 0] % DIM), torch.tensor(0.5))
    b = w.index_put((rows[:, None], item % DIM), h[..., 0], accumulate=True)
    c = torch.zeros(item.size(0), DIM).scatter_(1, item % DIM, 1.0, reduce="add")
    d = h.index_select(1, torch.tensor([2, 0])).scatter(2, item[:, :2, None] % DIM, 3.0)
    e = torch.index_reduce(w, 1, torch.tensor([0, 0, 3]), w[:, 2:5], "amin")
    return self.out(a + b), c + e, d.sum((1, 2)), torch.select_scatter(w, x[:, 0], 1, 2), torch.slice_scatter(w, x[:, :2], 1, 0, 2)


@case()
def orders_more(self, x, item):
    h, w = self.both(x, item)
    a = torch.quantile(w, torch.tensor([0.25, 0.5]), dim=1) + w.nanmean(1)
    b = torch.mode(item, 1).values + torch.nanmedian(w, 1).indices
    c = torch.msort(w.T).T + w.sort(dim=1, descending=True)[0] + w.clamp(torch.tensor(0.1), torch.tensor(0.9))
    d = torch.argwhere(torch.eye(3) > 0).sum() + torch.tril_indices(3, 3).sum()
    return self.out(c), a.T, b, torch.trapezoid(w, dim=1), d


@case()
def scans_of_ids(self, x, item):
    h, w = self.both(x, item)
    seen = torch.cumsum((item != 0).int(), dim=1)
    last = (seen * (item != 0)).argmax(1)
    rank = (-w).argsort(1).argsort(1)
    decayed = torch.cumsum(h * 0.5 ** torch.arange(STEPS)[:, None], 1)[torch.arange(item.size(0)), last]
    return self.out(decayed), seen, rank, torch.cummin(w, 1).values, torch.flip(torch.cumsum(torch.flip(w, [1]), 1), [1])
