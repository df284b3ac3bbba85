"""A model of the survey: how to build it and what it is asked."""

from dataclasses import dataclass, field
from typing import Callable

import torch


@dataclass(frozen=True)
class Case:
    """One architecture, as a PyTorch user writes it.

    build: makes the module; parameters are drawn from torch's global seed.
    inputs: (batch, generator) → positional arguments of forward(), tensors or
      dicts, lists and tuples of them. Sizes that differ between two batches
      are exported as dynamic. None, numbers and strings stay what they are.
    keywords: names of the last inputs, which are given by name.
    script: torch.jit.script accepts the module.
    export: torch.export takes it: no branch or loop that data decides.
    trace: torch.jit.trace gives a graph that is right at every batch size.
    tolerance: of torch.allclose(), where PyTorch's own exported program is as far
      from the module as that.
    smallest: batch that the module takes; a module that squeezes refuses 1.
    refused: by form, text in the line that refuses the model.
    """

    name: str
    build: Callable[[], torch.nn.Module]
    inputs: Callable
    script: bool = True
    trace: bool = True
    export: bool = True
    keywords: tuple = ()
    tolerance: dict = field(default_factory=lambda: {"rtol": 1e-4, "atol": 1e-5})
    smallest: int = 1
    refused: dict = field(default_factory=dict)

    def has(self, form):
        if form in ("script", "unfrozen"):
            return self.script
        return self.trace if form in ("trace", "frozen") else self.export


def ids(generator, rows, *shape):
    return torch.randint(rows, shape, generator=generator)


def dense(generator, *shape):
    return torch.randn(shape, generator=generator)


def bags(generator, rows, batch, most=4, last=False):
    """Ids of `batch` bags one after the other, some empty, and their offsets."""
    lengths = torch.randint(most + 1, (batch,), generator=generator)
    lengths[-1] = 1  # a request without any id is another test's
    ends = torch.cumsum(lengths, 0)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
    values = ids(generator, rows, int(ends[-1]))
    return values, offsets if last else offsets[:-1]
