"""Patterns of click models' code bases, each in the spelling found there."""

import itertools
from typing import Dict, List, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.survey.case import bags, dense, ids
from tests.models.survey.language.base import WIDTH, Cases, layers
from tests.models.survey.sequence import DIM, ITEMS, STEPS

case = Cases()


@case(make=layers(norm=lambda: nn.BatchNorm1d(DIM, eps=1e-8, affine=False), alpha=lambda: nn.Parameter(torch.rand(DIM)), slope=lambda: nn.PReLU()))
def dice(self, x, item):
    h, w = self.both(x, item)
    p = torch.sigmoid(self.norm(w))
    return self.out(self.alpha * (1.0 - p) * w + p * w), self.slope(h - 0.2).sum((1, 2))


@case(make=layers(week=lambda: nn.Embedding(7, DIM), hour=lambda: nn.Embedding(24, DIM)))
def ids_of_timestamps(self, x, item):
    _, w = self.both(x, item)
    seconds = item[:, 0] * 7919 + 1_700_000_000
    day = self.week(torch.floor_divide(seconds, 86400) % 7)
    hour = self.hour((seconds % 86400) // 3600)
    age = torch.exp(-(1_800_000_000 - seconds).float() / 3.0e7)
    return self.out(w + day * hour * age[:, None]), torch.fmod(-item, 5), -item % 5, -item // 3


@case(make=layers(planes=lambda: torch.randn(DIM, 6), hashed=lambda: nn.EmbeddingBag(128, DIM, mode="mean")))
def ids_by_random_planes(self, x, item):
    h, w = self.both(x, item)
    bits = ((h @ self.planes) > 0).to(torch.int64)
    code = (bits * (2 ** torch.arange(6))).sum(-1)
    crossed = ((code << 1) ^ (code >> 2)) & 127
    return self.out(self.hashed(crossed) + w), code


@case(make=layers(table=lambda: nn.Parameter(torch.randn(ITEMS, DIM))))
def bag_functional(self, x, item):
    weight = torch.sigmoid(x[:, :1]).expand(item.shape).contiguous()
    a = F.embedding_bag(item, self.table, mode="sum", per_sample_weights=weight)
    b = F.embedding_bag(item, self.table, mode="max")
    return self.out(a + b + F.embedding_bag(item[:, 1:], self.table, padding_idx=0))


@case()
def keeps_dims(self, x, item):
    h, w = self.both(x, item)
    most, place = h.max(dim=-2, keepdim=True)
    a = h.mean(-1, True) + h.amin(-1, keepdim=True) + h.std(-1, keepdim=True, unbiased=False)
    b = (item > 3).any(-1, keepdim=True) | (item == 0).all(-1, True)
    c = h.norm(dim=-1, keepdim=True) + h.logsumexp(-1, keepdim=True) + h.prod(-1, keepdim=True)
    return self.out(most.squeeze(-2) + w), place.squeeze(1), a + c, b, w.argmin(-1, keepdim=True)


@case()
def parts_of_parts(self, x, item):
    h, w = self.both(x, item)
    first, second, third = torch.chunk(w, 3, dim=-1)  # uneven
    fields = torch.unbind(h, -2)
    folded = h.unflatten(-1, (-1, 2)).movedim(-1, 0).flatten(-2)
    return self.out(fields[0] - fields[-1] + w), first.sum(-1) * third.sum(-1), second, folded.amax((0, -1))


@case()
def picked_by_mask(self, x, item):
    h, w = self.both(x, item)
    rows, columns = torch.where(item > 3)
    kept = torch.zeros_like(h)
    kept[rows, columns] = torch.tanh(h[rows, columns])
    mask = w > 0.3
    spread = torch.zeros_like(w)
    spread[mask] = w[mask] * 2
    return self.out(kept.sum(1) + spread), torch.masked_select(w, mask).sum()


@case(make=layers(pos=lambda: nn.Embedding(STEPS + 1, DIM, padding_idx=0)))
def positions_of_mask(self, x, item):
    h, w = self.both(x, item)
    mask = item.ne(0).int()
    positions = (torch.cumsum(mask, dim=1).type_as(mask) * mask).long()
    return self.out((h + self.pos(positions)).sum(1) + w)


@case(make=layers(gru=lambda: nn.GRU(DIM, DIM, num_layers=2, batch_first=True), start=lambda: nn.Parameter(torch.randn(2, 1, DIM))))
def gru_learned_start(self, x, item):
    h, w = self.both(x, item)
    states, last = self.gru(h, self.start.expand(-1, h.size(0), -1).contiguous())
    return self.out(states.mean(1) + last[-1] + w)


@case(make=layers(lstm=lambda: nn.LSTM(DIM, 5, num_layers=2, bidirectional=True, batch_first=True)))
def lstm_both_ways(self, x, item):
    states, (hidden, cell) = self.lstm(self.items(item))
    return states[:, -1], torch.cat([hidden[-2], hidden[-1]], -1), cell.sum((0, 2))


@case(make=layers(stack=lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, 2, 16, dropout=0.1, batch_first=True), 2, enable_nested_tensor=False)))
def transformer_padded(self, x, item):
    h, w = self.both(x, item)
    padding = item == 0
    padding = padding & (torch.arange(STEPS) > 0)  # never a row of nothing
    z = self.stack(h, src_key_padding_mask=padding)
    return self.out((z * (~padding).unsqueeze(-1)).sum(1) + w)


