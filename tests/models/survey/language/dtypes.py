"""Element types."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.survey.case import dense, ids
from tests.models.survey.language.base import WIDTH, Cases, layers
from tests.models.survey.sequence import DIM, ITEMS, STEPS

case = Cases()


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


@case()
def autocast(self, x, item):
    h, w = self.both(x, item)
    with torch.autocast("cpu", torch.bfloat16):
        y = self.out(h.sum(1) + w)
    return y.float()


@case()
def complex_numbers(self, x, item):
    h, w = self.both(x, item)
    spectrum = torch.fft.rfft(h, dim=1)
    return self.out(torch.fft.irfft(spectrum * 0.5, n=STEPS, dim=1).sum(1)), spectrum.abs().sum((1, 2))


@case(make=layers(freqs=lambda: torch.polar(torch.ones(STEPS, DIM // 2), torch.rand(STEPS, DIM // 2))))
def rotary(self, x, item):
    h = torch.view_as_complex(self.items(item).reshape(-1, STEPS, DIM // 2, 2))
    return self.out(torch.view_as_real(h * self.freqs).flatten(2).sum(1))


@case(make=layers(weight_nan=lambda: torch.tensor([float("nan"), 1.0, float("inf"), -float("inf")])))
def nan_constants(self, x, item):
    filled = torch.full_like(x, float("-inf")).clamp(min=-5.0)
    return (x[:, :4] * self.weight_nan).nan_to_num(7.0, 8.0, -8.0), filled.sum(1) + self.out(self.wide(x))[:, 0]


def half_model(kind):
    def make(self):
        self.to(kind)

    return make


@case(lambda b, g: (dense(g, b, WIDTH).bfloat16(), ids(g, ITEMS, b, STEPS)), half_model(torch.bfloat16))
def model_bfloat16(self, x, item):
    h, w = self.both(x, item)
    return self.out(h.mean(1) * w)


@case(make=half_model(torch.float16))
def model_float16(self, x, item):
    h, w = self.both(x.half(), item)
    return self.out(F.layer_norm(h.sum(1) + w, (DIM,))).float()


@case(lambda b, g: (dense(g, b, WIDTH).double(), ids(g, ITEMS, b, STEPS)), half_model(torch.float64))
def model_float64(self, x, item):
    h, w = self.both(x, item)
    return self.out(h.softmax(1).sum(1) + w)


@case(lambda b, g: (dense(g, b, 3) > 0, ids(g, ITEMS, b, STEPS).int(), dense(g, b, WIDTH)))
def inputs_bool(self, flags, item, x):
    h, w = self.both(x, item)
    a = torch.where(flags[:, :1], w, -w) * flags[:, 1:2]
    return self.out(a + h.sum(1)), flags.any(1) & flags.all(1), flags.sum(1), flags.int().argmax(1)


@case()
def promotions(self, x, item):
    h, w = self.both(x, item)
    a = item / 2 + item // 3 + item.float() * 1 + (item > 2) * 2
    b = w * torch.tensor(2) + torch.tensor(1.5, dtype=torch.float64) + True
    c = torch.result_type(item, 1.0)
    d = (item.to(torch.int8) + torch.tensor([100], dtype=torch.int8)).to(c)
    return self.out(b), a, d, item**2 % 5, ~item, item.short() << 2, item.float().type_as(w)


BFLOAT16 = {"rtol": 2e-2, "atol": 2e-2}


@case(tolerance=BFLOAT16, make=layers(a=lambda: nn.Linear(DIM, 2 * DIM), norm=lambda: nn.LayerNorm(2 * DIM), b=lambda: nn.Linear(2 * DIM, DIM)))
def autocast_layers(self, x, item):
    h, w = self.both(x, item)
    with torch.autocast("cpu", torch.bfloat16):
        z = self.b(F.gelu(self.norm(self.a(w))))
        with torch.autocast("cpu", enabled=False):
            z = z.float() + self.wide(x)
        scores = torch.softmax(z @ z.new_ones(DIM, 3), -1)
        q = h.view(-1, STEPS, 2, DIM // 2).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, q, q).sum((1, 2, 3))
        joined = torch.cat([self.out(z), scores], 1)
    return self.out(w) + self.out(z.float()), joined, mixed, z


@case(tolerance=BFLOAT16, make=layers(mha=lambda: nn.TransformerEncoderLayer(DIM, 2, 12, batch_first=True), conv=lambda: nn.Conv1d(DIM, 4, 2)))
def autocast_attention(self, x, item):
    h, w = self.both(x, item)
    with torch.amp.autocast("cpu", dtype=torch.bfloat16):
        z = self.mha(h)
        c = self.conv(h.mT).sum(-1)
        e = torch.einsum("btd,bd->bt", h, w)
        f = torch.linalg.norm(w, dim=1) + torch.bmm(h, w[..., None]).sum((1, 2)) + w.sum(1)
    return self.out(z[:, 0].float() + w), c, e, f


@case()
def autocast_of_gpus(self, x, item):
    h, w = self.both(x, item)
    with torch.autocast("cuda", torch.float16):
        y = self.out(h.sum(1) + w)
    return y


@case(make=layers(weight_int8=lambda: torch.randint(-127, 127, (DIM, DIM), dtype=torch.int8), scale=lambda: torch.rand(DIM, 1)))
def quantised_by_hand(self, x, item):
    h, w = self.both(x, item)
    z = F.linear(w, self.weight_int8.float() * self.scale)
    q = torch.clamp(torch.round(h / 0.05), -128, 127) * 0.05
    r = torch.clamp((w / 0.1).round(), -128, 127).to(torch.int8).float() * 0.1
    return self.out(z + r), q.sum((1, 2))


def dynamic(self):
    from torch.ao.quantization import quantize_dynamic

    torch.backends.quantized.engine = "fbgemm"
    dense_part = nn.Sequential(nn.Linear(DIM, 16), nn.ReLU(), nn.Linear(16, 1))
    self.deep = quantize_dynamic(dense_part, {nn.Linear}, dtype=torch.qint8)


@case(make=dynamic, export=False, script=True, trace=True)
def quantised_dynamic(self, x, item):
    return self.deep(torch.relu(self.wide(x)) + self.items(item).sum(1))


@case()
def bits(self, x, item):
    _, w = self.both(x, item)
    return self.out(w), x.view(torch.int32) & 0xFF, (item << 3 | 5) >> 1, item.to(torch.int32).view(torch.uint8).sum(1)


@case()
def spectrum_of_windows(self, x, item):
    h, w = self.both(x, item)
    s = torch.stft(h.flatten(1), 8, return_complex=True, window=torch.hann_window(8))
    return self.out(w), s.abs().mean((1, 2)), torch.fft.fft(w).real, torch.angle(torch.fft.rfft(w))
