"""HN parts of the zoo, translated for a GPU, on the emulated one.

`cuda_plan_model_check` translates the HN part of a model as it was exported,
imported and partitioned, and compares it with what the CPU computes. What a
GPU cannot run is refused by name.
"""

import os
import pathlib
import random
import re
import sys
import tempfile
import unittest

from models.zoo import safetensors_io
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
# Shares of the largest value: rounding of the data, through a whole model.
TOLERANCES = {"fp32": 1e-5, "tf32": 1e-2, "fp16": 1e-2, "bf16": 5e-2}
# DLRM-v3's users in a request, and its plans. Without a size per item the HN
# is not worth its messages.
USERS = (1, 2, 9)
PER_ITEM = {"history": 60, "user": 10}
SMALL_TABLES_MIB = 0.01


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
        return support.start_once(
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


class DlrmV3Test(unittest.TestCase):
    """Ragged users, whose rows mix: each size of a request has a program."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        folder = pathlib.Path(folder.name)
        seed = int(os.environ.get("REFRACT_TEST_SEED", random.randrange(2**31)))
        print(f"seed {seed} (repeat with REFRACT_TEST_SEED)")
        exported = support.export("dlrm_v3", folder / "dlrm_v3")
        cls.repository = folder / "repo"
        for suffix in ("pt2", "pt"):
            support.refract(
                "import", exported / f"dlrm_v3.{suffix}",
                "--repo", cls.repository, "--name", suffix,
                "--tables", exported / "tables",
                "--no-golden", "--sample", exported / "sample.safetensors",
            )
        cls.requests = []
        for i, users in enumerate(USERS):
            tensors = support.make_inputs(
                exported / "dlrm_v3.json", users, seed + i,
                bags="ragged" if users > 2 else "published",
            )
            if users > 2:
                # The first user has no history, the second no candidates.
                tensors["history_offsets"][1] = 0
                tensors["candidate_offsets"][2] = tensors["candidate_offsets"][1]
            path = folder / f"{users}.safetensors"
            safetensors_io.write(path, tensors)
            cls.requests += ["--inputs", path]

    def partition(self, model, *options):
        support.refract(
            "partition", self.repository / model, "--write", *options
        )

    def optimal(self, model, *options):
        printed = support.refract("inspect", self.repository / model).stdout
        sizes = []
        for name, per_item in PER_ITEM.items():
            symbol = re.search(rf"^  {name} +int64 +\[(\w+)\]", printed, re.M)[1]
            sizes += ["--size", f"{symbol}={per_item}"]
        self.partition(model, "--batch", 30, *sizes, *options)

    def check(self, model, *options):
        done = support.start_once(
            CHECK, self.repository, model, *options, check=False
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_requests_get_what_the_cpu_computes(self):
        for model in ("pt2", "pt"):
            plans = {
                "optimal": lambda: self.optimal(model),
                "small tables on the HN": lambda: self.optimal(
                    model, "--hn-table-mib", SMALL_TABLES_MIB
                ),
                "heuristic": lambda: self.partition(
                    model, "--method", "heuristic"
                ),
            }
            for plan, write in plans.items():
                with self.subTest(model=model, plan=plan):
                    write()
                    printed = self.check(model, *self.requests)
                    self.assertEqual(
                        printed.count("of the largest value"), len(USERS)
                    )

    def test_the_optimal_plan_in_every_type_needs_no_libtorch(self):
        self.optimal("pt2")
        for precision, tolerance in TOLERANCES.items():
            with self.subTest(precision=precision):
                printed = self.check(
                    "pt2", "--precision", precision, "--tolerance", tolerance,
                    "--sizes", "1,7", 1, 5,
                )
                self.assertNotIn("LibTorch", printed)
                for batch in (1, 5):
                    self.assertIn(f"history 7, user 7, batch {batch}", printed)


if __name__ == "__main__":
    sys.exit(unittest.main())
