"""Recurrent cells and attention."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.survey.language.base import WIDTH, Cases, layers
from tests.models.survey.sequence import DIM, STEPS

case = Cases()


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


@case(make=layers(gru=lambda: nn.GRU(DIM, DIM, batch_first=True), lstm=lambda: nn.LSTM(DIM, 4, batch_first=True, proj_size=3)))
def states_given(self, x, item):
    h, w = self.both(x, item)
    zeros = torch.zeros(1, item.size(0), DIM)
    states, last = self.gru(h, zeros)
    out, (hidden, cell) = self.lstm(h)
    return self.out(states[:, -1] + last[0] + w), out.sum((1, 2)), hidden[0], cell.squeeze(0)


@case(make=layers(mha=lambda: nn.MultiheadAttention(DIM, 2, batch_first=True, kdim=WIDTH, vdim=WIDTH, add_bias_kv=True)))
def multihead_heads(self, x, item):
    h, w = self.both(x, item)
    keys = x[:, None].expand(-1, 3, -1)
    out, weights = self.mha(h, keys, keys, average_attn_weights=False)
    return self.out(out.sum(1) + w), weights


@case(make=layers(decoder=lambda: nn.TransformerDecoderLayer(DIM, 2, 12, batch_first=True)))
def transformer_decoder(self, x, item):
    h, w = self.both(x, item)
    mask = torch.triu(torch.full((STEPS, STEPS), float("-inf")), 1)
    return self.out(self.decoder(h, w[:, None], tgt_mask=mask)[:, -1])


@case(make=layers(whole=lambda: nn.Transformer(DIM, 2, 1, 1, 12, batch_first=True)))
def transformer_whole(self, x, item):
    h, w = self.both(x, item)
    return self.out(self.whole(h, w[:, None], src_key_padding_mask=item == 0)[:, 0])


@case(make=layers(bias=lambda: nn.Embedding(2 * STEPS - 1, 2), position=lambda: nn.Embedding(STEPS, DIM)))
def attention_relative(self, x, item):
    h, w = self.both(x, item)
    q = (h + self.position.weight).view(-1, STEPS, 2, DIM // 2).transpose(1, 2)
    steps = torch.arange(STEPS)
    bias = self.bias(steps[:, None] - steps[None] + STEPS - 1).permute(2, 0, 1)
    mixed = F.scaled_dot_product_attention(q, q, q, attn_mask=bias[None], scale=0.3)
    slope = torch.pow(0.5, torch.arange(1, 3))[:, None, None] * -(steps[:, None] - steps).abs()
    alibi = ((q @ q.mT) + slope).softmax(-1) @ q
    return self.out((mixed + alibi).transpose(1, 2).flatten(2).mean(1) + w)


@case()
def rotary_real(self, x, item):
    h, w = self.both(x, item)
    angle = torch.outer(torch.arange(STEPS).float(), 10.0 ** (-torch.arange(0, DIM, 2) / DIM))
    cos, sin = angle.cos(), angle.sin()
    even, odd = h[..., ::2], h[..., 1::2]
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return self.out(turned.sum(1) + w)
