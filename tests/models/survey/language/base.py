"""Common parts of the small models, and how a file lists its models."""

import inspect
import linecache
import re
import textwrap

import torch
from torch import nn

from tests.models.survey.case import Case, dense, ids
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


def with_numbers(function):
    """`function` with the sizes written out: TorchScript reads no globals."""
    source = textwrap.dedent(inspect.getsource(function))
    source = source[re.search(r"^def ", source, re.MULTILINE).start() :]
    for name in ("WIDTH", "DIM", "ITEMS", "STEPS"):
        if name in function.__globals__:
            source = re.sub(rf"\b{name}\b", str(function.__globals__[name]), source)
    file = f"<{function.__module__}.{function.__name__}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    members = {}
    exec(compile(source, file, "exec"), function.__globals__, members)
    return members[function.__name__]


class Cases(list):
    """The decorated forwards, each as a model of the function's name."""

    def __call__(self, inputs=features, make=None, **options):
        def add(forward):
            name = forward.__name__
            # forward() has another code object than the decorated name's.
            members = {"forward": with_numbers(forward)}
            if make is not None:
                members["make"] = make
            module = type(name, (Base,), members)
            chosen = {"script": True, "trace": True, **options}
            self.append(Case(name, module, inputs, **chosen))
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
