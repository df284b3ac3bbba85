"""More requests at once than a GPU node takes wait at the CPU node, by their
priorities; a request at which GPU nodes end is not handed to the next ones.
"""

import os
import pathlib
import shutil
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

# One request takes some milliseconds of the GPU node, so that most of them wait:
# more than it has places for.
WIDTH, LAYERS, ROWS = 512, 8, 32
CLIENTS = 256
PATIENCE_S = 10
DEADLINE_S = 60


class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layers = [torch.nn.Linear(2, WIDTH), torch.nn.ReLU()]
        for _ in range(LAYERS):
            layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1))

    def forward(self, x):
        return self.layers(x)


class Deployment:
    """The model, and requests to a CPU node (`stub`)."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-overload-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.repository = cls.folder / "repo"
        cls.model = Deep().eval()
        sample = {"x": torch.randn(ROWS, 2)}
        torch.jit.trace(cls.model, sample["x"]).save(str(cls.folder / "deep.pt"))
        support.write_tensors(cls.folder / "sample.safetensors", sample)
        for name in ("deep", "other", "levels"):
            support.refract(
                "import", cls.folder / "deep.pt", "--repo", cls.repository,
                "--name", name, "--no-golden", "--sample", cls.folder / "sample.safetensors",
            )
            support.refract("partition", cls.repository / name, "--method", "all-hn", "--write")

        with open(cls.repository / "levels" / "config.pbtxt", "a") as config:
            config.write(
                "dynamic_batching { priority_levels: 2 default_priority_level: 2 }\n"
            )

    def send(self, model, rows=ROWS, timeout=DEADLINE_S, priority=0):
        x = torch.randn(rows, 2)
        request = request_of(model, {"x": x})
        if priority:
            request.parameters["priority"].uint64_param = priority
        call = self.stub.ModelInfer.future(request, timeout=timeout)
        return x, call

    def check(self, x, call):
        scores = torch.frombuffer(
            bytearray(call.result().raw_output_contents[0]), dtype=torch.float32
        )
        with torch.no_grad():
            torch.testing.assert_close(
                scores, self.model(x).reshape(-1), atol=1e-5, rtol=0
            )


class Overload(Deployment, unittest.TestCase):
    def setUp(self):
        self.hn = support.gpu_node(self.repository)
        self.addCleanup(self.hn.close)
        self.cn = support.cpu_node(self.repository, [self.hn.address])
        self.addCleanup(self.cn.close)
        channel = grpc.insecure_channel(self.cn.address)
        self.addCleanup(channel.close)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        support.wait_until(
            lambda: self.stub.ServerReady(service_pb2.ServerReadyRequest()).ready,
            "the CN is ready",
        )

    def test_many_clients_at_once_are_all_answered(self):
        # Beside another model, so that each has a quota at the GPU node.
        sent = [
            self.send("deep" if i % 4 else "other", timeout=PATIENCE_S)
            for i in range(CLIENTS)
        ]
        for x, call in sent:
            self.check(x, call)


    def test_requests_of_the_first_priority_overtake(self):
        ended = []

        def note(level):
            return lambda _: ended.append(level)

        # The GPU node needs seconds for those of the default priority, whose
        # deadlines are earlier.
        calls = []
        for level, count in ((0, 200), (1, 10)):
            for _ in range(count):
                calls.append(self.send("levels", rows=16 * ROWS, priority=level))
                calls[-1][1].add_done_callback(note(level))
        for x, call in calls:
            self.check(x, call)
        support.wait_until(lambda: len(ended) == 210, "all are noted")
        last = len(ended) - 1 - ended[::-1].index(1)
        self.assertLess(last, 170, ended)
        wrong = request_of("levels", {"x": torch.randn(ROWS, 2)})
        wrong.parameters["priority"].string_param = "high"
        with self.assertRaises(grpc.RpcError) as caught:
            self.stub.ModelInfer(wrong, timeout=DEADLINE_S)
        self.assertIn("'priority' must be an integer", caught.exception.details())


def cpu_seconds(node):
    fields = pathlib.Path(f"/proc/{node.process.pid}/stat").read_text()
    ticks = fields.rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


class Quarantine(Deployment, unittest.TestCase):
    """Each GPU node is killed while it executes the same request."""

    def setUp(self):
        self.ports = support.free_ports(2)
        self.cn = support.cpu_node(
            self.repository, [f"127.0.0.1:{port}" for port in self.ports]
        )
        self.addCleanup(self.cn.close)
        channel = grpc.insecure_channel(self.cn.address)
        self.addCleanup(channel.close)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def start_node(self, port):
        node = support.gpu_node(self.repository, port=port)
        self.addCleanup(node.close)
        support.wait_until(
            lambda: self.stub.ServerReady(service_pb2.ServerReadyRequest()).ready,
            "the CN is ready",
        )
        return node

    def test_a_request_at_which_gpu_nodes_end_is_refused(self):
        # Seconds of execution.
        poison = torch.randn(2048 * ROWS, 2)
        request = request_of("deep", {"x": poison})
        messages = []
        for port in self.ports:
            node = self.start_node(port)
            idle = cpu_seconds(node)
            call = self.stub.ModelInfer.future(request, timeout=DEADLINE_S)
            support.wait_until(
                lambda: cpu_seconds(node) > idle + 0.3, "the request executes"
            )
            self.assertFalse(call.done())
            node.kill()
            self.assertEqual(call.code(), grpc.StatusCode.UNAVAILABLE)
            messages.append(call.details())
        self.assertNotIn("ended", messages[0])
        self.assertIn("GPU nodes ended 2 times", messages[1])
        node = self.start_node(self.ports[0])
        call = self.stub.ModelInfer.future(request, timeout=DEADLINE_S)
        self.assertEqual(call.code(), grpc.StatusCode.UNAVAILABLE)
        self.assertIn("refused for 1m", call.details())
        # Other contents are served, by a node that goes on.
        self.check(*self.send("deep"))
        self.assertIsNone(node.process.poll())


if __name__ == "__main__":
    unittest.main()