@case(make=layers(mha=lambda: nn.MultiheadAttention(DIM, 2, dropout=0.1, batch_first=True), norm=lambda: nn.LayerNorm(DIM)))
def multihead_causal(self, x, item):
    h, w = self.both(x, item)
    future = torch.ones(STEPS, STEPS, dtype=torch.bool).triu(1)
    z, _ = self.mha(self.norm(h), h, h, attn_mask=future, need_weights=False)
    return self.out((h + z)[:, -1] + w)


@case(make=lambda self: (setattr(self, "old", nn.utils.weight_norm(nn.Linear(DIM, DIM))), setattr(self, "spectral", nn.utils.spectral_norm(nn.Linear(DIM, DIM)))))
def weight_norm_of_old(self, x, item):
    _, w = self.both(x, item)
    return self.out(self.old(w) + self.spectral(w))


@case(make=layers(w=lambda: nn.Parameter(torch.randn(STEPS, DIM, 3)), b=lambda: nn.Parameter(torch.randn(STEPS, 3))))
def layer_per_field(self, x, item):
    h, w = self.both(x, item)
    a = torch.einsum("bfd,fde->bfe", h, self.w) + self.b
    b = torch.matmul(h.unsqueeze(-2), self.w).squeeze(-2)
    c = torch.bmm(h.transpose(0, 1), self.w).transpose(0, 1)
    return a.relu().sum(1), b - c, torch.einsum("...i,...i->...", h, w.unsqueeze(1))


def experts(self):
    self.experts = nn.ModuleList([nn.Sequential(nn.Linear(DIM, 5), nn.ReLU()) for _ in range(3)])
    self.gates = nn.ModuleList([nn.Linear(WIDTH, 3, bias=False) for _ in range(2)])
    self.towers = nn.ModuleList([nn.Linear(5, 1) for _ in range(2)])


@case(make=experts)
def experts_and_gates(self, x, item):
    h, w = self.both(x, item)
    mixed = torch.stack([expert(w + h.mean(1)) for expert in self.experts], dim=1)
    scores = []
    for gate, tower in zip(self.gates, self.towers):
        weight = torch.softmax(gate(x), dim=-1).unsqueeze(1)
        scores.append(tower(torch.bmm(weight, mixed).squeeze(1)).sigmoid())
    return torch.cat(scores, dim=-1)


@case(make=layers(squeeze=lambda: nn.Linear(STEPS, 2), excite=lambda: nn.Linear(2, STEPS), pair=lambda: nn.Linear(DIM, DIM, bias=False)))
def squeeze_excite(self, x, item):
    h, w = self.both(x, item)
    z = torch.relu(self.excite(torch.relu(self.squeeze(h.mean(-1)))))
    v = h * z.unsqueeze(2)
    pairs = [self.pair(a) * b for a, b in itertools.combinations(torch.split(v, 1, dim=1), 2)]
    return self.out(torch.cat(pairs, dim=1).sum(1) + w)


@case(make=layers(conv=lambda: nn.Conv1d(STEPS * STEPS, 4, 1), down=lambda: nn.Parameter(torch.randn(3, DIM, 2)), up=lambda: nn.Parameter(torch.randn(3, 2, DIM))))
def compressed_crosses(self, x, item):
    h, w = self.both(x, item)
    z = torch.einsum("bhd,bmd->bhmd", h, h).reshape(h.shape[0], STEPS * STEPS, DIM)
    y = w
    for i in range(3):
        y = w * (torch.tanh(y @ self.down[i]) @ self.up[i]) + y
    return self.conv(z).relu().sum(-1), self.out(y)


