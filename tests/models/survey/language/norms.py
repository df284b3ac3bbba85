"""Normalisations, activations, mathematics."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.survey.language.base import Cases, layers
from tests.models.survey.sequence import DIM, STEPS

case = Cases()


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


@case(
    make=layers(
        batch=lambda: nn.BatchNorm1d(DIM, affine=False),
        spectral=lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(DIM, DIM)),
    )
)
def norms_functional(self, x, item):
    h, w = self.both(x, item)
    a = F.group_norm(h.mT, 4).mean(-1) + F.instance_norm(h.mT).amax(-1)
    b = F.rms_norm(w, (DIM,)) + F.layer_norm(w, (DIM,)) + F.local_response_norm(h.mT, 2).sum(-1)
    return self.out(self.spectral(a) + self.batch(b) + torch.renorm(w, 2, 0, 1.0))


@case(make=layers(batch=lambda: nn.BatchNorm1d(STEPS, track_running_stats=False)))
def norm_of_the_batch(self, x, item):
    return self.out(self.batch(self.both(x, item)[0]).sum(1))


@case(make=layers(drop=lambda: nn.Sequential(nn.Dropout(0.4), nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.1)), leaky=lambda: nn.RReLU()))
def switched_off(self, x, item):
    h, w = self.both(x, item)
    w = self.leaky(self.drop(w) - 0.3) + F.dropout1d(h, 0.2, training=False).sum(1)
    return self.out(nn.Identity()(w)), F.softmax(w, dim=-1, dtype=torch.float64)


@case()
def mathematics_more(self, x, item):
    _, w = self.both(x, item)
    a = torch.special.i0(w) + torch.lgamma(w + 1) + torch.digamma(w + 1) + torch.erfinv(w / (w + 1))
    b = torch.copysign(w, x.sum(1, keepdim=True)) + torch.nextafter(w, w + 1) + torch.ldexp(w, torch.tensor(2))
    c = torch.floor_divide(w, 0.3) + torch.trunc(w) + w.ceil() - w.floor() + torch.heaviside(w, w)
    d = torch.isclose(w, w + 1e-9) & ~torch.isnan(w) & torch.isfinite(w) | (w == 1).logical_xor(w > 2)
    e = torch.addcdiv(w, w, w + 1, value=2) + torch.special.xlog1py(w, w) + torch.rsub(w.pow(2), 1) + torch.square(w)
    f = -w.neg().abs() + abs(w) + w.reciprocal().clamp(-9, 9) + 1 / (w + 1) + w.sgn() + torch.maximum(w, w * 2).fmin(w)
    return self.out(a + b), c.sum(1), d, e, f, torch.clamp(w, min=w.mean(1, keepdim=True))
