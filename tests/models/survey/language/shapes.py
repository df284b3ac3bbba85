"""Views and moves: slices, folds, joins, windows."""

import math

import torch
import torch.nn.functional as F

from tests.models.survey.case import dense, ids
from tests.models.survey.language.base import WIDTH, Cases
from tests.models.survey.sequence import DIM, ITEMS, STEPS

case = Cases()


@case()
def transposes(self, x, item):
    h, w = self.both(x, item)
    a = h.permute(2, 0, 1).swapaxes(0, 1).movedim(1, -1)
    b = h.mT.transpose(-2, -1).flatten(1).unflatten(1, (STEPS, DIM))
    return self.out((a + b).sum(1) + w.t().T)


@case()
def slices(self, x, item):
    h, w = self.both(x, item)
    a = h[:, ::2, 1:-1].sum((1, 2))
    b = h[:, -1, :] * h[..., 0, :] + h[:, None, :, 3].mean(-1)
    c = h.narrow(1, 1, 2).select(1, 0)
    return self.out(b + c + w).squeeze() + a


@case()
def splits(self, x, item):
    h, w = self.both(x, item)
    a, b, c = h.split([2, 1, STEPS - 3], dim=1)
    d, e = w.chunk(2, -1)
    f = torch.tensor_split(h, 3, dim=2)
    g = h.unbind(1)[-1]
    return (
        self.out(a.sum(1) + b.squeeze(1) + c.mean(1) + g),
        torch.hstack([d, e]).sum(1) + f[0].sum((1, 2)) + f[2].prod(2).sum(1),
    )


@case()
def expands(self, x, item):
    h, w = self.both(x, item)
    a = w[:, None].expand(-1, item.shape[1], -1)
    b = w.repeat(1, 2).tile((1, 2)).view(-1, 4, DIM).sum(1)
    c = w.repeat_interleave(3, dim=1)[:, ::3]
    d = torch.broadcast_to(w.unsqueeze(1), h.shape)
    return self.out((a * h - d).sum(1) + b + c)


@case()
def joins(self, x, item):
    h, w = self.both(x, item)
    s = torch.stack([w, w * 2, h.sum(1)], dim=-1).amax(-1)
    v = torch.vstack([w, s]).chunk(2)[1]
    c = torch.column_stack([v[:, 0], w[:, 1], x])
    return self.out(v), torch.dstack([w, s]).sum((1, 2)), c


@case()
def folded_batch(self, x, item):
    h, w = self.both(x, item)
    flat = h.reshape(-1, DIM)
    rows = torch.tanh(self.out(flat)).view(item.size(0), item.size(1))
    turned = h.transpose(0, 1).reshape(-1, DIM).relu().view(STEPS, -1, DIM)
    return rows.sum(1), turned.transpose(0, 1).mean((1, 2)) + w.sum(1)


@case()
def rolls(self, x, item):
    h, w = self.both(x, item)
    a = torch.roll(h, (1, -2), (1, 2)).flip(1, 2)
    b = torch.rot90(h, 1, [1, 2]).sum(1)[:, :1]
    return self.out(a.sum(1) + w) + b, F.pad(w, (1, 2), value=-1.0), F.pad(h, (0, 0, 1, 1)).sum(2)


@case()
def windows(self, x, item):
    h, w = self.both(x, item)
    u = h.unfold(1, 3, 2).mean(-1).sum(1)
    d = torch.diagonal(h[:, :DIM, :DIM], dim1=1, dim2=2).sum(-1)
    e = torch.diag_embed(w).sum(1)
    t = torch.tril(h @ h.mT).sum((1, 2)) + torch.triu(h @ h.mT, 1).amax((1, 2))
    return self.out(u + e), d + t


@case(lambda b, g: (dense(g, b, WIDTH), ids(g, ITEMS, b, 3 + b % 5)))
def steps_dynamic(self, x, item):
    h, w = self.both(x, item)
    score = (h * w[:, None]).sum(-1)
    return self.out((torch.softmax(score, 1).unsqueeze(-1) * h).sum(1)), score


@case(lambda b, g: (dense(g, 1, WIDTH), ids(g, ITEMS, b), ids(g, ITEMS, 2 + b % 7)))
def user_beside_candidates(self, x, item, history):
    user = self.wide(x) + self.items(history).mean(0, keepdim=True)
    return self.out(self.items(item) * user).squeeze(-1)


@case()
def folds(self, x, item):
    h, w = self.both(x, item)
    patches = F.unfold(h[:, None], kernel_size=(2, 2), stride=2)
    back = F.fold(patches, (STEPS, DIM), kernel_size=(2, 2), stride=2)
    return self.out(back[:, 0].sum(1) + w), patches.mean((1, 2))


@case()
def pads(self, x, item):
    h, w = self.both(x, item)
    t = h.transpose(1, 2)
    a = F.pad(t, (1, 1), mode="reflect").sum(-1) + F.pad(t, (2, 0), mode="replicate").sum(-1)
    b = F.pad(t, (1, 2), mode="circular").amax(-1) + F.pad(t, (-1, 0)).sum(-1)
    return self.out(a + b), F.pad(w, (1,) * 2, value=float("-inf"))


@case()
def pairs(self, x, item):
    h, _ = self.both(x, item)
    row, col = torch.triu_indices(STEPS, STEPS, 1)
    i, j = zip(*[(i, j) for i in range(STEPS) for j in range(i)])
    inner = (h[:, row] * h[:, col]).sum(-1)
    outer = h[:, list(i)] * h[:, list(j)]
    return inner, self.out(outer.sum(1)), inner[:, 0]


@case()
def strides(self, x, item):
    h, w = self.both(x, item)
    a = torch.as_strided(torch.arange(9.0), (2, 2), (3, 1))
    b = h.take_along_dim(item[..., None] % DIM, dim=2).squeeze(-1)
    c = torch.cat([w, w.new_ones(w.size(0), 2)], 1).sum(1)
    d = w.unsqueeze(0).unsqueeze(-1).squeeze((0, -1)).view_as(w).reshape(w.shape)
    return self.out(d), b.sum(1) + c + a.sum() * 0.0, w.new_zeros(w.shape) + w.new_tensor([1.0])


@case()
def sizes_in_python(self, x, item):
    h, w = self.both(x, item)
    n, t, d = h.shape
    half = t // 2
    a = h[:, :half].reshape(n, half * d).sum(1) / math.sqrt(d)
    b = h.reshape(n * t, d)[: n * (t - 1)].view(n, -1).sum(1)
    c = torch.arange(n * 2).view(n, 2).float() / max(t, 3)
    return self.out(w) * (n + 1) / (n * 1.0), a + b, c, torch.full((n, 2), t - 1.5)


@case(lambda b, g: (dense(g, b, WIDTH), ids(g, ITEMS, b, 2 * (2 + b % 5))))
def steps_halved(self, x, item):
    h, w = self.both(x, item)
    t = item.shape[1]
    halves = h.view(-1, 2, t // 2, DIM).sum(2)
    first, second = item.split(t // 2, dim=1)
    return self.out(halves.flatten(1)[:, :DIM] + w), (first != second).sum(1)
