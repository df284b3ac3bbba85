"""Scripted models whose branches, loops and containers data decides."""

from typing import Dict, List, Optional

import torch
from torch import nn

from tests.models.survey.case import Case, dense, ids
from tests.models.survey.interaction import Net

ITEMS = 40
STEPS = 6
DIM = 8


class Scored(Net):
    """Embedded items and dense features, scored by an MLP."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM)
        self.hidden = nn.Linear(DIM, DIM)
        self.cell = nn.GRUCell(DIM, DIM)
        self.score = nn.Sequential(nn.Linear(DIM, 16), nn.ReLU(), nn.Linear(16, 1))


class Branch(Scored):
    def forward(self, history, x):
        h = self.items(history).mean(1)
        if bool(x.sum() > 0):
            h = h + x
            scale = 0.5
        else:
            h = h * x
            scale = 2.0
        return self.score(h * scale)


class LoopOverSteps(Scored):
    def forward(self, history, x):
        steps = self.items(history)
        h = torch.zeros_like(x)
        for t in range(steps.size(1)):
            h = self.cell(steps[:, t], h)
        return self.score(h)


class LoopOverRows(Scored):
    """Takes as many steps of each row as its first item says."""

    def forward(self, history, x):
        steps = self.items(history)
        rows: List[torch.Tensor] = []
        for i in range(history.size(0)):
            rows.append(steps[i, : int(history[i, 0]) % 3 + 1].sum(0))
        return self.score(torch.stack(rows) + x)


class WriteRows(Scored):
    def forward(self, history, x):
        h = self.items(history).sum(1)
        out = torch.zeros_like(x)
        for i in range(history.size(0)):
            out[i] = h[i] * float(i % 2)
        return self.score(out + x)


class NestedFlow(Scored):
    def forward(self, history, x):
        h = self.items(history).mean(1)
        n = 0
        for t in range(history.size(1)):
            if bool(x[0, t] > 0):
                h = h + x
                if bool(h.sum() > 0):
                    n += 1
                    continue
            else:
                break
            h = h * 0.5
        return self.score(h) + float(n)


class WhileLoop(Scored):
    def forward(self, history, x):
        h = self.items(history).mean(1)
        i = 0
        while bool(h.abs().sum() > 1e-2) and i < 5:
            h = h * 0.5
            i += 1
        return self.score(h + x) + i


class Containers(Scored):
    def forward(self, history, x):
        h = self.items(history).mean(1)
        named: Dict[str, torch.Tensor] = {}
        if bool(x.sum() > 0):
            named["a"] = h
        else:
            named["b"] = h * 2
        h = named["a"] if "a" in named else named["b"]
        extra: Optional[torch.Tensor] = None
        if bool(x.max() > 1):
            extra = x * 2
        if extra is not None:
            h = h + extra
        return self.score(h + x)


class MaybeTheSame(Scored):
    """Writes into what may or may not be the branch's argument."""

    def forward(self, history, x):
        h = self.items(history).mean(1)
        y = h
        if bool(x.sum() > 0):
            y = h + 1
        y.add_(1.0)
        return self.score(h + y + x)


class TwoBranches(Scored):
    def forward(self, history, x):
        h = self.items(history).mean(1)
        if bool(x.sum() > 0):
            h = h + 1
        h = torch.relu(self.hidden(h))
        if bool(h.sum() > 3):
            h = h - 1
        return self.score(h + x)


class Lengths(Scored):
    """Python numbers out of a tensor."""

    def forward(self, history, x):
        lengths: List[int] = history[:, 0].tolist()
        steps = self.items(history)
        rows: List[torch.Tensor] = []
        for i, n in enumerate(lengths):
            rows.append(steps[i, : max(1, n % 4)].mean(0))
        return self.score(torch.stack(rows) + x)


@torch.jit.script
class Running:
    """An object of a class of the user's."""

    def __init__(self, x: torch.Tensor):
        self.total = x
        self.n = 0

    def add(self, x: torch.Tensor):
        self.total = self.total + x
        self.n += 1


class Object(Scored):
    def forward(self, history, x):
        running = Running(x)
        steps = self.items(history)
        for t in range(history.size(1)):
            running.add(steps[:, t])
        return self.score(running.total / running.n)


def inputs(batch, generator):
    return ids(generator, ITEMS, batch, STEPS), dense(generator, batch, DIM)


CASES = [
    Case(name, build, inputs, trace=False, export=False)
    for name, build in (
        ("branch", Branch),
        ("loop_over_steps", LoopOverSteps),
        ("loop_over_rows", LoopOverRows),
        ("write_rows", WriteRows),
        ("nested_flow", NestedFlow),
        ("while_loop", WhileLoop),
        ("data_containers", Containers),
        ("maybe_the_same", MaybeTheSame),
        ("two_branches", TwoBranches),
        ("lengths_to_numbers", Lengths),
        ("object", Object),
    )
]
