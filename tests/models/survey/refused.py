"""Models that must not be served, and the expected reason."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.survey.case import Case, ids
from tests.models.survey.interaction import Net
from tests.models.survey.sequence import DIM, ITEMS, STEPS


class Items(Net):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM)
        self.out = nn.Linear(STEPS * DIM, 1)


class BatchAsNumber(Items):
    """Python's int() of the batch is a constant in a trace."""

    def forward(self, history):
        h = self.items(history)
        return self.out(h.view(int(history.shape[0]), -1))


class MeanOverTracedBatch(Items):
    """Zeros for the traced number of rows."""

    def forward(self, history):
        h = self.items(history).flatten(1)
        return self.out(torch.zeros(len(history), h.shape[1] * 1).add(h))


class AlwaysDropout(Items):
    """Functional dropout without `training`: it drops in evaluation, too."""

    def forward(self, history):
        return self.out(F.dropout(self.items(history).flatten(1), 0.3))


class Noise(Items):
    def forward(self, history):
        h = self.items(history).flatten(1)
        return self.out(h + torch.randn_like(h))


class Counter(Items):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, history):
        self.calls.add_(1.0)
        return self.out(self.items(history).flatten(1)) / self.calls


def history(batch, generator):
    return (ids(generator, ITEMS, batch, STEPS),)


# Case, form, and a text of the refusal's one line.
CASES = [
    (Case("batch_as_number", BatchAsNumber, history), "frozen", "aten.view.default"),
    (Case("traced_rows", MeanOverTracedBatch, history), "frozen", "aten.zeros"),
    (Case("always_dropout", AlwaysDropout, history), "pt2", "aten.dropout.default"),
    (Case("always_dropout", AlwaysDropout, history), "trace", "aten.dropout.default"),
    (Case("noise", Noise, history), "decomposed", "aten.randn"),
    (Case("noise", Noise, history), "frozen", "aten.randn_like.default"),
    (Case("counter", Counter, history), "pt2", "calls"),
    (Case("counter", Counter, history), "trace", "calls"),
]