@case(make=layers(q=lambda: nn.Linear(DIM, DIM, bias=False), k=lambda: nn.Linear(DIM, DIM, bias=False)))
def heads_by_split(self, x, item):
    h, w = self.both(x, item)
    q = torch.stack(torch.split(self.q(h), DIM // 2, dim=2))
    k = torch.stack(torch.split(self.k(h), DIM // 2, dim=2))
    scores = F.softmax(torch.einsum("hbid,hbjd->hbij", q, k) / (DIM // 2) ** 0.5, dim=-1)
    z = torch.cat(torch.split(torch.matmul(scores, k), 1), dim=-1).squeeze(0)
    return self.out(z.sum(1) + w)


@case(lambda b, g: (dense(g, b, WIDTH), ids(g, ITEMS, b, STEPS), torch.randint(1, STEPS + 1, (b,), generator=g)), layers(att=lambda: nn.Sequential(nn.Linear(4 * DIM, 5), nn.Sigmoid(), nn.Linear(5, 1))))
def target_attention(self, x, item, length):
    h, w = self.both(x, item)
    target = w.unsqueeze(1).repeat(1, STEPS, 1)
    scores = self.att(torch.cat([target, h, target - h, target * h], -1)).squeeze(-1)
    keep = torch.arange(STEPS).unsqueeze(0) < length.unsqueeze(1)
    scores = torch.where(keep, scores, torch.ones_like(scores) * (-(2**32) + 1))
    lowest = torch.finfo(scores.dtype).min
    again = scores.masked_fill(torch.logical_not(keep), lowest).softmax(-1)
    return self.out((torch.softmax(scores, -1).unsqueeze(1) @ h).squeeze(1)), again


@case()
def hard_search(self, x, item):
    h, w = self.both(x, item)
    scores = torch.matmul(h, w.unsqueeze(-1)).squeeze(-1)
    values, places = torch.topk(scores, k=2, dim=-1, largest=True, sorted=True)
    near = torch.gather(h, 1, places.unsqueeze(-1).expand(-1, -1, h.size(-1)))
    return self.out((values.softmax(-1).unsqueeze(-1) * near).sum(1)), item.gather(1, places)


@case()
def dense_logs(self, x, item):
    x = torch.nan_to_num(x, nan=0.0)
    a = torch.sign(x) * torch.log1p(torch.abs(x))
    b = torch.where(x > 2, torch.log(torch.clamp(x, min=1e-6)) ** 2, x)
    c = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-6).sqrt()
    return self.out(self.wide(a + b.clip(-3, 3) + c) + self.items(item).sum(1))


@case()
def calibrated(self, x, item):
    _, w = self.both(x, item)
    p = torch.sigmoid(self.out(w)).clamp(1e-6, 1 - 1e-6).squeeze(-1)
    q = p / (p + (1 - p) / 0.1)
    return {"ctr": q, "logit": torch.logit(q), "label": (q > 0.5).float(), "ctcvr": p * q}


@case(make=lambda self: (self.register_buffer("rows8", torch.randint(0, 255, (ITEMS, DIM), dtype=torch.uint8)), self.register_buffer("scale", torch.rand(ITEMS, 2)), self.register_buffer("rows16", torch.randn(ITEMS, DIM).half())))
def tables_in_small_types(self, x, item):
    scale = self.scale[item]
    a = self.rows8[item].float() * scale[..., :1] + scale[..., 1:]
    b = F.embedding(item, self.rows16).float()
    return self.out((a * 0.01 + b).sum(1) + self.wide(x))


@case()
def types_mixed(self, x, item):
    _, w = self.both(x, item)
    a = torch.cat([x, item, (item > 3)], dim=1)
    b = torch.stack([item.float(), item.double()], -1).sum(-1)
    c = torch.true_divide(item, 4) + (item > 2).float().mean(1, keepdim=True)
    return self.out(w), a, b, c, x.double() @ self.wide.weight.double().T, item.clamp(max=2.5)


@case(lambda b, g: ({"user": ids(g, ITEMS, b), "item": ids(g, ITEMS, b), "x": dense(g, b, WIDTH)},))
def features_by_name(self, features: Dict[str, torch.Tensor]):
    joined = torch.stack([self.items(features[name]) for name in ("user", "item")], 1)
    return self.out(joined.prod(1) + self.wide(features["x"]))


@case(lambda b, g: ([ids(g, ITEMS, b, 2), ids(g, ITEMS, b, 3)], dense(g, b, WIDTH)))
def features_in_list(self, sparse: List[torch.Tensor], x):
    pooled = [self.items(column).mean(1) for column in sparse]
    return self.out(torch.cat([t.unsqueeze(1) for t in pooled], 1).amax(1) + self.wide(x))


@case(lambda b, g: (dense(g, b, WIDTH), ids(g, ITEMS, b), dense(g, b, DIM)))
def optional_typed(self, x, item, bias: Optional[torch.Tensor] = None):
    h = self.items(item) + self.wide(x)
    if bias is not None:
        h = h + bias
    return self.out(h)


class Tasks(NamedTuple):
    click: torch.Tensor
    buy: torch.Tensor


@case()
def result_named(self, x, item):
    h, w = self.both(x, item)
    return Tasks(click=self.out(w).sigmoid(), buy=self.out(h.sum(1)).sigmoid())


@case(make=lambda self: setattr(self, "named", nn.ParameterDict({"a": nn.Parameter(torch.randn(DIM)), "b": nn.Parameter(torch.randn(1))})), script=False)
def parameters_by_name(self, x, item):
    _, w = self.both(x, item)
    return self.out(w * self.named["a"]) + sum(p.mean() for p in self.named.values())


@case(make=layers(norm=lambda: nn.LayerNorm([STEPS, DIM]), flat=lambda: nn.LayerNorm(DIM, elementwise_affine=False), batch=lambda: nn.BatchNorm1d(STEPS)))
def norms_over_fields(self, x, item):
    h, w = self.both(x, item)
    return self.out(self.norm(h).sum(1) + self.flat(w)), self.batch(h).mean(-1)


@case()
def distances(self, x, item):
    h, w = self.both(x, item)
    a = torch.cdist(h, h, p=1.0).sum(-1) + torch.cdist(h, w[:, None], p=2.0).squeeze(-1)
    b = F.cosine_similarity(h[:, :1], h[:, 1:], dim=-1, eps=1e-6)
    u = F.normalize(w, p=2.0, dim=-1)
    return a, b, u @ F.normalize(self.items.weight, dim=-1).T, self.out(u)


@case()
def quantiles(self, x, item):
    _, w = self.both(x, item)
    a = torch.quantile(w, 0.25, dim=1) + torch.quantile(w, torch.tensor([0.1, 0.9]), dim=1).sum(0)
    return self.out(w), a, torch.kron(x[:, :2], torch.ones(1, 2)), w.mode(1).values


@case(lambda b, g: (*bags(g, ITEMS, b, last=True), dense(g, b, WIDTH)))
def bags_by_hand(self, values, offsets, x):
    lengths = offsets[1:] - offsets[:-1]
    rows = torch.repeat_interleave(torch.arange(lengths.size(0)), lengths)
    total = torch.zeros(lengths.size(0), DIM).index_add(0, rows, self.items(values))
    return self.out(total / lengths.clamp(min=1).unsqueeze(-1) + self.wide(x))


@case(lambda b, g: (ids(g, ITEMS, b, STEPS), dense(g, b, WIDTH), torch.randint(1, STEPS + 1, (b,), generator=g)), layers(gru=lambda: nn.GRU(DIM, DIM, batch_first=True)))
def gru_packed(self, item, x, lengths):
    packed = nn.utils.rnn.pack_padded_sequence(self.items(item), lengths, batch_first=True, enforce_sorted=False)
    _, last = self.gru(packed)
    return self.out(last[0] + self.wide(x))


@case()
def frozen_tower(self, x, item):
    h, w = self.both(x, item)
    with torch.no_grad():
        kept = torch.tanh(h).mean(1)
    return self.out(w * kept), kept


@case(refused={"pt2": "sparse", "decomposed": "sparse", "trace": "sparse", "frozen": "sparse", "script": "sparse", "unfrozen": "sparse"})
def sparse_product(self, x, item):
    return self.out(torch.sparse.mm(x.to_sparse(), self.wide.weight.T) + self.items(item).sum(1))
