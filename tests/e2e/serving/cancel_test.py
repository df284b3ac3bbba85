"""Requests that their clients give up: the GPU node drops those that wait."""

import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import torch

from tests.e2e import support

try:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    from tests.e2e.kserve_requests import request_of
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

WIDTH = 1024
LAYERS = 8
# Of a request that keeps the GPU node busy, for about a second, and of one
# that waits behind it. Both are short messages, which stay in order.
SLOW_ROWS = 4096
ROWS = 2
SLOW = 4
GIVEN_UP = 25
# Given up before they were at the GPU node, or begun just then.
MISSED = 3

# A client that is killed. Its arguments: the CN's address and three requests,
# one that is slow, one that waits and one that the CN answers itself.
CLIENT = f"""
import sys, grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc
def read(path):
    return service_pb2.ModelInferRequest.FromString(open(path, "rb").read())
slow, waits, local = map(read, sys.argv[2:])
stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(sys.argv[1]))
calls = [stub.ModelInfer.future(slow) for _ in range({SLOW})]
for _ in range(3):
    stub.ModelInfer(local)
calls += [stub.ModelInfer.future(waits) for _ in range({GIVEN_UP})]
for _ in range(3):
    stub.ModelInfer(local)
print("sent", flush=True)
sys.stdin.read()
"""


class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layers = [torch.nn.Linear(2, WIDTH), torch.nn.ReLU()]
        for _ in range(LAYERS):
            layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1))

    def forward(self, x):
        return self.layers(x)


class Cancelling:
    """The two classes at the end run this over each transport."""

    transport = ""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-cancel-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.repository = cls.folder / "repo"
        cls.model = Deep().eval()
        sample = {"x": torch.randn(ROWS, 2)}
        torch.jit.trace(cls.model, sample["x"]).save(str(cls.folder / "deep.pt"))
        support.write_tensors(cls.folder / "sample.safetensors", sample)
        for name, method in (("deep", "all-hn"), ("local", "all-cn")):
            support.refract(
                "import", cls.folder / "deep.pt", "--repo", cls.repository,
                "--name", name, "--no-golden", "--sample", cls.folder / "sample.safetensors",
            )
            support.refract("partition", cls.repository / name, "--method", method, "--write")

    def setUp(self):
        self.hn = support.gpu_node(self.repository)
        self.addCleanup(self.hn.close)
        self.cn = support.cpu_node(
            self.repository, [self.hn.address], "--transport", self.transport
        )
        self.addCleanup(self.cn.close)
        channel = grpc.insecure_channel(self.cn.address)
        self.addCleanup(channel.close)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        support.wait_until(
            lambda: self.stub.ServerReady(service_pb2.ServerReadyRequest()).ready,
            "the CN is ready",
        )
        self.slow = request_of("deep", {"x": torch.randn(SLOW_ROWS, 2)})
        self.waits = request_of("deep", {"x": torch.randn(ROWS, 2)})
        self.local = request_of("local", {"x": torch.randn(ROWS, 2)})

    def pass_through(self):
        """Comes back after what was sent before has left the CN's queue."""
        for _ in range(3):
            self.stub.ModelInfer(self.local)

    def check_rest(self, succeeded):
        """Other requests get right answers; the GPU node has counted the rest."""
        x = torch.randn(ROWS, 2)
        answer = self.stub.ModelInfer(request_of("deep", {"x": x}))
        scores = torch.frombuffer(
            bytearray(answer.raw_output_contents[0]), dtype=torch.float32
        )
        with torch.no_grad():
            torch.testing.assert_close(
                scores, self.model(x).reshape(-1), atol=1e-5, rtol=0
            )
        self.assertEqual(self.cn.stop(), 0, self.cn.output())
        self.assertEqual(self.hn.stop(), 0, self.hn.output())
        line = re.search(
            r"model 'deep' version 1: (\d+) succeeded.* (\d+) given up by",
            self.hn.output(),
        )
        self.assertLessEqual(int(line.group(1)), succeeded + 1 + MISSED, line.group(0))
        self.assertGreaterEqual(int(line.group(2)), GIVEN_UP - MISSED, line.group(0))

    def test_what_is_cancelled_while_it_waits_is_not_executed(self):
        slow = [self.stub.ModelInfer.future(self.slow) for _ in range(SLOW)]
        self.pass_through()
        waiting = [self.stub.ModelInfer.future(self.waits) for _ in range(GIVEN_UP)]
        self.pass_through()
        self.assertFalse(any(call.done() for call in slow + waiting))
        for call in waiting:
            call.cancel()
        for call in slow:
            call.result()
        self.check_rest(SLOW)

    def test_what_a_client_that_is_gone_has_left_behind_is_not_executed(self):
        paths = []
        for name in ("slow", "waits", "local"):
            paths.append(self.folder / f"{name}.request")
            paths[-1].write_bytes(getattr(self, name).SerializeToString())
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, self.cn.address, *map(str, paths)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        with client:
            self.assertEqual(client.stdout.readline(), "sent\n")
            client.send_signal(signal.SIGKILL)
        self.check_rest(SLOW)


@unittest.skipIf(support.GPU, "a GPU executes the slow model in milliseconds")
class CancellingOverShm(Cancelling, unittest.TestCase):
    transport = "shm"


@unittest.skipIf(support.GPU, "a GPU executes the slow model in milliseconds")
class CancellingOverTcp(Cancelling, unittest.TestCase):
    transport = "tcp"


if __name__ == "__main__":
    unittest.main()
