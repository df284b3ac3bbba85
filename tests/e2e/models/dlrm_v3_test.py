"""DLRM-v3, from its export to scores: ragged users through CN and HN.

Both formats run whole, split and as PyTorch computes them. The small tables
lie on the GPU node, so that ids travel instead of vectors, and a CN and an HN
serve what PyTorch gives.
"""

import functools
import json
import os
import pathlib
import random
import re
import shutil
import tempfile
import unittest

import torch
from safetensors.torch import load_file

from models.zoo import safetensors_io
from tests.e2e import support

try:
    import numpy as np
    import tritonclient.grpc as triton

    from tests.e2e.kserve_requests import infer_inputs
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

MODEL = "dlrm_v3"
SUFFIXES = ("pt2", "pt")
USERS = (1, 2, 9)
# Absolute, after the sigmoid.
TOLERANCE = 1e-5
# Tables of items and users have 200 rows of 64 bytes each, the others less.
SMALL_MIB = 0.01
SMALL = ("category_table", "position_table", "time_table")


class DlrmV3Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-dlrm-v3-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        seed = int(os.environ.get("REFRACT_TEST_SEED", random.randrange(2**31)))
        print(f"seed {seed} (repeat with REFRACT_TEST_SEED)")
        cls.exported = support.export(MODEL, cls.folder / MODEL)
        cls.repository = cls.folder / "repo"
        cls.plans = {}
        for suffix in SUFFIXES:
            support.refract(
                "import", cls.exported / f"{MODEL}.{suffix}",
                "--repo", cls.repository, "--name", suffix,
                "--tables", cls.exported / "tables",
                "--no-golden", "--sample", cls.exported / "sample.safetensors",
            )
            cls.plans[suffix] = cls.partition(
                suffix, "--hn-table-mib", SMALL_MIB, "--write"
            )
        cls.requests = []
        for i, users in enumerate(USERS):
            tensors = support.make_inputs(
                cls.exported / f"{MODEL}.json", users, seed + i,
                # A request without any candidate is refused.
                bags="ragged" if users > 2 else "published",
            )
            if users > 2:
                # The first user has no history, the second no candidates.
                tensors["history_offsets"][1] = 0
                tensors["candidate_offsets"][2] = tensors["candidate_offsets"][1]
            cls.requests.append(cls.folder / f"{users}.safetensors")
            safetensors_io.write(cls.requests[-1], tensors)

    @classmethod
    def partition(cls, suffix, *options):
        """What the command printed, and the optimal plan of its report. For
        30 candidates, 300 users and 1,800 steps, so that the HN is worth it."""
        report = cls.folder / "report.json"
        sizes = []
        for name, per_item in (("history", 60), ("user", 10)):
            sizes += ["--size", f"{cls.size_of(suffix, name)}={per_item}"]
        done = support.refract(
            "partition", cls.repository / suffix, "--json", report,
            "--batch", 30, *sizes, *options,
        )
        plans = json.loads(report.read_text())["partition"]["alternatives"]
        (plan,) = (plan for plan in plans if plan["method"] == "optimal")
        return done.stdout, plan

    @classmethod
    @functools.cache
    def size_of(cls, suffix, name):
        """The symbol of the size of an input."""
        printed = support.refract("inspect", cls.repository / suffix).stdout
        return re.search(rf"^  {name} +int64 +\[(\w+)\]", printed, re.M)[1]

    @classmethod
    @functools.cache
    def run_mode(cls, suffix, mode):
        pairs = []
        for path in cls.requests:
            pairs += ["--inputs", path, "--outputs", f"{path}.{mode}"]
        support.refract("run", cls.repository / suffix, "--mode", mode, *pairs)
        return [
            next(iter(load_file(f"{path}.{mode}").values()))
            for path in cls.requests
        ]

    def test_whole_and_split_are_pytorchs(self):
        for suffix in SUFFIXES:
            whole, split, reference = (
                self.run_mode(suffix, mode)
                for mode in ("whole", "split", "reference")
            )
            for w, s, r in zip(whole, split, reference, strict=True):
                self.assertTrue(torch.equal(w, s), suffix)
                torch.testing.assert_close(w, r, rtol=0, atol=TOLERANCE)
                self.assertGreater(float(w.std()), 0.01)

    def test_small_tables_lie_on_the_gpu_node(self):
        for suffix in SUFFIXES:
            with self.subTest(format=suffix):
                printed, plan = self.plans[suffix]
                (line,) = re.findall(r"tables on the HN: (.*)", printed)
                self.assertEqual(
                    sorted(line.split(", ")), [f"{name}.weight" for name in SMALL]
                )
                # Ids travel, and cost less than vectors would.
                self.assertIn("history_categories", plan["up"])
                _, without = self.partition(suffix)
                self.assertNotIn("history_categories", without["up"])
                self.assertLess(plan["bytes_up"], without["bytes_up"])

    def test_no_operator_is_opaque_or_unknown(self):
        for suffix in SUFFIXES:
            done = support.refract("inspect", self.repository / suffix, "--verbose")
            self.assertIn("unknown operators: none", done.stdout)
            # The attention of both layers is one step each.
            self.assertEqual(done.stdout.count("silu+mul+where+bmm"), 2)

    def test_a_size_may_be_that_of_every_request(self):
        model, symbol = self.repository / "pt2", self.size_of("pt2", "user")
        done = support.refract("inspect", model, "--size", f"{symbol}=3/request")
        self.assertIn(f"{symbol} 3 per request (--size)", done.stdout)
        for command, number in (
            ("inspect", "0/request"),
            ("partition", "-2/request"),
            ("partition", "/request"),
        ):
            size = f"{symbol}={number}"
            done = support.refract(command, model, "--size", size, check=False)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(f"--size {size}: ", done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)

    def test_requests_are_profiled_whole(self):
        """Candidates belong to users, so that they are not drawn one by one."""
        model, profile = self.repository / "pt2", self.folder / "profile"
        inputs = []
        for path in self.requests:
            inputs += ["--inputs", path]
        done = support.refract(
            "profile", model, "--repeat", 9, *inputs, "--output", profile
        )
        self.assertIn("whole requests of 3 files in turn", done.stdout)
        batches = sorted(
            load_file(path)["candidates"].numel() for path in self.requests
        )
        self.assertIn(f"batch {', '.join(map(str, batches))}, ", done.stdout)
        done = support.refract("partition", model, "--cn-profile", profile)
        self.assertIn("(the profile)", done.stdout)
        for options, error in (
            (inputs[:4], f"batch sizes are {batches[0]}, {batches[1]}, and costs"),
            ((*inputs, "--batch", "1,2,4"), "leave out --batch"),
        ):
            done = support.refract("profile", model, *options, check=False)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(error, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)

    def test_nodes_serve_pytorchs_scores(self):
        hn = support.gpu_node(self.repository)
        self.addCleanup(hn.close)
        cn = support.cpu_node(self.repository, [hn.address])
        self.addCleanup(cn.close)
        with triton.InferenceServerClient(cn.address) as client:
            for suffix in SUFFIXES:
                support.wait_until(
                    lambda: client.is_model_ready(suffix), "the model is ready"
                )
                wanted = self.run_mode(suffix, "reference")
                for path, scores in zip(self.requests, wanted, strict=True):
                    answer = client.infer(suffix, infer_inputs(load_file(path)))
                    (output,) = answer.get_response().outputs
                    found = answer.as_numpy(output.name)
                    np.testing.assert_allclose(
                        found, scores.numpy(), atol=TOLERANCE, rtol=0
                    )


if __name__ == "__main__":
    unittest.main()
