"""Golden requests: what import records, and what nodes do with it.

Oracle: PyTorch on the original file, which `refract import` asks, too. Wrong
answers are made by hand.
"""

import pathlib
import shutil
import tempfile
import time
import unittest

import torch
from safetensors.torch import load_file, save_file

from scripts.lib import nodes
from tests.e2e import support
from tests.e2e.operations import metrics_test

try:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    from tests.e2e.kserve_requests import infer_inputs
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

MODEL = "wide_deep"
BATCH = 6


class Scaled(torch.nn.Module):
    """Divides by the batch of the trace, which becomes a constant."""

    def forward(self, x):
        return x / float(x.shape[0])


class Golden(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-golden-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.source = support.export(MODEL, cls.folder / "source")
        cls.sample = cls.folder / "sample.safetensors"
        support.write_tensors(
            cls.sample, support.make_inputs(cls.source / f"{MODEL}.json", BATCH, 3)
        )
        cls.repository = cls.folder / "repo"
        cls.imported = cls.do_import(cls.repository)
        support.refract(
            "partition", cls.repository / MODEL, "--method", "heuristic", "--write"
        )

    @classmethod
    def do_import(cls, repository, *arguments, **kwargs):
        return support.refract(
            "import", cls.source / f"{MODEL}.pt2", "--repo", repository, "--name",
            MODEL, "--tables", cls.source / "tables", "--sample", cls.sample,
            *arguments, **kwargs,
        )

    def golden(self, version=1):
        return self.repository / MODEL / str(version) / "golden.safetensors"

    def copy(self):
        root = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "repo"
        shutil.copytree(self.repository, root)
        return root

    def test_import_records_the_answers_of_pytorch_at_several_batch_sizes(self):
        self.assertIn("batches of 6, 1, 3", self.imported.stdout)
        tensors = load_file(self.golden())
        expected = self.folder / "expected.safetensors"
        for index, rows in enumerate((6, 1, 3)):
            inputs = {
                name.removeprefix(f"{index}/inputs/"): tensor
                for name, tensor in tensors.items()
                if name.startswith(f"{index}/inputs/")
            }
            support.write_tensors(self.folder / "x.safetensors", inputs)
            support.refract(
                "run", self.repository / MODEL, "--mode", "reference", "--inputs",
                self.folder / "x.safetensors", "--outputs", expected,
            )
            for name, tensor in load_file(expected).items():
                recorded = tensors[f"{index}/outputs/{name}"]
                self.assertEqual(recorded.shape[0], rows)
                self.assertTrue(torch.equal(recorded, tensor))

    def test_expected_answers_are_verified_before_a_version_is_published(self):
        tensors = load_file(self.golden())
        files = []
        for index, rows in enumerate((6, 1)):
            request = {
                name.split("/", 2)[2]: tensor
                for name, tensor in tensors.items()
                if name.startswith(f"{index}/")
            }
            files.append(self.folder / f"expect{rows}.safetensors")
            save_file(request, files[-1])
        repository = self.folder / "expecting"
        done = self.do_import(
            repository, "--no-golden", "--expect", files[0], "--expect", files[1]
        )
        self.assertNotIn("another size", done.stdout)
        kept = load_file(repository / MODEL / "1" / "golden.safetensors")
        self.assertEqual(len(kept), len(request) * 2)
        done = self.do_import(
            self.folder / "one", "--no-golden", "--expect", files[0]
        )
        self.assertIn("a request of another size would show", done.stdout)
        wrong = load_file(files[1])
        wrong["output_0"] += 0.25
        save_file(wrong, files[1])
        done = self.do_import(
            repository, "--no-golden", "--expect", files[0], "--expect", files[1],
            check=False,
        )
        self.assertEqual(done.returncode, 2)
        for words in (str(files[1]), "'output_0'", "at [0", "the recorded answer is"):
            self.assertIn(words, done.stderr)
        self.assertFalse((repository / MODEL / "2").exists())

    def test_a_constant_that_equals_the_batch_is_named(self):
        x = torch.arange(14.0).reshape(7, 2)
        with torch.no_grad():
            module = torch.jit.freeze(torch.jit.trace(Scaled().eval(), x).eval())
        module.save(self.folder / "scaled.pt")
        support.write_tensors(self.folder / "seven.safetensors", {"x": x})
        arguments = (
            "import", self.folder / "scaled.pt", "--repo", self.folder / "scaled",
            "--name", "scaled", "--sample", self.folder / "seven.safetensors",
            "--no-golden",
        )
        done = support.refract(*arguments)
        self.assertIn("the constant 7", done.stdout)
        self.assertIn("--expect", done.stdout)
        # The answer for another size, which the note asks for.
        three = x[:3].clone()
        save_file(
            {"x": three, "output_0": three / 3}, self.folder / "three.safetensors"
        )
        done = support.refract(
            *arguments, "--expect", self.folder / "three.safetensors", check=False
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("three.safetensors", done.stderr)

    def test_nodes_answer_golden_requests_before_they_are_ready(self):
        hn = nodes.gpu_node(self.repository)
        self.addCleanup(hn.close)
        cn = nodes.cpu_node(self.repository, [hn.address], "--shadow-rate", "1")
        self.addCleanup(cn.close)
        client = triton.InferenceServerClient(cn.address)
        nodes.wait_until(client.is_server_ready, "the node is ready")
        cn.await_log("has answered its 3 check requests")
        inputs = infer_inputs(load_file(self.sample))
        times = []
        for _ in range(20):
            begin = time.monotonic()
            client.infer(MODEL, inputs)
            times.append((time.monotonic() - begin) * 1e3)
        print(f"first request {times[0]:.1f} ms, median {sorted(times)[10]:.1f} ms")
        statistics = client.get_inference_statistics(MODEL)
        self.assertEqual(statistics.model_stats[0].inference_count, 20 * BATCH)

        # Each of them is scored again, as long as there is room.
        def scored():
            series = metrics_test.parse(metrics_test.scrape(cn.metrics_url))
            return {
                outcome: metrics_test.total(
                    series, "refract_shadow_requests_total", outcome=outcome
                )
                for outcome in ("agrees", "differs", "dropped", "failed", "skipped")
            }

        nodes.wait_until(
            lambda: sum(scored().values()) == 20, "requests are scored again"
        )
        self.assertGreater(scored()["agrees"], 0)
        self.assertEqual(scored()["differs"] + scored()["failed"], 0)

    def test_a_version_with_other_answers_is_not_served(self):
        repository = self.copy()
        shutil.copytree(repository / MODEL / "1", repository / MODEL / "2")
        golden = repository / MODEL / "2" / "golden.safetensors"
        tensors = load_file(golden)
        tensors["0/outputs/output_0"][2] += 0.25
        golden.unlink()
        save_file(tensors, golden)
        hn = nodes.gpu_node(repository)
        self.addCleanup(hn.close)
        cn = nodes.cpu_node(repository, [hn.address], "--ready-when", "any")
        self.addCleanup(cn.close)
        client = triton.InferenceServerClient(cn.address)
        nodes.wait_until(client.is_server_ready, "version 1 is ready")
        answer = client.infer(MODEL, infer_inputs(load_file(self.sample)))
        response = answer.get_response()
        self.assertEqual(response.model_version, "1")
        self.assertEqual(response.parameters["newest_version"].int64_param, 2)
        # A damaged file is found by its digest; nothing is compared with it.
        with self.assertRaises(InferenceServerException) as caught:
            client.infer(
                MODEL, infer_inputs(load_file(self.sample)), model_version="2"
            )
        self.assertIn("golden.safetensors", caught.exception.message())


if __name__ == "__main__":
    unittest.main()
