"""The language of graphs: one small model per operator class or spelling.

None is a paper's. Each asks for one thing that PyTorch can export, in a forward
that also looks items up and has a dense layer, so that there is something to
split. Exported only (`pt2`, `decomposed`): what TorchScript makes of models is
asked of the architectures.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.survey.case import Case, bags, dense, ids
from tests.models.survey.sequence import DIM, ITEMS, STEPS

WIDTH = 6


class Base(nn.Module):
    """Items, a dense layer, and what make() adds."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM)
        self.wide = nn.Linear(WIDTH, DIM)
        self.out = nn.Linear(DIM, 1)
        self.make()

    def make(self):
        pass

    def both(self, x, item):
        """[B, STEPS, DIM] and [B, DIM]"""
        return self.items(item), torch.relu(self.wide(x))


def features(batch, generator):
    return dense(generator, batch, WIDTH), ids(generator, ITEMS, batch, STEPS)


CASES = []


def case(inputs=features, make=None, **options):
    """The decorated forward, as a model of the function's name."""

    def add(forward):
        name = forward.__name__
        # forward() has another code object than the decorated name's.
        members = {"forward": forward}
        if make is not None:
            members["make"] = make
        module = type(name, (Base,), members)
        CASES.append(
            Case(name, module, inputs, script=False, trace=False, **options)
        )
        return forward

    return add


def layers(**made):
    """make() for modules that are built when the model is."""

    def make(self):
        for name, build in made.items():
            value = build()
            if isinstance(value, nn.Module) or isinstance(value, nn.Parameter):
                setattr(self, name, value)
            else:
                self.register_buffer(name, value)

    return make


# ---- Look-ups ----


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


@case(make=layers(table=lambda: nn.Embedding(ITEMS, DIM, max_norm=1.0)), refused={"pt2": "table.weight", "decomposed": "table.weight"})
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


# ---- Shapes ----


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


# ---- Products ----


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


# ---- Recurrent and attention ----


@case(make=layers(gru=lambda: nn.GRU(DIM, 5, 2, batch_first=True, bidirectional=True)))
def gru(self, x, item):
    states, last = self.gru(self.items(item))
    return states.sum((1, 2)), last.transpose(0, 1).flatten(1)


@case(make=layers(lstm=lambda: nn.LSTM(DIM, DIM)))
def lstm_time_first(self, x, item):
    h, w = self.both(x, item)
    states, (hidden, cell) = self.lstm(h.transpose(0, 1), (w[None], w[None]))
    return self.out(states[-1] + hidden[0]), cell.squeeze(0)


@case(make=layers(rnn=lambda: nn.RNN(DIM, 4, nonlinearity="relu", batch_first=True)))
def rnn(self, x, item):
    return self.rnn(self.items(item))[0].mean((1, 2))


@case(make=layers(cell=lambda: nn.GRUCell(DIM, DIM), lstm=lambda: nn.LSTMCell(DIM, DIM)))
def cells(self, x, item):
    h, state = self.both(x, item)
    memory = state
    for t in range(3):
        state = self.cell(h[:, t], state)
        state, memory = self.lstm(h[:, t], (state, memory))
    return self.out(state), memory


@case(make=layers(mha=lambda: nn.MultiheadAttention(DIM, 2, batch_first=True)))
def multihead(self, x, item):
    h, w = self.both(x, item)
    out, weights = self.mha(w[:, None], h, h, key_padding_mask=item == 0)
    return self.out(out.squeeze(1)), weights


@case(make=layers(mha=lambda: nn.MultiheadAttention(DIM, 4)))
def multihead_time_first(self, x, item):
    h = self.items(item).transpose(0, 1)
    out, _ = self.mha(h, h, h, need_weights=False)
    return self.out(out.mean(0))


@case(
    make=layers(
        layer=lambda: nn.TransformerEncoderLayer(
            DIM, 2, 16, batch_first=True, activation="gelu", norm_first=True
        )
    )
)
def transformer(self, x, item):
    return self.out(self.layer(self.items(item), src_key_padding_mask=item == 1)[:, 0])


