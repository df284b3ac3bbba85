"""Products, convolutions and pools."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.survey.language.base import Cases, layers
from tests.models.survey.sequence import DIM, STEPS

case = Cases()


@case()
def einsums(self, x, item):
    h, w = self.both(x, item)
    a = torch.einsum("btd,bd->bt", h, w)
    b = torch.einsum("bt,btd->bd", a, h)
    c = torch.einsum("...d,...e->...", w, w)
    d = torch.einsum("bd,ed->be", w, self.wide.weight.T)
    return self.out(b), c, d


@case()
def products(self, x, item):
    h, w = self.both(x, item)
    a = torch.tensordot(h, self.wide.weight, dims=([2], [0]))
    b = torch.matmul(h, w.unsqueeze(-1)).squeeze(-1)
    c = torch.bmm(h.transpose(1, 2), h).flatten(1).norm(dim=1)
    d = torch.inner(w, self.out.weight)
    e = torch.addmm(self.out.bias, w, self.out.weight.t())
    f = torch.linalg.vecdot(w, w)
    return a.sum((1, 2)), b, c, d + e, f


@case(make=layers(bilinear=lambda: nn.Bilinear(DIM, DIM, 2)))
def bilinears(self, x, item):
    h, w = self.both(x, item)
    return self.bilinear(h[:, 0], w), torch.cdist(h, w[:, None]).squeeze(-1)


@case(
    make=layers(
        conv=lambda: nn.Conv1d(DIM, 4, 3, padding=1),
        wide_conv=lambda: nn.Conv1d(DIM, DIM, 2, dilation=2, groups=2),
        plane=lambda: nn.Conv2d(1, 2, (2, 3), stride=(1, 2)),
        back=lambda: nn.ConvTranspose1d(4, 2, 2),
    )
)
def convolutions(self, x, item):
    h, w = self.both(x, item)
    a = self.conv(h.transpose(1, 2))
    b = self.wide_conv(h.mT).amax(-1)
    c = self.plane(h.unsqueeze(1)).flatten(1)
    return self.out(b + w), self.back(a).mean((1, 2)), c.sum(1)


@case()
def pools(self, x, item):
    h, w = self.both(x, item)
    t = h.transpose(1, 2)
    a = F.max_pool1d(t, 2).sum(-1) + F.avg_pool1d(t, 3, 1).mean(-1)
    b = F.adaptive_avg_pool1d(t, 2).flatten(1)
    c = F.adaptive_max_pool1d(t, 1).squeeze(-1)
    return self.out(a + c), b, F.interpolate(t, scale_factor=2.0).sum((1, 2)), w


@case()
def einsums_of_many(self, x, item):
    h, w = self.both(x, item)
    q = h.view(-1, STEPS, 2, DIM // 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, q)
    mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), q)
    triple = torch.einsum("bi,bj,bk->bijk", w[:, :2], w[:, 2:4], w[:, 4:6])
    gram = torch.einsum("bii->b", h @ h.mT) + torch.einsum("bijk->b", triple)
    maps = self.wide.weight[:, :2].T
    form = torch.einsum("bi,oi,bj,oj->bo", w, maps, w, self.out.weight.expand(2, -1))
    return self.out(mixed.flatten(2).sum(1)), gram, form


@case(
    make=layers(
        conv=lambda: nn.Conv2d(1, 3, 3, padding="same"),
        norm=lambda: nn.BatchNorm2d(3),
        depth=lambda: nn.Conv2d(3, 3, 2, groups=3, bias=False),
        up=lambda: nn.ConvTranspose2d(3, 1, 2, stride=2, output_padding=1),
    )
)
def images(self, x, item):
    h, w = self.both(x, item)
    z = F.relu(self.norm(self.conv(h[:, None])))
    z = F.max_pool2d(z, 2, ceil_mode=True)
    up = F.interpolate(z, size=(4, 5), mode="bilinear", align_corners=False)
    big = F.interpolate(z, scale_factor=2, mode="nearest")
    return (
        self.out(w) + self.depth(z).mean((1, 2, 3))[:, None],
        F.adaptive_avg_pool2d(up, 1).flatten(1),
        F.avg_pool2d(big, (2, 1), padding=(1, 0)).sum((1, 2, 3)) + self.up(z).sum((1, 2, 3)),
        F.pixel_shuffle(torch.cat([z, z, z, z], 1), 2).mean((1, 2, 3)),
    )


@case()
def linear_algebra(self, x, item):
    h, w = self.both(x, item)
    square = h[:, :4, :4] @ h[:, :4, :4].mT + 4 * torch.eye(4)
    a = torch.linalg.norm(h, dim=(1, 2)) + torch.linalg.det(square).log1p()
    b = torch.linalg.solve(square, w[:, :4, None]).squeeze(-1)
    c = torch.linalg.cross(w[:, :3], w[:, 3:6], dim=1) + torch.outer(w[:, 0], torch.ones(3))
    d = w @ self.wide.weight @ self.wide.weight.T
    e = torch.linalg.inv(square).diagonal(dim1=1, dim2=2).sum(-1) + torch.linalg.cholesky(square).sum((1, 2))
    return self.out(d), a, b, c, e + torch.trace(self.wide.weight[:4, :4])


@case(make=layers(cross=lambda: nn.Parameter(torch.randn(STEPS, STEPS, DIM))))
def field_weighted(self, x, item):
    h, w = self.both(x, item)
    pairs = h[:, :, None] * h[:, None] * self.cross
    total = h.sum(1).square() - h.square().sum(1)
    return self.out(w) + 0.5 * total.sum(1, keepdim=True), pairs.sum((1, 2, 3))
