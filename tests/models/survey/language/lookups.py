"""Look-ups: tables, bags, and where their ids come from."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.survey.case import bags, dense, ids
from tests.models.survey.language.base import WIDTH, Cases, layers
from tests.models.survey.sequence import DIM, ITEMS, STEPS

case = Cases()


@case(make=layers(pad=lambda: nn.Embedding(ITEMS, DIM, padding_idx=0)))
def embedding_padding(self, x, item):
    h = self.pad(item)
    mask = (item != 0).unsqueeze(-1)
    return self.out((h * mask).sum(1) / mask.sum(1).clamp(min=1)).squeeze(-1)


@case(make=layers(pos=lambda: nn.Embedding(STEPS, DIM)))
def embedding_position(self, x, item):
    h, w = self.both(x, item)
    positions = torch.arange(item.size(1), device=item.device)
    return self.out((h + self.pos(positions)).mean(1) + w)


@case()
def embedding_functional(self, x, item):
    h = F.embedding(item % 5, self.items.weight[:5])
    return self.out(h.sum(1))


@case(make=layers(table=lambda: nn.Parameter(torch.randn(ITEMS, DIM))))
def embedding_by_index(self, x, item):
    return self.out(self.table[item].amax(1)), self.table[item[:, 0], 1:3]


@case(make=layers(table=lambda: nn.Embedding(ITEMS, DIM, max_norm=1.0)))
def embedding_max_norm(self, x, item):
    return self.out(self.table(item).sum(1))


@case(make=layers(bag=lambda: nn.EmbeddingBag(ITEMS, DIM, mode="mean")))
def bag_of_matrix(self, x, item):
    return self.out(self.bag(item) + self.wide(x))


@case(
    lambda b, g: (*bags(g, ITEMS, b), dense(g, b, WIDTH)),
    layers(bag=lambda: nn.EmbeddingBag(ITEMS, DIM, mode="max", padding_idx=2)),
)
def bag_max_padding(self, values, offsets, x):
    return self.out(self.bag(values, offsets) + self.wide(x))


@case(
    lambda b, g: (*bags(g, ITEMS, b, last=True), dense(g, b, WIDTH)),
    layers(bag=lambda: nn.EmbeddingBag(ITEMS, DIM, include_last_offset=True)),
)
def bag_last_offset(self, values, offsets, x):
    lengths = offsets[1:] - offsets[:-1]
    return self.out(self.bag(values, offsets) + self.wide(x)), lengths


@case(lambda b, g: (ids(g, ITEMS, b, STEPS).int(), dense(g, b, WIDTH)))
def ids_int32(self, item, x):
    return self.out(self.items(item).sum(1) + self.wide(x))


@case(lambda b, g: (torch.cat([ids(g, ITEMS, b, 3).float(), dense(g, b, WIDTH)], 1),))
def ids_in_floats(self, x):
    a = self.items(x[:, 0].long())
    b = self.items(x[:, 1:3].to(torch.int64)).sum(1)
    return self.out(a * b + self.wide(x[:, 3:]))


@case(make=layers(hashed=lambda: nn.Embedding(17, DIM)))
def ids_hashed(self, x, item):
    mixed = (item * 2654435761 + 12345) % 17
    other = torch.bitwise_xor(item, item >> 3) & 15
    return self.out(self.hashed(mixed).sum(1) + self.hashed(other).mean(1))


def pretrained(self):
    table = torch.randn(ITEMS, DIM)
    table[3] = 0.0
    self.known = nn.Embedding.from_pretrained(table, freeze=True, padding_idx=3)
    self.bag = nn.EmbeddingBag.from_pretrained(table * 2, mode="sum")


@case(make=pretrained)
def embedding_from_pretrained(self, x, item):
    return self.out(self.known(item).sum(1) + self.bag(item) + self.wide(x))


@case(make=layers(head=lambda: nn.Parameter(torch.randn(ITEMS, 2 * DIM))))
def embedding_of_slice(self, x, item):
    a = F.embedding(item, self.head[:, :DIM])
    b = F.embedding(item % 7, self.head[3:10, DIM:])
    return self.out((a * b).sum(1) + self.wide(x))


@case(
    lambda b, g: (ids(g, ITEMS, b, STEPS), dense(g, b, STEPS), dense(g, b, WIDTH)),
    layers(bag=lambda: nn.EmbeddingBag(ITEMS, DIM, mode="sum", padding_idx=0)),
)
def bag_of_matrix_weighted(self, item, weight, x):
    return self.out(self.bag(item, per_sample_weights=weight.sigmoid()) + self.wide(x))


@case(make=layers(high=lambda: nn.Embedding(ITEMS // 7 + 1, DIM), low=lambda: nn.Embedding(7, DIM)))
def quotient_remainder(self, x, item):
    high = self.high(torch.div(item, 7, rounding_mode="floor"))
    return self.out((high * self.low(torch.remainder(item, 7))).sum(1) + self.wide(x))


@case(make=lambda self: setattr(self, "tables", nn.ModuleList(nn.Embedding(ITEMS, DIM, sparse=True) for _ in range(STEPS))))
def table_per_column(self, x, item):
    columns = [table(item[:, i]) for i, table in enumerate(self.tables)]
    return self.out(torch.stack(columns, 1).sum(1) + self.wide(x))


@case(make=lambda self: setattr(self, "named", nn.ModuleDict({k: nn.Embedding(ITEMS, DIM) for k in ("user", "items_", "c")})))
def tables_by_name(self, x, item):
    found = {k: table(item).sum(1) for k, table in self.named.items()}
    return self.out(found["user"] * found["c"] + found["items_"] + self.wide(x))


@case(lambda b, g: (*bags(g, ITEMS, b), *bags(g, ITEMS, b), dense(g, b, WIDTH)), layers(bag=lambda: nn.EmbeddingBag(ITEMS, DIM)))
def bags_share_table(self, a, a_offsets, b, b_offsets, x):
    return self.out(self.bag(a, a_offsets) - self.bag(b, b_offsets) + self.wide(x))


@case(lambda b, g: (ids(g, ITEMS, b, STEPS).to(torch.uint8), *(t.int() for t in bags(g, ITEMS, b)), dense(g, b, WIDTH)), layers(bag=lambda: nn.EmbeddingBag(ITEMS, DIM)))
def ids_narrow(self, item, values, offsets, x):
    return self.out(self.items(item.long()).sum(1) + self.bag(values, offsets) + self.wide(x))


@case()
def one_hot_product(self, x, item):
    hot = F.one_hot(item, ITEMS).to(self.items.weight.dtype)
    return self.out((hot @ self.items.weight).mean(1) + self.wide(x))