@case(
    make=layers(
        stack=lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True), 2
        )
    )
)
def transformer_stack(self, x, item):
    causal = nn.Transformer.generate_square_subsequent_mask(STEPS)
    return self.out(self.stack(self.items(item), mask=causal, is_causal=True)[:, -1])


@case()
def attention(self, x, item):
    h, w = self.both(x, item)
    q = h.view(-1, STEPS, 2, DIM // 2).transpose(1, 2)
    a = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    mask = (item != 0)[:, None, None]
    b = F.scaled_dot_product_attention(q, q, q, attn_mask=mask | (mask.sum() >= 0))
    return self.out((a + b).transpose(1, 2).flatten(2).sum(1))


@case()
def attention_over_steps(self, x, item):
    h, w = self.both(x, item)
    scores = (h @ w.unsqueeze(-1)).squeeze(-1).masked_fill(item == 0, float("-inf"))
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return self.out(torch.einsum("bt,btd->bd", weights, h))


# ---- Norms and activations ----


@case(
    make=layers(
        batch=lambda: nn.BatchNorm1d(DIM),
        layer=lambda: nn.LayerNorm((STEPS, DIM)),
        group=lambda: nn.GroupNorm(2, STEPS - STEPS % 2),
        rms=lambda: nn.RMSNorm(DIM),
        instance=lambda: nn.InstanceNorm1d(DIM, affine=True),
    )
)
def norms(self, x, item):
    h, w = self.both(x, item)
    a = self.batch(w) + self.rms(w) + F.normalize(w, dim=-1)
    b = self.layer(h).sum(1) + self.instance(h.mT).mean(-1)
    return self.out(a + b), self.group(h[:, : STEPS - STEPS % 2]).amax((1, 2))


@case(make=layers(prelu=lambda: nn.PReLU(DIM)))
def activations(self, x, item):
    _, w = self.both(x, item)
    w = w - 0.4
    total = torch.zeros_like(w)
    for f in (F.relu6, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.softplus,
              F.logsigmoid, F.hardswish, F.hardtanh, F.hardsigmoid, F.softsign,
              F.tanhshrink, F.leaky_relu, F.hardshrink, F.softshrink, self.prelu):
        total = total + f(w)
    return self.out(total), F.glu(w, -1), F.softmin(w, 1), F.threshold(w, 0.1, 2.0)


@case()
def mathematics(self, x, item):
    _, w = self.both(x, item)
    a = torch.log1p(w) + torch.expm1(-w) + torch.erf(w) + torch.sqrt(w + 1)
    b = torch.atan2(w, w + 1) + torch.hypot(w, w) + torch.fmod(w, 0.3)
    c = torch.remainder(w, 0.7) + w.frac() + torch.addcmul(w, w, w, value=0.5)
    d = torch.lerp(w, w * 2, 0.3) + torch.logaddexp(w, -w) + torch.xlogy(w, w + 1)
    e = torch.special.expit(w) + torch.sinc(w) + torch.rsqrt(w + 2) + w**1.5 + 2**w
    return self.out(a + b), c.sum(1), torch.round(d, decimals=2), e.clamp(max=3)


# ---- Orders, masks, scatters ----


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


# ---- Element types ----


@case()
def halves(self, x, item):
    h, w = self.both(x, item)
    a = h.half().sum(1).float() * w.bfloat16().float()
    return self.out(a), (w.double() ** 2).sum(1), (w > 0.5).to(torch.uint8), (w * 10).to(torch.int8)


@case(lambda b, g: (dense(g, b, WIDTH).bfloat16(), ids(g, ITEMS, b, STEPS).short(), dense(g, b, 2) > 0))
def odd_inputs(self, x, item, flags):
    h = self.items(item.long()).sum(1)
    return self.out(h + self.wide(x.float())).half(), flags.float().sum(1), flags & ~flags


@case(lambda b, g: (dense(g, b, WIDTH).double(), ids(g, ITEMS, b, STEPS)))
def doubles(self, x, item):
    h = self.items(item).double().sum(1)
    return (h @ self.wide.weight.double() * x).sum(1)


@case(make=layers(narrow=lambda: nn.Linear(DIM, 4).bfloat16()))
def weights_bfloat16(self, x, item):
    return self.narrow(self.both(x, item)[1].bfloat16()).float()


@case(refused={"pt2": "wrap_with_autocast"})
def autocast(self, x, item):
    h, w = self.both(x, item)
    with torch.autocast("cpu", torch.bfloat16):
        y = self.out(h.sum(1) + w)
    return y.float()


@case(refused={"pt2": "complex numbers", "decomposed": "complex numbers"})
def complex_numbers(self, x, item):
    h, w = self.both(x, item)
    spectrum = torch.fft.rfft(h, dim=1)
    return self.out(torch.fft.irfft(spectrum * 0.5, n=STEPS, dim=1).sum(1)), spectrum.abs().sum((1, 2))


@case(make=layers(freqs=lambda: torch.polar(torch.ones(STEPS, DIM // 2), torch.rand(STEPS, DIM // 2))), refused={"pt2": "complex numbers", "decomposed": "complex numbers"})
def rotary(self, x, item):
    h = torch.view_as_complex(self.items(item).reshape(-1, STEPS, DIM // 2, 2))
    return self.out(torch.view_as_real(h * self.freqs).flatten(2).sum(1))


@case(make=layers(weight_nan=lambda: torch.tensor([float("nan"), 1.0, float("inf"), -float("inf")])))
def nan_constants(self, x, item):
    filled = torch.full_like(x, float("-inf")).clamp(min=-5.0)
    return (x[:, :4] * self.weight_nan).nan_to_num(7.0, 8.0, -8.0), filled.sum(1) + self.out(self.wide(x))[:, 0]


# ---- Weights ----


@case(make=lambda self: setattr(self, "tied", nn.Linear(DIM, ITEMS, bias=False)))
def tied_weights(self, x, item):
    h, w = self.both(x, item)
    return F.linear(h.sum(1) + w, self.items.weight), F.linear(w, self.items.weight[:4])


def strided(self):
    self.weight_t = nn.Parameter(torch.randn(DIM, 3).t())
    self.register_buffer("every_other", torch.randn(2 * DIM)[::2])
    self.register_buffer("spread", torch.randn(1, DIM).expand(3, DIM))
    self.register_buffer("nothing", torch.zeros(0, DIM))


@case(make=strided, refused={"pt2": "table spread", "decomposed": "table spread"})
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


# ---- Arguments and results ----


@dataclass
class Scores:
    click: torch.Tensor
    buy: torch.Tensor


torch.export.register_dataclass(Scores, serialized_type_name="survey.Scores")


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@case()
def result_dataclass(self, x, item):
    h, w = self.both(x, item)
    return Scores(self.out(w).sigmoid(), self.out(h.sum(1)).tanh())


@case()
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
    )
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


# ---- Control flow, functions, custom operators ----


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


# ---- Sizes that the data decide ----


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


# ---- Higher-order operators ----


@case(refused={"pt2": "higher_order.cond", "decomposed": "higher_order.cond"})
def cond(self, x, item):
    h, w = self.both(x, item)
    y = torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (w,))
    return self.out(y)


@case(refused={"pt2": "higher_order.while_loop", "decomposed": "higher_order.while_loop"})
def while_loop(self, x, item):
    h, w = self.both(x, item)
    from torch._higher_order_ops.while_loop import while_loop as loop

    _, y = loop(lambda i, t: i < 3, lambda i, t: (i + 1, torch.tanh(t)), (torch.tensor(0), w))
    return self.out(y)


@case(refused={"pt2": "higher_order.map_impl", "decomposed": "higher_order.map_impl"})
def mapped(self, x, item):
    from torch._higher_order_ops.map import map as each

    h, w = self.both(x, item)
    return self.out(each(lambda t: t.sin() + 1, h).sum(1) + w)


@case(refused={"pt2": "higher_order.scan", "decomposed": "higher_order.scan"})
def scanned(self, x, item):
    from torch._higher_order_ops.scan import scan

    h, w = self.both(x, item)
    last, _ = scan(lambda c, t: (torch.tanh(c + t), c.clone()), w, h.transpose(0, 1))
    return self.out(last)
