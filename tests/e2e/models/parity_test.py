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

from models.zoo import programs, reference, safetensors_io
from tests.e2e import support

BATCHES = (1, 2, 33, 270, 1000)
# Published layer widths, whose weights are large enough for what only large
# constants meet: LibTorch merges them, archives store them apart.
WIDE_MODELS = ("dlrm", "dlrm_dcnv2")
WIDE_BATCHES = (1, 64)
WIDE_EXPORT = ("--rows-scale", "1", "--max-rows", "200")
# Absolute, after the sigmoid (the issue of every kernel that sums in another
# order than PyTorch's).
TOLERANCE = 1e-5


class Parity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-parity-"))
        cls.seed = int(os.environ.get("REFRACT_TEST_SEED", random.randrange(2**31)))
        print(f"seed {cls.seed} (repeat with REFRACT_TEST_SEED)")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def run_mode(self, model, mode, inputs):
        pairs, outputs = [], []
        for path in inputs:
            output = path.with_suffix(f".{mode}")
            pairs += ["--inputs", path, "--outputs", output]
            outputs.append(output)
        support.refract("run", model, "--mode", mode, *pairs)
        return [load_file(path) for path in outputs]

    def run_pytorch(self, file, inputs):
        """The model file in this process: a process each starts PyTorch anew."""
        program = programs.load(str(file), [])
        program.bind(safetensors_io.read_folder(file.parent / "tables"))
        outputs = [path.with_suffix(".pytorch") for path in inputs]
        for path, output in zip(inputs, outputs):
            reference.run(program, path, output)
        return [load_file(path) for path in outputs]

    def check(self, name, suffix, preset="tiny", batches=BATCHES):
        folder = self.folder / f"{name}-{preset}"
        if not folder.exists():
            extra = WIDE_EXPORT if preset == "default" else ()
            support.export(name, folder, *extra, preset=preset)
        repository = self.folder / f"repo-{preset}-{suffix}"
        support.add_model(repository, name, folder / f"{name}.{suffix}")
        inputs = []
        for batch in batches:
            path = folder / f"{suffix}-{batch}.safetensors"
            safetensors_io.write(
                path,
                support.make_inputs(
                    folder / f"{name}.json", batch, self.seed + batch
                ),
            )
            inputs.append(path)
        whole, split = (
            self.run_mode(repository / name, mode, inputs)
            for mode in ("whole", "split")
        )
        pytorch = self.run_pytorch(folder / f"{name}.{suffix}", inputs)
        for batch, w, s, r in zip(batches, whole, split, pytorch):
            with self.subTest(model=name, format=suffix, batch=batch,
                              preset=preset):
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

            def wide(self, name=name, suffix=suffix):
                self.check(name, suffix, "default", WIDE_BATCHES)
            if name in WIDE_MODELS:
                setattr(Parity, f"test_{name}_{suffix}_full_width", wide)


add_cases()

if __name__ == "__main__":
    unittest.main()
