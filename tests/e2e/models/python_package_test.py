"""The wheel `refract`: a model exported with it is served, and its client asks.

The oracle is the same module in PyTorch with the values of its tables in memory.
"""

import importlib.util
import pathlib
import signal
import sys
import tempfile
import unittest

import numpy
import torch

from tests.e2e import support

try:
    from tritonclient.utils import InferenceServerException
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")
if importlib.util.find_spec("flit_core") is None:
    raise unittest.SkipTest("flit_core is missing")

ROWS, DIM, SEED = 5000, 16, 11
TOLERANCE = 1e-5  # of scores after the sigmoid


class Ranker(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.user = torch.nn.Embedding(ROWS, DIM)
        self.history = torch.nn.EmbeddingBag(
            ROWS, DIM, mode="sum", include_last_offset=True
        )
        self.unread = torch.nn.Embedding(ROWS, DIM)
        self.dense = torch.nn.Linear(4, DIM)
        self.top = torch.nn.Sequential(
            torch.nn.Linear(3 * DIM, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )

    def forward(self, dense, user, history, offsets):
        features = [self.dense(dense), self.user(user), self.history(history, offsets)]
        return torch.sigmoid(self.top(torch.cat(features, 1))).squeeze(1)


def request(batch):
    lengths = torch.randint(0, 9, (batch,))
    lengths[0] = 3
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return {
        "dense": torch.randn(batch, 4),
        "user": torch.randint(ROWS, (batch,)),
        "history": torch.randint(ROWS, (int(offsets[-1]),)),
        "offsets": offsets,
    }


def stopped(pid):
    """Whether every thread of the process is stopped by a signal."""
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/stat")
    return all(task.read_text().rpartition(") ")[2][0] == "T" for task in tasks)


class PythonPackage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="refract-wheel-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.refract = cls.installed()
        torch.manual_seed(SEED)
        cls.whole = Ranker().eval()
        cls.repository = cls.folder / "repo"
        out = cls.export()
        assert (out / "model.pt2").stat().st_size < 200_000, "tables are in the model file"
        support.add_model(cls.repository, "ranker", out / "model.pt2", golden=True)
        config = cls.repository / "ranker" / "config.pbtxt"
        config.write_text(
            config.read_text()
            + 'parameters { key: "out_of_range_ids" value { string_value: "zero" } }\n'
        )

    @classmethod
    def installed(cls):
        """The package as pip installs it from the wheel."""
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
        support.run(
            *pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", cls.folder,
            support.SOURCE / "python",
        )
        (wheel,) = cls.folder.glob("refract-*-py3-none-any.whl")
        site = cls.folder / "site"
        support.run(*pip, "install", "--no-deps", "--no-index", "--target", site, wheel)
        sys.path.insert(0, str(site))
        cls.addClassCleanup(sys.path.remove, str(site))
        import refract

        assert pathlib.Path(refract.__file__).is_relative_to(site), refract.__file__
        return refract

    @classmethod
    def export(cls):
        """As a job does whose tables do not fit in memory."""
        model = Ranker().eval()
        model.load_state_dict(cls.whole.state_dict())
        model.user.to("meta")
        model.history.to("meta")
        mapped = numpy.memmap(
            cls.folder / "user.bin", numpy.float32, "w+", shape=(ROWS, DIM)
        )
        mapped[:] = cls.whole.user.weight.detach()
        pieces = cls.whole.history.weight.detach().split(999)
        return cls.refract.export(
            model, request(5), cls.folder / "exported",
            tables={"user.weight": mapped, "history.weight": iter(pieces)},
        )

    def expect(self, answer, inputs):
        with torch.no_grad():
            expected = self.whole(**inputs).numpy()
        (scores,) = answer.outputs.values()
        self.assertEqual(scores.shape, expected.shape)
        self.assertLess(numpy.abs(scores - expected).max(), TOLERANCE)

    def test_scores_are_pytorchs_and_answers_say_how_they_came_about(self):
        gpu_node = support.gpu_node(self.repository)
        self.addCleanup(gpu_node.close)
        cpu_node = support.cpu_node(self.repository, [gpu_node.address], "--local-fallback")
        self.addCleanup(cpu_node.close)
        with self.refract.Client(cpu_node.address) as client:
            split = lambda: not client.infer("ranker", request(2), deadline=10).ran_locally
            support.wait_until(split, "the GPU node serves the model")
            for batch in (1, 7, 33):
                inputs = request(batch)
                answer = client.infer("ranker", inputs, deadline=30)
                self.expect(answer, inputs)
                self.assertEqual(answer.version, "1")
                self.assertEqual(
                    (answer.retries, answer.ran_locally, answer.replaced_ids), (0, False, 0)
                )
                self.assertIsNone(answer.newest_version)

            outside = request(7)
            outside["user"][:2] = ROWS + 5
            self.assertEqual(client.infer("ranker", outside).replaced_ids, 2)

            # A stopped node answers nothing, so that any deadline passes.
            cpu_node.process.send_signal(signal.SIGSTOP)
            support.wait_until(
                lambda: stopped(cpu_node.process.pid), "the CPU node is stopped"
            )
            with self.assertRaises(InferenceServerException) as caught:
                client.infer("ranker", inputs, deadline=0.05)
            cpu_node.process.send_signal(signal.SIGCONT)
            self.assertIn("DEADLINE_EXCEEDED", caught.exception.status())
            with self.assertRaises(InferenceServerException) as caught:
                client.infer("ranker", inputs, version="7", deadline=30)
            self.assertIn("7", caught.exception.message())
            with self.assertRaisesRegex(ValueError, "'user'"):
                client.infer("ranker", {**inputs, "user": ["a"]})

            gpu_node.kill()
            answer = client.infer("ranker", inputs, deadline=30)
            self.expect(answer, inputs)
            self.assertTrue(answer.ran_locally)


if __name__ == "__main__":
    unittest.main()
