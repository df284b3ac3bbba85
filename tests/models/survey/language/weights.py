"""Parameters, buffers and constants."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.survey.language.base import Cases, layers
from tests.models.survey.sequence import DIM, ITEMS, STEPS

case = Cases()


@case(make=lambda self: setattr(self, "tied", nn.Linear(DIM, ITEMS, bias=False)))
def tied_weights(self, x, item):
    h, w = self.both(x, item)
    return F.linear(h.sum(1) + w, self.items.weight), F.linear(w, self.items.weight[:4])


def strided(self):
    self.weight_t = nn.Parameter(torch.randn(DIM, 3).t())
    self.register_buffer("every_other", torch.randn(2 * DIM)[::2])
    self.register_buffer("spread", torch.randn(1, DIM).expand(3, DIM))
    self.register_buffer("nothing", torch.zeros(0, DIM))


@case(make=strided)
def strided_weights(self, x, item):
    _, w = self.both(x, item)
    joined = torch.cat([w[:, None], self.nothing.expand(w.size(0), 0, DIM)], 1)
    return F.linear(w * self.every_other, self.weight_t) + F.linear(joined[:, 0], self.spread)


@case(make=layers(lin=lambda: nn.utils.parametrizations.weight_norm(nn.Linear(DIM, 3))))
def weight_norm(self, x, item):
    return self.lin(self.both(x, item)[1])


@case()
def constants_inside(self, x, item):
    h, w = self.both(x, item)
    scale = torch.tensor([0.5] * DIM)
    steps = torch.tensor([0, 2])
    return self.out(h[:, steps].sum(1) * scale + torch.eye(DIM)[1] + w), torch.ones(x.size(0), 2)


def kept_in_containers(self):
    self.parts = nn.ParameterList([nn.Parameter(torch.randn(DIM)) for _ in range(3)])
    self.named = nn.ParameterDict({"a": nn.Parameter(torch.tensor(0.3)), "b": nn.Parameter(torch.randn(1, DIM))})
    self.register_buffer("passing", torch.rand(DIM), persistent=False)
    self.register_buffer("absent", None)
    self.register_parameter("missing", None)
    self.plain = torch.linspace(0, 1, DIM)  # an attribute, no buffer


@case(make=kept_in_containers)
def containers_of_weights(self, x, item):
    _, w = self.both(x, item)
    for part in self.parts:
        w = w * part
    return self.out(w * self.named["a"] + self.named["b"] * self.passing + self.plain)


@case(make=lambda self: setattr(self, "out2", self.out))
def module_used_twice(self, x, item):
    h, w = self.both(x, item)
    return self.out(w) + self.out2(h.sum(1)), self.wide(torch.sin(x))


@case(make=layers(prior=lambda: torch.rand(3), bias=lambda: nn.Parameter(torch.rand(1))))
def constants_returned(self, x, item):
    _, w = self.both(x, item)
    return self.out(w) + self.bias, self.prior, torch.tensor([1.0, 2.0]), self.bias


@case(make=layers(big=lambda: torch.rand(1, 1, DIM).expand(4, 2, DIM), column=lambda: torch.rand(ITEMS, 1).expand(ITEMS, DIM), scalar=lambda: torch.tensor(2.0)))
def buffers_expanded(self, x, item):
    h, w = self.both(x, item)
    return self.out(w) * self.scalar, (w[:, None, None] * self.big).sum((1, 2, 3)), F.embedding(item, self.column).sum(1)


@case(make=lambda self: nn.utils.parametrize.register_parametrization(self.wide, "weight", nn.Softplus()))
def weights_parametrised(self, x, item):
    return self.out(self.both(x, item)[1])


@case(make=layers(mask=lambda: torch.ones(STEPS, STEPS).tril().bool(), ids=lambda: torch.arange(DIM).roll(1)))
def buffers_of_ids(self, x, item):
    h, w = self.both(x, item)
    s = (h @ h.mT).masked_fill(~self.mask, float("-inf")).softmax(-1)
    return self.out((s @ h).sum(1)[:, self.ids] + w)
