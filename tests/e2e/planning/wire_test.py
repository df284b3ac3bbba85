"""Tensors that cross in forms of their own, through real CN and HN processes.

Each model is split in every form; the nodes serve the requests that the forms
were measured on. No score may differ from fp32's by more than the printed error,
and the transport must count the bytes that were predicted.
"""

import json
import os
import pathlib
import random
import re
import shutil
import tempfile
import unittest

import numpy as np
import torch
from safetensors.torch import load_file

from models.zoo import safetensors_io
from tests.e2e import support

try:
    import tritonclient.grpc as triton

    from tests.e2e.kserve_requests import infer_inputs
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

# Every input has a row per item.
MODELS = ("deepfm", "two_tower")
ITEMS = 270
USERS = 3
REQUESTS = 3
MESSAGE_BYTES = 64 << 20  # transport::Limits


class WireTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-wire-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        seed = int(os.environ.get("REFRACT_TEST_SEED", random.randrange(2**31)))
        print(f"seed {seed} (repeat with REFRACT_TEST_SEED)")
        generator = torch.Generator().manual_seed(seed)
        cls.repository = cls.folder / "repo"
        cls.requests = {}
        for model in MODELS:
            support.export(model, cls.folder / model)
            support.add_model(
                cls.repository, model, cls.folder / model / f"{model}.pt2"
            )
            cls.requests[model] = {}
            for kind in ("distinct", "repeated"):
                paths = []
                for i in range(REQUESTS):
                    tensors = support.make_inputs(
                        cls.folder / model / f"{model}.json", ITEMS, seed + i
                    )
                    if kind == "repeated":
                        rows = torch.randint(USERS, (ITEMS,), generator=generator)
                        # The user of a two-tower model comes once as it is.
                        tensors = {
                            name: tensor[rows] if len(tensor) == ITEMS else tensor
                            for name, tensor in tensors.items()
                        }
                    path = cls.folder / f"{model}-{kind}-{i}.safetensors"
                    safetensors_io.write(path, tensors)
                    paths.append(path)
                pairs = [
                    part
                    for path in paths
                    for part in ("--inputs", path, "--outputs", f"{path}.out")
                ]
                support.refract(
                    "run", cls.repository / model, "--mode", "whole", *pairs
                )
                cls.requests[model][kind] = paths

    def partition(self, model, kind, *options, **kwargs):
        samples = [
            part for path in self.requests[model][kind]
            for part in ("--sample", path)
        ]
        report = self.folder / "report.json"
        done = support.refract(
            "partition", self.repository / model, "--method", "heuristic",
            "--write", "--json", report, *samples, *options, **kwargs,
        )
        if done.returncode != 0:
            return done
        return json.loads(report.read_text())["wire"]

    def serve(self, model, kind):
        """(largest error, all bits equal, bytes up and down per request)"""
        hn = support.gpu_node(self.repository)
        self.addCleanup(hn.close)
        cn = support.cpu_node(self.repository, [hn.address])
        self.addCleanup(cn.close)
        with triton.InferenceServerClient(cn.address) as client:
            support.wait_until(
                lambda: client.is_model_ready(model), "the model is ready"
            )
            worst, same = 0.0, True
            for path in self.requests[model][kind]:
                answer = client.infer(model, infer_inputs(load_file(path)))
                for name, wanted in load_file(f"{path}.out").items():
                    found = answer.as_numpy(name)
                    difference = np.abs(
                        found.astype(np.float64) - wanted.numpy()
                    )
                    worst = max(worst, float(difference.max()))
                    same = same and found.tobytes() == wanted.numpy().tobytes()
        self.assertEqual(cn.stop(), 0)
        up, down = re.search(
            rf"{REQUESTS} requests sent, (\d+) bytes up, (\d+) bytes down",
            cn.output(),
        ).groups()
        return worst, same, int(up) / REQUESTS, int(down) / REQUESTS

    def check(self, model, kind, *options):
        wire = self.partition(model, kind, *options)
        worst, same, up, down = self.serve(model, kind)
        printed = max(o["max_abs_error"] for o in wire["outputs"])
        # The same kernels on the same machine: the same error. A GPU sums in
        # another order.
        self.assertLessEqual(worst, printed + (1e-6 if support.GPU else 0))
        self.assertLessEqual(up / wire["message_bytes_up"], 1.02)
        self.assertGreaterEqual(up / wire["message_bytes_up"], 0.98)
        self.assertLessEqual(down / wire["message_bytes_down"], 1.02)
        print(
            f"{model} {kind} {' '.join(options)}: off by {worst:.3g}, "
            f"{up:.0f} bytes up, predicted {wire['message_bytes_up']:.0f}, "
            f"plain {wire['plain_message_bytes_up']:.0f}"
        )
        return wire, same, up

    def test_fp32_is_bit_identical(self):
        for model in MODELS:
            with self.subTest(model=model):
                wire, same, up = self.check(
                    model, "distinct", "--wire-dtype", "fp32"
                )
                self.assertTrue(same or support.GPU)
                self.assertEqual(max(o["max_abs_error"] for o in wire["outputs"]), 0)

    def test_every_lossy_form_keeps_its_printed_error_and_bytes(self):
        for model in MODELS:
            for dtype in ("fp16", "bf16", "int8"):
                with self.subTest(model=model, dtype=dtype):
                    wire, same, up = self.check(
                        model, "distinct", "--wire-dtype", dtype
                    )
                    self.assertIn(dtype, {v["type"] for v in wire["up"]})
                    self.assertLess(up, wire["plain_message_bytes_up"])
                    self.assertFalse(same)

    def test_auto_keeps_the_bound(self):
        for bound in ("1e-2", "1e-4", "0"):
            with self.subTest(bound=bound):
                wire, same, _ = self.check(
                    "deepfm", "distinct", "--wire-dtype", "auto",
                    "--wire-error-bound", bound,
                )
                worst = max(o["max_abs_error"] for o in wire["outputs"])
                self.assertLessEqual(worst, float(bound))
                if bound == "0":
                    self.assertTrue(same or support.GPU)

    def test_equal_rows_are_sent_once_and_no_bit_tells(self):
        for model in MODELS:
            with self.subTest(model=model):
                wire, same, up = self.check(
                    model, "repeated", "--wire-dtype", "fp32"
                )
                self.assertTrue(same or support.GPU)
                self.assertTrue(any(v["unique_rows"] for v in wire["up"]))
                self.assertLess(up, 0.2 * wire["plain_message_bytes_up"])
                # A request without repeats pays an entry per tensor at most.
                worst, same, more, _ = self.serve(model, "distinct")
                self.assertTrue(same or support.GPU)
                self.assertLessEqual(
                    more,
                    wire["plain_message_bytes_up"] + 64 + 32 * len(wire["up"]),
                )

    def test_equal_rows_and_int8_together(self):
        for model in MODELS:
            with self.subTest(model=model):
                wire, _, up = self.check(
                    model, "repeated", "--wire-dtype", "int8"
                )
                self.assertLess(up, 0.15 * wire["plain_message_bytes_up"])

    def test_a_bound_that_is_passed_is_named(self):
        done = self.partition(
            "deepfm", "distinct", "--wire-dtype", "int8",
            "--wire-error-bound", "1e-9", check=False,
        )
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(
            done.stderr,
            r"--wire-error-bound 1e-09: output \S+ is off by up to .* tensor "
            r"\S+ as int8",
        )
        self.assertEqual(len(done.stderr.strip().splitlines()), 1)

    def test_samples_that_do_not_fit_are_named(self):
        other = self.requests["two_tower"]["distinct"][0]
        done = support.refract(
            "partition", self.repository / "deepfm", "--method", "heuristic",
            "--sample", other,
            check=False,
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn(str(other), done.stderr)
        done = support.refract(
            "partition", self.repository / "deepfm", "--method", "heuristic",
            "--wire-dtype", "fp8",
            check=False,
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("--wire-dtype fp8", done.stderr)

    def test_an_edited_plan_is_refused(self):
        self.partition("deepfm", "distinct", "--wire-dtype", "fp16")
        (plan,) = (self.repository / "deepfm").glob("*/split_plan.pb")
        good = plan.read_bytes()
        self.addCleanup(plan.write_bytes, good)
        # One more entry of up_forms: field 7, {type: 1}; of a type that
        # nobody knows; and of down_forms, with unique rows.
        for added, words in (
            (b"\x3a\x02\x08\x01", "wire forms for"),
            (b"\x3a\x02\x08\x63", "wire type 99"),
            (b"\x42\x02\x10\x01", "wire forms for"),
        ):
            plan.write_bytes(good + added)
            path = self.requests["deepfm"]["distinct"][0]
            done = support.refract(
                "run", self.repository / "deepfm", "--mode", "split",
                "--inputs", path, "--outputs", self.folder / "out",
                check=False,
            )
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)

    def test_a_request_longer_than_a_message_goes_in_pieces(self):
        wire = self.partition("deepfm", "distinct", "--wire-dtype", "fp32")
        items = int(1.5 * MESSAGE_BYTES / (wire["message_bytes_up"] / ITEMS))
        path = self.folder / "long.safetensors"
        tensors = support.make_inputs(
            self.folder / "deepfm" / "deepfm.json", items, 1
        )
        safetensors_io.write(path, tensors)
        support.refract(
            "run", self.repository / "deepfm", "--mode", "whole",
            "--inputs", path, "--outputs", f"{path}.out",
        )
        hn = support.gpu_node(self.repository)
        self.addCleanup(hn.close)
        cn = support.cpu_node(self.repository, [hn.address])
        self.addCleanup(cn.close)
        with triton.InferenceServerClient(cn.address) as client:
            support.wait_until(
                lambda: client.is_model_ready("deepfm"), "the model is ready"
            )
            answer = client.infer("deepfm", infer_inputs(tensors))
        for name, wanted in load_file(f"{path}.out").items():
            # A piece has another batch: its products may be summed otherwise.
            np.testing.assert_allclose(
                answer.as_numpy(name), wanted.numpy(), rtol=0, atol=1e-6
            )
        self.assertEqual(cn.stop(), 0)
        sent, up = map(int, re.search(
            r"(\d+) requests sent, (\d+) bytes up", cn.output()
        ).groups())
        self.assertGreater(up, MESSAGE_BYTES)
        self.assertIn(sent, (2, 3))

    def test_without_samples_requests_are_drawn_by_the_seed(self):
        lines = []
        for seed in ("7", "7", "8"):
            done = support.refract(
                "partition", self.repository / "deepfm", "--method", "heuristic",
                "--write", "--wire-dtype", "int8", "--wire-seed", seed, "--batch", "64",
            )
            self.assertIn(f"seed {seed}", done.stdout)
            lines.append(re.findall("output .*", done.stdout))
        self.assertEqual(lines[0], lines[1])
        self.assertNotEqual(lines[0], lines[2])


if __name__ == "__main__":
    unittest.main()
