"""HN parts of the zoo, translated for a GPU, on the emulated one.

`cuda_plan_model_check` translates the HN part of a model as it was exported,
imported and partitioned, and compares it with what the CPU computes. What a
GPU cannot run is refused by name.
"""

import pathlib
import sys
import tempfile
import unittest

from tests.e2e import support
from scripts.lib.nodes import BUILD

CHECK = BUILD / "tests" / "cuda_plan_model_check"
BATCHES = (1, 2, 33, 40)
# TorchScript where it writes what torch.export folds: numbers made of sizes,
# constants of another type.
SUFFIXES = {
    "dlrm": ("pt2",),
    "dlrm_dcnv2": ("pt2",),
    "wide_deep": ("pt2", "pt"),
    "deepfm": ("pt2",),
    "din": ("pt2", "pt"),
    "two_tower": ("pt2", "pt"),
}
# Of the largest value: rounding of the data, through a whole model.
TOLERANCES = {"fp32": 1e-5, "tf32": 1e-2, "fp16": 1e-2, "bf16": 5e-2}


class CudaPlanTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.repository = pathlib.Path(folder.name) / "repo"
        for model in support.MODELS:
            exported = support.export(model, pathlib.Path(folder.name) / model)
            for suffix in SUFFIXES[model]:
                support.add_model(
                    cls.repository, f"{model}_{suffix}",
                    exported / f"{model}.{suffix}",
                )

    def check(self, name, precision="fp32", batches=BATCHES, extra=()):
        return support.run(
            CHECK, self.repository, name, "--precision", precision,
            "--tolerance", TOLERANCES[precision], *extra, *batches,
            check=False,
        )

    def test_gives_what_the_cpu_gives(self):
        for model in support.MODELS:
            for suffix in SUFFIXES[model]:
                with self.subTest(model=model, suffix=suffix):
                    done = self.check(f"{model}_{suffix}")
                    self.assertEqual(
                        done.returncode, 0, done.stdout + done.stderr
                    )

    def test_every_type(self):
        for precision in ("tf32", "fp16", "bf16"):
            for model in ("dlrm", "dlrm_dcnv2"):
                with self.subTest(model=model, precision=precision):
                    done = self.check(f"{model}_pt2", precision, (1, 33))
                    self.assertEqual(
                        done.returncode, 0, done.stdout + done.stderr
                    )

    def test_ids_travel(self):
        for model in support.MODELS:
            with self.subTest(model=model):
                done = self.check(
                    f"{model}_pt2", extra=("--whole", "--verbose")
                )
                self.assertEqual(
                    done.returncode, 0, done.stdout + done.stderr
                )
                if model.startswith("dlrm"):
                    # All tables are read at once.
                    self.assertRegex(done.stdout, r"embedding_bag\S*: bags\n")
                if model == "wide_deep":
                    # Its 52 tables as well.
                    self.assertIn("\n8 kernels per request\n", done.stdout)
        for precision in ("tf32", "fp16", "bf16"):
            for model in ("dlrm", "dlrm_dcnv2"):
                with self.subTest(model=model, precision=precision):
                    done = self.check(
                        f"{model}_pt2", precision, (1, 33), ("--whole",)
                    )
                    self.assertEqual(
                        done.returncode, 0, done.stdout + done.stderr
                    )

    def test_each_length_of_a_history_has_a_program(self):
        for suffix in SUFFIXES["din"]:
            done = self.check(f"din_{suffix}")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            for length in (1, 3, 17):
                self.assertRegex(
                    done.stdout, rf"din_{suffix}, \w+ {length}, batch 33"
                )


if __name__ == "__main__":
    sys.exit(unittest.main())
