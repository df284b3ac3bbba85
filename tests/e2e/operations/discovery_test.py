"""GPU nodes come and go under load: found by DNS names and by a file, drained
by command."""

import json
import pathlib
import shutil
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import torch

from scripts.lib import nodes
from tests.e2e import support
from tests.e2e.dns_server import DnsServer

try:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    from tests.e2e.kserve_requests import request_of
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

ROWS = 16
SENDERS = 4
REFRESH_S = 0.2
# Longer than a CPU node needs to hear that a GPU node stops.
LAME_DUCK_S = 0.3
NAME = "hn.test"
SERVICE = "_refract._tcp.hn.test"


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        )

    def forward(self, x):
        return self.layers(x)


class Load:
    """Requests without a pause, whose scores are compared with PyTorch's."""

    def __init__(self, address, model):
        self.sent = 0
        self.failures = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._send, args=(address, model, seed))
            for seed in range(SENDERS)
        ]
        for thread in self._threads:
            thread.start()

    def _send(self, address, model, seed):
        x = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            expected = model(x).reshape(-1)
        request = request_of("layers", {"x": x})
        with grpc.insecure_channel(address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            while not self._stop.is_set():
                failure = None
                try:
                    answer = stub.ModelInfer(request, timeout=30)
                    scores = torch.frombuffer(
                        bytearray(answer.raw_output_contents[0]),
                        dtype=torch.float32,
                    )
                    if not torch.allclose(scores, expected, atol=1e-5, rtol=0):
                        failure = "wrong scores"
                except grpc.RpcError as error:
                    failure = f"{error.code()}: {error.details()}"
                with self._lock:
                    self.sent += 1
                    if failure:
                        self.failures.append(failure)

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join()


class DiscoveryTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-found-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.repository = cls.folder / "repo"
        torch.manual_seed(7)
        cls.model = Layers().eval()
        sample = {"x": torch.randn(ROWS, 2)}
        torch.jit.trace(cls.model, sample["x"]).save(str(cls.folder / "m.pt"))
        support.write_tensors(cls.folder / "sample.safetensors", sample)
        support.refract(
            "import", cls.folder / "m.pt", "--repo", cls.repository,
            "--name", "layers", "--no-golden", "--sample", cls.folder / "sample.safetensors",
        )
        support.refract(
            "partition", cls.repository / "layers", "--method", "all-hn",
            "--write",
        )

    def start_hn(self, host="127.0.0.1", port=0, metrics_port="off"):
        node = nodes.Node(
            "refract-gpu-node", "--model-repository", self.repository,
            "--host", host, "--port", port, "--lame-duck", LAME_DUCK_S,
            "--metrics-port", metrics_port,
        )
        self.addCleanup(node.close)
        return node

    def start_cn(self, source, *arguments):
        self.cn = support.cpu_node(
            self.repository, [source], "--gpu-nodes-refresh", REFRESH_S,
            *arguments,
        )
        self.addCleanup(self.cn.close)

    def wait_ready(self):
        with grpc.insecure_channel(self.cn.address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            support.wait_until(
                lambda: stub.ServerReady(service_pb2.ServerReadyRequest()).ready,
                "the CN is ready",
            )

    def start_load(self):
        self.wait_ready()
        self.load = Load(self.cn.address, self.model)
        self.addCleanup(self.load.stop)

    def metric(self, name):
        """{first label's value: value} of a metric of the CPU node."""
        with urllib.request.urlopen(self.cn.metrics_url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return {
            line.split('"')[1]: float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(name + "{")
        }

    def connected(self):
        return {
            node for node, up in self.metric("refract_link_connected").items() if up
        }

    def wait_for(self, addresses):
        """The CPU node is connected to these and knows no other."""
        support.wait_until(
            lambda: set(self.metric("refract_link_connected")) == set(addresses)
            and self.connected() == set(addresses),
            f"the CN is connected to {addresses}",
        )

    def wait_used(self, address):
        """Requests go there."""
        name = "refract_link_requests_sent_total"
        before = self.metric(name)[address]
        support.wait_until(
            lambda: self.metric(name)[address] > before + 5,
            f"{address} gets requests",
        )

    def check_load(self):
        self.load.stop()
        print(f"{self.load.sent} requests, {len(self.load.failures)} failed")
        self.assertGreater(self.load.sent, 100)
        self.assertEqual(self.load.failures[:5], [], self.cn.output()[-3000:])

    def rotate(self, publish, hosts, ports):
        """Nodes are replaced two by two, then all at once. `publish` tells the
        CPU node the addresses of the nodes that it should know."""
        places = [f"{host}:{port}" for host, port in zip(hosts, ports)]
        running = {}

        def start(i):
            running[i] = self.start_hn(hosts[i], ports[i])

        def stop(i):
            self.assertEqual(running.pop(i).stop(), 0)

        start(0)
        start(1)
        publish([places[0], places[1]])
        self.start_load()
        self.wait_for([places[0], places[1]])
        for leaves, joins in ((0, 2), (1, 3), (2, 0), (3, 1)):
            start(joins)
            stays = [i for i in running if i != leaves]
            publish([places[i] for i in stays])
            self.wait_for([places[i] for i in stays])
            self.wait_used(places[joins])
            stop(leaves)
        # All of them are replaced in one answer.
        others = [i for i in range(4) if i not in running]
        left = list(running)
        for i in others:
            start(i)
        publish([places[i] for i in others])
        self.wait_for([places[i] for i in others])
        for i in left:
            stop(i)
        # Restart of a node that stays listed: it says that it stops.
        stop(others[0])
        start(others[0])
        self.wait_for([places[i] for i in others])
        return [places[i] for i in others]

    def lines(self, text):
        return [line for line in self.cn.output().splitlines() if text in line]

    def test_a_dns_name(self):
        dns = DnsServer()
        self.addCleanup(dns.close)
        (port,) = support.free_ports(1)
        hosts = [f"127.0.0.{i}" for i in (2, 3, 4, 5)]
        self.start_cn(
            f"dns:{NAME}:{port}", "--dns-servers", f"127.0.0.1:{dns.port}",
            "--transport", "tcp",
        )

        def publish(places):
            dns.addresses[NAME] = [place.split(":")[0] for place in places]

        # Before there is such a name: not ready, and goes on asking.
        support.wait_until(lambda: dns.asked > 2, "the CN asks again")
        self.assertEqual(len(self.lines("no such name; the source is asked again")), 1)
        places = self.rotate(publish, hosts, [port] * 4)
        for mode, said in (
            ("nxdomain", "no such name"),
            ("empty", "no records of that type"),
            ("garbage", ""),
            ("silent", ""),
        ):
            dns.mode = mode
            failures = self.metric("refract_discovery_failures_total")
            (source,) = failures
            support.wait_until(
                lambda: self.metric("refract_discovery_failures_total")[source]
                >= failures[source] + 2,
                f"two failures: {mode}",
            )
            self.assertEqual(self.metric("refract_discovery_up"), {source: 0})
            self.assertEqual(self.connected(), set(places))
            stay = self.lines("of its last answer stay in use")
            self.assertIn(said, stay[-1])
            dns.mode = "answer"
            support.wait_until(
                lambda: self.metric("refract_discovery_up") == {source: 1},
                "answers again",
            )
        self.assertEqual(len(self.lines("of its last answer stay in use")), 4)
        self.check_load()

    def test_service_records(self):
        dns = DnsServer()
        self.addCleanup(dns.close)
        ports = support.free_ports(4)
        self.start_cn(
            f"srv:{SERVICE}", "--dns-servers", f"127.0.0.1:{dns.port}"
        )

        def publish(places):
            dns.services[SERVICE] = [
                (place.split(":")[0], int(place.split(":")[1]), 10)
                for place in places
            ] + [("spare.test", 1, 20)]

        self.rotate(publish, ["localhost"] * 4, ports)
        self.check_load()

    def test_a_file(self):
        listed = self.folder / "nodes"
        ports = support.free_ports(4)
        self.start_cn(f"file:{listed}")

        def publish(places):
            part = listed.with_suffix(".part")
            part.write_text("# GPU nodes\n" + "\n".join(places) + "\n")
            part.rename(listed)

        places = self.rotate(publish, ["127.0.0.1"] * 4, ports)
        # A half-written line, and no file: nothing changes.
        publish(places + ["127.0.0.1"])
        support.wait_until(
            lambda: self.lines("line 4: '127.0.0.1' is not HOST:PORT"),
            "the line is named",
        )
        listed.unlink()
        time.sleep(3 * REFRESH_S)
        self.assertEqual(self.connected(), set(places))
        self.assertEqual(len(self.lines("of its last answer stay in use")), 1)
        self.check_load()

    def test_drain_by_command(self):
        hns = [self.start_hn(metrics_port=0) for _ in range(2)]
        self.start_cn(",".join(hn.address for hn in hns))
        self.start_load()
        self.wait_for([hn.address for hn in hns])
        admin = [hn.metrics_url.split("/")[2] for hn in hns]

        def status(i):
            with urllib.request.urlopen(f"http://{admin[i]}/status") as answer:
                return json.load(answer)

        def ready(i):
            try:
                url = f"http://{admin[i]}/v2/health/ready"
                with urllib.request.urlopen(url) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        def sent(i):
            name = "refract_link_requests_sent_total"
            return self.metric(name)[hns[i].address]

        self.assertEqual(ready(0), (200, "ready\n"))
        for i in (0, 1, 0):
            done = support.refract("drain", admin[i])
            self.assertIn(f"{admin[i]} is drained after", done.stdout)
            self.assertEqual(
                ready(i), (503, "the node is drained by command\n")
            )
            drained = status(i)
            self.assertEqual(drained["state"], "drained")
            self.assertEqual(drained["requests_pending"], 0)
            # No request goes to that node any more; the other node gets all.
            before = sent(i)
            self.wait_used(hns[1 - i].address)
            self.assertEqual(sent(i), before)
            support.refract("undrain", admin[i])
            self.wait_used(hns[i].address)
            self.assertEqual(status(i)["state"], "serving")
            (model,) = status(i)["models"]
            self.assertEqual((model["name"], model["ready"]), ("layers", True))
        # Drained for good, then stopped: as an operator replaces a machine.
        support.refract("drain", admin[0])
        self.assertEqual(hns[0].stop(), 0)
        self.wait_used(hns[1].address)
        self.check_load()
        # All are drained: the CPU node says why it is not ready.
        support.refract("drain", admin[1])
        with grpc.insecure_channel(self.cn.address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = request_of("layers", {"x": torch.zeros(1, 2)})
            with self.assertRaises(grpc.RpcError) as caught:
                stub.ModelInfer(request, timeout=30)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAVAILABLE)
        self.assertIn("is drained by command", caught.exception.details())

    def test_drain_says_what_is_wrong(self):
        hn = self.start_hn(metrics_port=0)
        cn = support.cpu_node(self.repository, [hn.address])
        self.addCleanup(cn.close)
        for address, code, said in (
            (hn.address, 1, f"refract drain: {hn.address}: "),  # for CPU nodes
            (cn.metrics_url.split("/")[2], 2, "/drain: 404, metrics are at"),
            (f"127.0.0.1:{support.free_ports(1)[0]}", 1, "Connection refused"),
            ("nowhere", 2, "'nowhere' is not HOST:PORT"),
        ):
            done = support.refract("drain", address, check=False)
            self.assertEqual(done.returncode, code, done.stderr)
            (line,) = done.stderr.splitlines()
            self.assertIn(said, line)

    def test_bad_flags(self):
        for arguments, said in (
            (["--gpu-nodes", "dns:hn"], "'dns:hn' is not dns:NAME:PORT"),
            (["--gpu-nodes", "hn"], "'hn' is not HOST:PORT, dns:NAME:PORT"),
            (["--gpu-nodes", "file:"], "'file:' names no file"),
            (["--dns-servers", "no server"], "--dns-servers: 'no server' is not"),
            (["--gpu-nodes-refresh", "0"], "--gpu-nodes-refresh"),
        ):
            done = support.start_once(
                support.program("refract-cpu-node"),
                "--model-repository", self.repository, *arguments, check=False,
            )
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
