"""Arguments and results."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.utils import _pytree as pytree

from tests.models.survey.case import dense, ids
from tests.models.survey.language.base import WIDTH, Cases, features
from tests.models.survey.sequence import DIM, ITEMS, STEPS

case = Cases()


@dataclass
class Scores:
    click: torch.Tensor
    buy: torch.Tensor


torch.export.register_dataclass(Scores, serialized_type_name="survey.Scores")


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


pytree._register_namedtuple(Pair, serialized_type_name="survey.Pair")


@case()
def result_dataclass(self, x, item):
    h, w = self.both(x, item)
    return Scores(self.out(w).sigmoid(), self.out(h.sum(1)).tanh())


@case(trace=False)
def result_nested(self, x, item):
    h, w = self.both(x, item)
    y = self.out(w)
    return {"a": y, "b": [y * 2, (y - 1, {"c": h.sum(1)})]}, None, (y.exp(),)


@case()
def result_dict(self, x, item):
    h, w = self.both(x, item)
    return {"zeta": self.out(w), "alpha": self.out(h.sum(1)), "mid": x * 2}


@case()
def result_twice(self, x, item):
    y = self.out(self.both(x, item)[1])
    return y, y, x, item


@case(
    lambda b, g: (
        {"x": dense(g, b, WIDTH), "lists": [ids(g, ITEMS, b, 2), ids(g, ITEMS, b)]},
        (dense(g, b, WIDTH), None),
    ),
    trace=False,
    script=False,
)
def argument_tree(self, features, rest):
    h = self.items(features["lists"][0]).sum(1) * self.items(features["lists"][1])
    return self.out(h + self.wide(features["x"] + rest[0]))


@case(lambda b, g: (Scores(dense(g, b, WIDTH), dense(g, b, WIDTH)), ids(g, ITEMS, b)))
def argument_dataclass(self, scores, item):
    return self.out(self.items(item) + self.wide(scores.click - scores.buy))


@case(lambda b, g: (dense(g, b, WIDTH), torch.tensor(0.7), ids(g, ITEMS, b)))
def argument_scalar_tensor(self, x, temperature, item):
    return self.out(self.items(item) + self.wide(x)) / temperature


@case(lambda b, g: (dense(g, b, WIDTH), ids(g, ITEMS, b), dense(g, 3, DIM)))
def argument_fixed(self, x, item, queries):
    return (self.items(item) + self.wide(x)) @ queries.T


@case(lambda b, g: (dense(g, b, WIDTH), ids(g, ITEMS, b, STEPS), dense(g, b, 3)))
def argument_unused(self, x, item, unused):
    return self.out(self.both(x, item)[1])


@case(lambda b, g: (dense(g, b, WIDTH), ids(g, ITEMS, b), dense(g, b, DIM)), keywords=("item", "bias"))
def argument_keywords(self, x, *, item, bias):
    return self.out(self.items(item) + self.wide(x) + bias)


@case(lambda b, g: (dense(g, b, WIDTH), ids(g, ITEMS, b), None, 3, 0.5, True, "mean"))
def argument_numbers(self, x, item, bias=None, k: int = 2, scale: float = 1.0, flag: bool = False, mode: str = "sum"):
    h = self.items(item) * scale
    if bias is not None:
        h = h + bias
    h = h + self.wide(x) if flag else h
    return self.out(h), (h[:, :k].mean(1) if mode == "mean" else h.sum(1))


@case(lambda b, g: (dense(g, b, WIDTH), ids(g, ITEMS, b), dense(g, b, DIM)))
def argument_optional(self, x, item, bias=None, other=None):
    h = self.items(item) + self.wide(x)
    h = h if bias is None else h * bias
    return self.out(h if other is None else h + other)


@case(lambda b, g: (Pair(dense(g, b, WIDTH), ids(g, ITEMS, b)), {"a": {"b": (dense(g, b, DIM), [dense(g, b, DIM)])}}))
def argument_nested(self, pair, extra):
    left, right = extra["a"]["b"]
    return Pair(self.out(self.items(pair.second) + self.wide(pair.first)), left * right[0])


@case(lambda b, g: ({"user id": ids(g, ITEMS, b), "x.y": dense(g, b, WIDTH), "7": ids(g, ITEMS, b)},))
def argument_odd_keys(self, features):
    return self.out(self.items(features["user id"]) + self.wide(features["x.y"]) * self.items(features["7"]))


@case(lambda b, g: (dense(g, b, WIDTH), {"x": dense(g, b, WIDTH), "item": ids(g, ITEMS, b)}, ids(g, ITEMS, b)))
def argument_same_names(self, x, features, features_x):
    return self.out(self.items(features["item"]) + self.wide(x - features["x"])) + self.items(features_x).sum(1, keepdim=True)


@case(lambda b, g: ({f"f{i}": ids(g, ITEMS, b) for i in range(40)}, {f"d{i}": dense(g, b) for i in range(20)}))
def argument_many(self, sparse, numbers):
    h = torch.stack([self.items(v) for v in sparse.values()], 1)
    x = torch.stack(list(numbers.values()), 1)
    return self.out(h.sum(1) + self.wide(x[:, :6])), x.mean(1)


@case()
def result_of_arguments(self, x, item):
    _, w = self.both(x, item)
    return self.out(w), x[:, :2], x.view(-1, 2, 3), item.T, item.detach(), x.clone(), w.t()


@case()
def result_not_tensors(self, x, item):
    _, w = self.both(x, item)
    return {"score": self.out(w), "width": 7, "name": "model", "none": None, "scale": 0.5, "ok": True}


@case()
def result_sizes(self, x, item):
    _, w = self.both(x, item)
    return self.out(w), x.shape[0], torch.tensor(x.shape[0] * 2)


@case(lambda b, g: (dense(g, b, WIDTH), torch.tensor(3), torch.tensor(0.25), torch.tensor(True)))
def argument_scalars(self, x, k, scale, flag):
    h = self.wide(x) * scale + self.items(k)
    return self.out(torch.where(flag, h, -h)), h.amax() * scale


@case(lambda b, g: (dense(g, b, WIDTH), ids(g, ITEMS, b, 2 + b % 5), ids(g, ITEMS, b, 3 + b % 7), dense(g, 2 + b % 5, DIM)))
def argument_sizes(self, x, a, b, queries):
    h = self.items(a).mean(1) + self.items(b).amax(1) + self.wide(x)
    return h @ queries.T, self.out(h), torch.cat([a, b], 1)


@case(lambda b, g: (dense(g, b, WIDTH), dense(g, b, 4, 0), ids(g, ITEMS, b, 1)))
def argument_empty(self, x, nothing, item):
    return self.out(self.wide(x) + self.items(item.squeeze(1))) + nothing.sum((1, 2))[:, None]


@case(lambda b, g: (dense(g, b, WIDTH).T.contiguous().T, dense(g, b, 2 * WIDTH)[:, ::2], ids(g, ITEMS, b)))
def argument_strided(self, x, y, item):
    return self.out(self.wide(x.reshape(-1, WIDTH)) + self.wide(y) + self.items(item))
