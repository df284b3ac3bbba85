"""bench/runtime/prepare.py gives AOTInductor what it needs to freeze weights."""

import pathlib
import tempfile
import unittest
from unittest import mock

import torch
from torch._inductor import config

from bench.runtime import prepare


class Prepare(unittest.TestCase):
    def test_packages_are_compiled_with_frozen_weights(self):
        # Inductor leaves weights as they are while gradients are enabled, in
        # spite of `freezing`: the code then has addmm in place of
        # mkldnn's _linear_pointwise over packed weights.
        seen = {}

        def compile_program(program, package_path):
            seen["grad"] = torch.is_grad_enabled()
            seen["freezing"] = config.freezing
            seen["path"] = package_path

        with tempfile.TemporaryDirectory() as name:
            source = pathlib.Path(name) / "m.pt2"
            program = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(4, 3),))
            torch.export.save(program, source)
            target = pathlib.Path(name) / "m.aoti.pt2"
            with (
                config.patch(freezing=False),
                mock.patch.object(
                    torch._inductor, "aoti_compile_and_package", compile_program
                ),
            ):
                prepare.compile_package(source, target)
        self.assertEqual(
            seen, {"grad": False, "freezing": True, "path": str(target)}
        )


if __name__ == "__main__":
    unittest.main()
