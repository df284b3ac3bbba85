"""Split = unsplit bit for bit, and both = PyTorch, for every zoo model.

Both formats, several batch sizes, ragged bags with empty ones among them.
"""

import os
import pathlib
import random
import shutil
import tempfile
import unittest

import torch
from safetensors.torch import load_file

from models.zoo import safetensors_io
from tests.e2e import support

BATCHES = (1, 2, 33, 270, 1000)
# Absolute, after the sigmoid (the issue of every kernel that sums in another
# order than PyTorch's).
TOLERANCE = 1e-5


class Parity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-parity-"))
        cls.seed = int(os.environ.get("REFRACT_TEST_SEED", random.randrange(2**31)))
        print(f"seed {cls.seed} (repeat with REFRACT_TEST_SEED)")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def run_mode(self, model, mode, inputs, *extra):
        pairs, outputs = [], []
        for path in inputs:
            output = path.with_suffix(f".{mode}")
            pairs += ["--inputs", path, "--outputs", output]
            outputs.append(output)
        support.refract("run", model, "--mode", mode, *pairs, *extra)
        return [load_file(path) for path in outputs]

    def check(self, name, suffix):
        folder = self.folder / name
        if not folder.exists():
            support.export(name, folder)
        repository = self.folder / f"repo-{suffix}"
        support.add_model(repository, name, folder / f"{name}.{suffix}")
        inputs = []
        for batch in BATCHES:
            path = self.folder / f"{name}-{suffix}-{batch}.safetensors"
            safetensors_io.write(
                path,
                support.make_inputs(
                    folder / f"{name}.json", batch, self.seed + batch
                ),
            )
            inputs.append(path)
        whole, split, reference = (
            self.run_mode(repository / name, mode, inputs)
            for mode in ("whole", "split", "reference")
        )
        for batch, w, s, r in zip(BATCHES, whole, split, reference):
            with self.subTest(model=name, format=suffix, batch=batch):
                self.assertEqual(w.keys(), s.keys())
                self.assertEqual(w.keys(), r.keys())
                for key, scores in w.items():
                    self.assertEqual(scores.shape[0], batch)
                    self.assertEqual(scores.shape, r[key].shape)
                    # Bits, so that a NaN or a −0 does not slip through.
                    self.assertTrue(
                        torch.equal(
                            scores.view(torch.int32), s[key].view(torch.int32)
                        ),
                        f"split differs from whole in {key}",
                    )
                    error = (scores - r[key]).abs().max().item()
                    self.assertLessEqual(error, TOLERANCE)
                    if batch >= 33:
                        # A constant would agree with anything.
                        self.assertGreater(scores.std().item(), 1e-4)


def add_cases():
    for name in support.MODELS:
        for suffix in ("pt2", "pt"):
            def case(self, name=name, suffix=suffix):
                self.check(name, suffix)
            setattr(Parity, f"test_{name}_{suffix}", case)


add_cases()

if __name__ == "__main__":
    unittest.main()
