"""Requests that are wrong at random: refused by name or answered, never a crash.

A CPU node serves models whose operators trust what they are given: bags of ids,
recurrent layers, attention, packed sequences in a scripted region. Every
request is a good one with values, lengths or sizes changed at random; PyTorch,
behind the same checks (tests/lib/refract_guards_module.so, so that it survives too),
says which of them have an answer, and which.
"""

import ctypes
import os
import pathlib
import random
import shutil
import tempfile
import unittest

import torch

from scripts.lib import nodes
from tests.e2e import support

try:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    from tests.e2e.kserve_requests import request_of
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

SEED = int(os.environ.get("REFRACT_TEST_SEED", random.randrange(2**31)))
REQUESTS = 120  # of each model
ROWS = 20
ODD = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, ROWS, 1000, 2**31, 2**62, 2**63 - 1)


class Bags(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.sums = torch.nn.EmbeddingBag(ROWS, 4, mode="sum", include_last_offset=True)
        self.most = torch.nn.EmbeddingBag(ROWS, 4, mode="max", include_last_offset=True)
        self.score = torch.nn.Linear(8, 1)

    def forward(self, ids, offsets):
        pooled = torch.cat([self.sums(ids, offsets), self.most(ids, offsets)], 1)
        return self.score(pooled)


class Sequence(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.items = torch.nn.Embedding(ROWS, 4)
        self.gru = torch.nn.GRU(4, 5, batch_first=True)
        self.lstm = torch.nn.LSTM(5, 4, batch_first=True)

    def forward(self, ids, state):
        steps, _ = self.gru(self.items(ids), state.unsqueeze(0))
        return self.lstm(steps)[0].mean(1)


class Attention(torch.nn.Module):
    def forward(self, query, key, value):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)


class Packed(torch.nn.Module):
    """Lengths that data decides: a region that LibTorch's interpreter runs."""

    def __init__(self):
        super().__init__()
        self.items = torch.nn.Embedding(ROWS, 4)
        self.bag = torch.nn.EmbeddingBag(ROWS, 4, mode="sum")

    def forward(self, ids, lengths):
        offsets = torch.cumsum(lengths, 0) - lengths
        if int(lengths.sum()) > 3:
            return self.bag(ids, offsets)
        return self.bag(ids, offsets) * 2 + lengths.unsqueeze(1)


def models():
    return {
        "bags": (Bags(), {
            "ids": torch.tensor([1, 2, 3, 4, 5]),
            "offsets": torch.tensor([0, 2, 2, 5]),
        }),
        "sequence": (Sequence(), {
            "ids": torch.randint(ROWS, (3, 6)), "state": torch.randn(3, 5),
        }),
        "attention": (Attention(), {
            "query": torch.randn(3, 2, 4, 8), "key": torch.randn(3, 2, 5, 8),
            "value": torch.randn(3, 2, 5, 8),
        }),
        "packed": (Packed(), {
            "ids": torch.tensor([1, 2, 3, 4, 5]), "lengths": torch.tensor([2, 0, 3]),
        }),
    }


def changed(tensor, dice):
    tensor = tensor.clone()
    if dice.random() < 0.35:
        sizes = list(tensor.shape)
        at = dice.randrange(len(sizes))
        sizes[at] = dice.choice([0, 1, 2, sizes[at] + 1, 3 * sizes[at], 300])
        flat = tensor.reshape(-1)
        count = torch.Size(sizes).numel()
        return flat.repeat(count // flat.numel() + 1)[:count].reshape(sizes)
    flat = tensor.view(-1)
    at = dice.randrange(flat.numel())
    if tensor.is_floating_point():
        flat[at] = dice.choice([float("nan"), float("inf"), -1e9, 0.0])
    else:
        flat[at] = dice.choice(ODD)
    return tensor


class HostileRequests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print("REFRACT_TEST_SEED", SEED)
        torch.manual_seed(SEED)
        torch.set_num_threads(1)
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-hostile-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.models = {}
        for name, (model, sample) in models().items():
            model = model.eval()
            script = torch.jit.script(model) if name == "packed" else torch.jit.trace(
                model, tuple(sample.values())
            )
            script.save(str(cls.folder / f"{name}.pt"))
            support.write_tensors(cls.folder / f"{name}.safetensors", sample)
            support.refract(
                "import", cls.folder / f"{name}.pt", "--repo", cls.folder / "repo",
                "--name", name, "--no-golden", "--sample", cls.folder / f"{name}.safetensors",
            )
            support.refract(
                "partition", cls.folder / "repo" / name, "--method", "all-cn",
                "--write",
            )
            cls.models[name] = (model, sample)
        module = nodes.BUILD / "tests/lib/refract_guards_module.so"
        ctypes.CDLL(str(module)).refract_guard_operators_1()
        cls.hn = support.gpu_node(cls.folder / "repo")
        cls.addClassCleanup(cls.hn.close)
        cls.cn = support.cpu_node(cls.folder / "repo", [cls.hn.address])
        cls.addClassCleanup(cls.cn.close)
        channel = grpc.insecure_channel(cls.cn.address)
        cls.addClassCleanup(channel.close)
        cls.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        support.wait_until(
            lambda: cls.stub.ServerReady(service_pb2.ServerReadyRequest()).ready,
            "the CN is ready",
        )

    def ask(self, name, tensors):
        """Its scores, or the RpcError."""
        try:
            answer = self.stub.ModelInfer(request_of(name, tensors), timeout=60)
        except grpc.RpcError as error:
            return error
        sizes = list(answer.outputs[0].shape)
        raw = answer.raw_output_contents[0]
        if not raw:
            return torch.zeros(sizes)
        return torch.frombuffer(bytearray(raw), dtype=torch.float32).reshape(sizes)

    def test_wrong_requests(self):
        for name, (model, sample) in self.models.items():
            dice = random.Random(f"{SEED}/{name}")
            for i in range(REQUESTS):
                tensors = dict(sample)
                for _ in range(dice.choice((1, 1, 2))):
                    at = dice.choice(list(tensors))
                    tensors[at] = changed(tensors[at], dice)
                    if tensors[at].numel() == 0:
                        break
                with self.subTest(name, i=i, seed=SEED, tensors=tensors):
                    self.check(name, model, sample, tensors)
            self.assertIsInstance(self.ask(name, sample), torch.Tensor)
        self.assertIsNone(self.cn.process.poll(), self.cn.output())

    def check(self, name, model, sample, tensors):
        try:
            with torch.no_grad():
                expected = model(*tensors.values())
        except (RuntimeError, IndexError, ValueError):
            expected = None
        got = self.ask(name, tensors)
        if isinstance(got, torch.Tensor):
            self.assertIsNotNone(expected, "PyTorch refuses it")
            self.assertEqual(got.shape, expected.shape)
            if not all(tensor.isfinite().all() for tensor in tensors.values()):
                # The order of sums decides which of them become NaN.
                both = got.isfinite() & expected.isfinite()
                got, expected = got[both], expected[both]
            torch.testing.assert_close(
                got, expected, rtol=1e-3, atol=1e-3, equal_nan=True
            )
            return
        self.assertEqual(
            got.code(), grpc.StatusCode.INVALID_ARGUMENT, got.details()
        )
        if expected is not None:
            self.check_strictness(sample, tensors, got.details())
        # The message names what is wrong: an input, a table, or the operator (of a region
        # the script) that refuses it.
        named = [
            *tensors, "table '", "script (", "embedding", "gru", "lstm",
            "attention",
        ]
        self.assertTrue(
            any(word in got.details() for word in named), got.details()
        )

    def check_strictness(self, sample, tensors, details):
        """PyTorch has an answer to the request that was refused."""
        if "is outside" in details:
            # PyTorch does not look at ids behind the last bag.
            ids = tensors["ids"]
            self.assertTrue(((ids < 0) | (ids >= ROWS)).any(), details)
            return
        # Only sizes that the model does not take, such as those that PyTorch
        # makes equal by repetition.
        reshaped = [at for at in tensors if tensors[at].shape != sample[at].shape]
        self.assertNotEqual(reshaped, [], details)
        self.assertRegex(details, "shape|size|batch|dimension|rows|limits")


if __name__ == "__main__":
    unittest.main()
