"""Control flow, higher-order operators, functions."""

import torch
from torch import nn

from tests.models.survey.case import dense, ids
from tests.models.survey.language.base import WIDTH, Cases, layers
from tests.models.survey.sequence import DIM, ITEMS, STEPS

case = Cases()


@case()
def cond_on_size(self, x, item):
    h, w = self.both(x, item)
    return self.out(w) if x.shape[1] > 3 else h


@case()
def assertions(self, x, item):
    torch._check(x.shape[0] >= 1)
    assert item.dim() == 2
    h, w = self.both(x, item)
    return self.out(h.sum(1) * w)


@case()
def no_grad_region(self, x, item):
    h, w = self.both(x, item)
    with torch.no_grad():
        a = self.out(w)
    with torch.inference_mode(False):
        b = h.detach().sum(1)
    return a + self.out(b)


@case()
def vmapped(self, x, item):
    h, w = self.both(x, item)
    return torch.vmap(lambda row, u: row @ u)(h, w)


@case()
def checkpointed(self, x, item):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda t: self.out(torch.relu(t)), self.both(x, item)[1], use_reentrant=False)


@case()
def sizes_in_values(self, x, item):
    h, w = self.both(x, item)
    return self.out(h.sum(1) / item.shape[1]) * x.shape[0], w / h.numel() * x.size(0)


@case()
def meshes(self, x, item):
    a, b = torch.meshgrid(torch.arange(STEPS), torch.arange(STEPS), indexing="ij")
    distance = (a - b).abs().float()
    h, w = self.both(x, item)
    return self.out((distance @ h).mean(1) + w), torch.linspace(0, 1, DIM) * w


@case(make=lambda self: setattr(self, "deep", nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(60))))
def deep(self, x, item):
    _, w = self.both(x, item)
    for layer in self.deep:
        w = w + 0.1 * torch.tanh(layer(w))
    return self.out(w)


@case(lambda b, g: (dense(g, b, WIDTH), ids(g, ITEMS, b, STEPS), ids(g, ITEMS, 2 + b // 4, 2)))
def two_dynamic(self, x, item, others):
    h, w = self.both(x, item)
    o = self.items(others).mean(1)
    return w @ o.T, (h @ o.T).amax(1), self.out(w)


@case()
def in_batch_negatives(self, x, item):
    h, w = self.both(x, item)
    return torch.log_softmax(w @ h.sum(1).T, dim=1)


@case()
def over_the_batch(self, x, item):
    h, w = self.both(x, item)
    return self.out(w - w.mean(0)), torch.cumsum(w[:, 0], 0), w.flip(0), w[0] + w


@case()
def cond(self, x, item):
    h, w = self.both(x, item)
    y = torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (w,))
    return self.out(y)


@case()
def while_loop(self, x, item):
    h, w = self.both(x, item)
    from torch._higher_order_ops.while_loop import while_loop as loop

    _, y = loop(lambda i, t: i < 3, lambda i, t: (i + 1, torch.tanh(t)), (torch.tensor(0), w))
    return self.out(y)


@case()
def mapped(self, x, item):
    from torch._higher_order_ops.map import map as each

    h, w = self.both(x, item)
    return self.out(each(lambda t: t.sin() + 1, h).sum(1) + w)


@case()
def scanned(self, x, item):
    from torch._higher_order_ops.scan import scan

    h, w = self.both(x, item)
    last, _ = scan(lambda c, t: (torch.tanh(c + t), c.clone()), w, h.transpose(0, 1))
    return self.out(last)


def branches(self):
    self.low = nn.Linear(DIM, DIM)
    self.high = nn.Sequential(nn.Linear(DIM, 4), nn.ReLU(), nn.Linear(4, DIM))


@case(make=branches)
def cond_of_layers(self, x, item):
    h, w = self.both(x, item)
    y, z = torch.cond(
        (x.mean() > 0.0) & (item[0, 0] > 3),
        lambda a, b: (self.low(a), b.sum(1)),
        lambda a, b: (self.high(a), b.mean(1) * 2.0),
        (w, h),
    )
    return self.out(y), self.out(z)


@case()
def cond_of_sizes(self, x, item):
    h, w = self.both(x, item)
    return self.out(torch.cond(x.shape[0] > 3, lambda t: t * 2, lambda t: t.exp() / t.shape[0], (w,)))


@case()
def cond_in_cond(self, x, item):
    h, w = self.both(x, item)

    def some(t):
        return torch.cond(t.mean() > 0.4, lambda u: u.relu() + 1, lambda u: u.clamp(max=0.2), (t,))

    return self.out(torch.cond(x[0, 0] > 0, some, lambda t: t.flip(1).contiguous(), (w,)))


@case(make=branches)
def while_of_layers(self, x, item):
    from torch._higher_order_ops.while_loop import while_loop as loop

    h, w = self.both(x, item)
    _, y = loop(
        lambda i, t: (i < 4) & (t.norm() < 50.0),
        lambda i, t: (i + 1, torch.tanh(self.low(t)) + h.sum(1)),
        (torch.zeros((), dtype=torch.int64), w),
    )
    return self.out(y)


@case(make=branches)
def map_of_layers(self, x, item):
    from torch._higher_order_ops.map import map as each

    h, w = self.both(x, item)
    y = each(lambda t, u: (self.low(t) * u, t.sum(0)), h, w.mean(0))
    return self.out(y[0].sum(1) + w), y[1]


@case(make=layers(cell=lambda: nn.GRUCell(DIM, DIM)))
def scan_of_cells(self, x, item):
    from torch._higher_order_ops.scan import scan

    h, w = self.both(x, item)

    def step(state, t):
        state = self.cell(t, state)
        return state, self.out(state) * 1.0

    last, scores = scan(step, w, h.transpose(0, 1), reverse=True)
    return self.out(last), scores.squeeze(-1).transpose(0, 1)


@case()
def functional_call(self, x, item):
    h, w = self.both(x, item)
    other = {"weight": self.out.weight * 2, "bias": self.out.bias - 1}
    return torch.func.functional_call(self.out, other, (w,))


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.5 + x.sign()

    @staticmethod
    def backward(ctx, grad):
        return grad


@case()
def autograd_function(self, x, item):
    return self.out(Scaled.apply(self.both(x, item)[1]))


@torch.library.custom_op("survey::doubled", mutates_args=())
def doubled(x: torch.Tensor, times: int = 2) -> torch.Tensor:
    return x * times


@doubled.register_fake
def _(x, times=2):
    return torch.empty_like(x)


@case(refused={"pt2": "survey.doubled", "decomposed": "survey.doubled"})
def custom_operator(self, x, item):
    return self.out(torch.ops.survey.doubled(self.both(x, item)[1], 3))


@case()
def python_loops(self, x, item):
    h, w = self.both(x, item)
    parts = [h[:, i] * (i + 1) for i in range(h.shape[1]) if i % 2 == 0]
    for i, part in enumerate(parts):
        w = w + part / (i + 1)
    table = {"a": w.sum(1), **{str(i): p.mean(1) for i, p in enumerate(parts)}}
    return self.out(w), torch.stack([table[k] for k in sorted(table)], 1)


@case(make=lambda self: setattr(self, "steps", nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(8))))
def thousands_of_nodes(self, x, item):
    h, w = self.both(x, item)
    for i in range(1300):
        if i % 160 == 0:
            w = torch.tanh(self.steps[i // 163](w))
        w = torch.clamp(w * (1.0 + 0.001 * (i % 7)) + 0.01, -3.0, 3.0)
    return self.out(w + h.mean(1))
