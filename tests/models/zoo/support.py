"""Common parts of the zoo's tests: one tiny export per model and process."""

import contextlib
import functools
import io
import json
import sys
import tempfile
import unittest.mock
from pathlib import Path

import torch

from models.zoo import build, cli, inputs, programs, reference
from models.zoo import safetensors_io
from scripts.lib import repository

torch.set_num_threads(1)

# That of the exports that tests share.
SEED = 1
# Two formats of one model may differ by rounding, no more.
TOLERANCE = 1e-6

_folder = tempfile.TemporaryDirectory(prefix="refract_zoo_")


def folder():
    return Path(_folder.name)


def command(module, *arguments):
    """Runs a command line in this process; returns (exit code, stderr).

    Importing torch anew costs more than all the tests of a command.
    """
    errors, argv = io.StringIO(), [module.__name__, *map(str, arguments)]
    with (
        unittest.mock.patch.object(sys, "argv", argv),
        # PyTorch allows this once per process.
        unittest.mock.patch.object(torch, "set_num_interop_threads"),
        contextlib.redirect_stderr(errors),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            cli.run(module.main, module.__name__)
        except SystemExit as stop:
            return stop.code, errors.getvalue()
    return 0, errors.getvalue()


class Exported:
    """A tiny export of one model, with its eager twin."""

    def __init__(self, name, *options):
        self.name = name
        self.out = folder() / "_".join([name, *options]).replace("-", "")
        repository.export(name, self.out, *options)
        self.json = json.loads((self.out / f"{name}.json").read_text())
        rows = build.choose_rows(name, "tiny")
        self.eager = build.build(name, rows, "tiny", SEED)
        self.eager.bind(
            {
                fqn: build.table_values(self.eager, fqn, SEED)
                for fqn in self.eager.table_modules()
            }
        )

    def inputs(self, batch, bags="ragged", seed=SEED):
        return inputs.make_inputs(self.json["inputs"], batch, seed, bags=bags)

    def scores(self, tensors):
        with torch.no_grad():
            return self.eager(**tensors)

    def path(self, suffix):
        return self.out / f"{self.name}{suffix}"

    @functools.cache
    def program(self, suffix):
        program = programs.load(self.path(suffix))
        tables = self.out / "tables"
        program.bind(
            safetensors_io.read_folder(tables) if tables.exists() else {}
        )
        return program

    def run(self, suffix, tensors):
        program = self.program(suffix)
        leaves = reference.gather(program.slots, tensors, "test")
        with torch.no_grad():
            (scores,) = program.run(leaves)
        return scores


@functools.cache
def exported(name, *options):
    print(f"export {name} {' '.join(options)}: seed {SEED}")
    return Exported(name, *options)
