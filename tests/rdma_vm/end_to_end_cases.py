"""The cases of end_to_end.py, which run in the guest: no PyTorch here.

Environment: REFRACT_E2E_FOLDER with the repository and the requests,
REFRACT_E2E_TRANSPORT the way between the nodes, and run_in_vm's variables.
"""

import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import subprocess
import threading
import time
import unittest

import numpy as np

from scripts.lib import nodes

MODEL = "dlrm"
# Absolute, after the sigmoid: kernels sum in another order than PyTorch.
TOLERANCE = 1e-5
HN_PORT = 8100
# For steps that take moments on a machine not emulated on a busy host.
PATIENCE_S = 120
# No request hangs: the most time that a lost node costs the client.
REQUEST_LIMIT_S = 30
REFUSED_PAUSE_S = 0.1
# Errors that a client may get while a node or a link is lost. Everything else,
# and above all a wrong score, is a defect.
LOST_NODE = {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
# Queue pairs of a connection: for short messages, and for reads of long ones.
QUEUE_PAIRS = 2


def write_request(path, inputs, scores):
    np.savez(path, scores=scores, **{f"in_{n}": a for n, a in inputs.items()})


def read_requests(folder):
    """[({input: array}, PyTorch's scores)], small ones first."""
    requests = []
    for path in sorted(folder.glob("request-*.npz")):
        with np.load(path) as arrays:
            inputs = {
                name.removeprefix("in_"): arrays[name]
                for name in arrays.files
                if name.startswith("in_")
            }
            requests.append((inputs, arrays["scores"]))
    return requests


def start(*starters):
    """Runs functions at once, as a daemon's start takes many seconds."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return [f.result() for f in [pool.submit(s) for s in starters]]


def sent_packets():
    """Of all RDMA devices."""
    total = 0
    for path in pathlib.Path("/sys/class/infiniband").glob(
        "*/ports/1/hw_counters/sent_pkts"
    ):
        total += int(path.read_text())
    return total


@contextlib.contextmanager
def loss(interfaces, percent):
    """netem on `interfaces`; yields a function that counts dropped packets."""

    def qdisc(action, interface, *more):
        return subprocess.run(
            ["tc", *more, "qdisc", action, "dev", interface],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    def dropped():
        return sum(
            int(qdisc("show", i, "-s").partition("dropped ")[2].split(",")[0])
            for i in interfaces
        )

    added = []
    try:
        for interface in interfaces:
            subprocess.run(
                ["tc", "qdisc", "add", "dev", interface, "root", "netem",
                 "loss", f"{percent}%"], check=True,
            )  # fmt: skip
            added.append(interface)
        yield dropped
    finally:
        for interface in added:
            subprocess.run(
                ["tc", "qdisc", "del", "dev", interface, "root"], check=True
            )


class Client:
    """One CPU node's client; answers are checked against the expected ones."""

    def __init__(self, address):
        import tritonclient.grpc as triton

        self._triton = triton
        self._client = triton.InferenceServerClient(address)

    def close(self):
        self._client.close()

    def ready(self):
        return self._client.is_server_ready()

    def scores(self, inputs):
        """Raises InferenceServerException."""
        tensors = []
        for name, array in inputs.items():
            dtype = {"float32": "FP32", "int64": "INT64"}[array.dtype.name]
            tensor = self._triton.InferInput(name, list(array.shape), dtype)
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        answer = self._client.infer(
            MODEL, tensors, client_timeout=REQUEST_LIMIT_S
        )
        (output,) = answer.get_response().outputs
        return answer.as_numpy(output.name)


class Load(threading.Thread):
    """Sends requests until it is told to stop; counts how each ended."""

    def __init__(self, client, requests, expected):
        super().__init__(daemon=True)
        self._client = client
        self._work = list(zip(requests, expected))
        self._ending = threading.Event()
        self.outcomes = collections.Counter()
        self.slowest_s = 0.0

    def run(self):
        while not self._ending.is_set():
            for (inputs, _), scores in self._work:
                begin = time.monotonic()
                outcome = self._send(inputs, scores)
                self.outcomes[outcome] += 1
                if outcome != "equal":
                    # Refusals of a lost node come at once: without a pause they
                    # take the processors that its successor starts on.
                    self._ending.wait(REFUSED_PAUSE_S)
                self.slowest_s = max(
                    self.slowest_s, time.monotonic() - begin
                )
                if self._ending.is_set():
                    return

    def _send(self, inputs, expected):
        from tritonclient.utils import InferenceServerException

        try:
            scores = self._client.scores(inputs)
        except InferenceServerException as error:
            return str(error.status()).removeprefix("StatusCode.")
        except ValueError:
            return "closed"  # the channel, by the end of a test
        return "equal" if scores.tobytes() == expected.tobytes() else "WRONG"

    def succeeded(self):
        return self.outcomes["equal"]

    def failed(self):
        return sum(self.outcomes.values()) - self.outcomes["equal"]

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._ending.set()
        self.join()


class EndToEnd(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(os.environ["REFRACT_E2E_FOLDER"])
        cls.transport = os.environ["REFRACT_E2E_TRANSPORT"]
        cls.verbs = cls.transport == "verbs"
        # The counter of the nodes' bytes. TCP between two addresses of one
        # machine takes the loopback interface.
        cls.interfaces = (
            os.environ["REFRACT_RDMA_INTERFACES"].split(",")
            if cls.verbs
            else ["lo"]
        )
        cls.requests = read_requests(cls.folder)
        # The way to compare with, and the one under test.
        other = "shm" if cls.transport == "tcp" else "tcp"
        cls.hn, cls.cn, baseline = start(
            cls.start_hn, cls.start_cn, lambda: cls.start_cn(other)
        )
        client = Client(baseline.address)
        nodes.wait_until(client.ready, f"CN over {other}", PATIENCE_S)
        cls.expected = [client.scores(inputs) for inputs, _ in cls.requests]
        client.close()
        baseline.close()
        # Once for all cases, each of which would wait as long.
        client = Client(cls.cn.address)
        cls.wait_ready(client)
        client.close()

    @classmethod
    def tearDownClass(cls):
        cls.cn.close()
        cls.hn.close()

    @classmethod
    def device(cls, index):
        """Options: each node its own device, so that packets take the wire."""
        if not cls.verbs:
            return []
        return [
            "--rdma-device",
            os.environ["REFRACT_RDMA_DEVICES"].split(",")[index],
        ]

    @classmethod
    def start_hn(cls):
        return nodes.gpu_node(
            cls.folder / "repo", *cls.device(1), port=HN_PORT
        )

    @classmethod
    def start_cn(cls, transport=None):
        return nodes.cpu_node(
            cls.folder / "repo", [f"127.0.0.1:{HN_PORT}"],
            "--transport", transport or cls.transport, *cls.device(0),
        )  # fmt: skip

    def setUp(self):
        self.connect()

    def connect(self):
        self.client = Client(self.cn.address)
        self.addCleanup(self.client.close)
        self.wait_ready(self.client)

    @classmethod
    def wait_ready(cls, client):
        try:
            nodes.wait_until(client.ready, "the CN is ready", PATIENCE_S)
        except AssertionError as error:
            logs = "".join(
                f"\n{node.name}:\n{node.output()[-3000:]}"
                for node in (cls.cn, cls.hn)
            )
            raise AssertionError(f"{error}{logs}") from None

    def load(self):
        """Every size but the largest, an emulated request of which takes seconds: of
        the others four go by WRITE and two are read. check_all has all of them."""
        return Load(self.client, self.requests[:-1], self.expected[:-1])

    def check_all(self):
        """Every request has the same answer as over the other transport."""
        for (inputs, reference), expected in zip(self.requests, self.expected):
            scores = self.client.scores(inputs)
            self.assertEqual(scores.tobytes(), expected.tobytes())
            np.testing.assert_allclose(scores, reference, atol=TOLERANCE, rtol=0)

    def check_verbs_used(self, action):
        """`action` makes the RDMA devices send."""
        before = sent_packets()
        action()
        if self.verbs:
            self.assertGreater(sent_packets() - before, len(self.requests))

    def queue_pairs_of_hn(self):
        """Queue pairs of its device. Not by process: the kernel names a thread."""
        if not self.verbs:
            return 0
        shown = subprocess.run(
            ["rdma", "-j", "resource", "show", "qp"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        device = os.environ["REFRACT_RDMA_DEVICES"].split(",")[1]
        return sum(
            pair["ifname"] == device and pair["type"] == "RC"
            for pair in json.loads(shown)
        )

    def wait_for_queue_pairs(self, count):
        """Queue pairs of an earlier connection go some time after it."""
        nodes.wait_until(
            lambda: self.queue_pairs_of_hn() == count,
            f"the HN has {count} queue pairs", PATIENCE_S,
        )  # fmt: skip

    def check_only(self, load, allowed):
        """No wrong answer, and no error other than those of a lost node."""
        print(f"  {dict(load.outcomes)}, slowest {load.slowest_s:.1f} s")
        self.assertLessEqual(set(load.outcomes), {"equal"} | allowed)
        self.assertGreater(load.succeeded(), 0)

    def test_scores_equal_those_over_another_transport(self):
        self.check_verbs_used(self.check_all)

    def test_loss_of_one_percent_costs_no_request(self):
        """Fifty answers in a row while packets are lost.

        In a row, because a guest that its host keeps from running for a second
        loses connections without any loss of packets. A transport to which a
        lost packet is a lost connection never comes that far.
        """
        start = None

        def outlived(load, dropped):
            nonlocal start
            now = (load.failed(), load.succeeded(), dropped())
            if start is None or now[0] != start[0]:
                start = now
            return now[1] >= start[1] + 50 and now[2] >= start[2] + 20

        with loss(self.interfaces, 1) as dropped:
            with self.load() as load:
                nodes.wait_until(
                    lambda: outlived(load, dropped),
                    "requests despite loss", PATIENCE_S,
                )  # fmt: skip
        self.check_only(load, LOST_NODE)
        self.check_verbs_used(self.check_all)

    def test_link_down_and_up(self):
        if not self.verbs:
            self.skipTest("the client needs the loopback interface as well")
        interface = self.interfaces[1]
        with self.load() as load:
            self.wait_for_successes(load)
            subprocess.run(["ip", "link", "set", interface, "down"], check=True)
            try:
                # Nodes that may only use verbs have no other way.
                nodes.wait_until(
                    lambda: load.failed() > 0, "a failed request", PATIENCE_S
                )
            finally:
                subprocess.run(
                    ["ip", "link", "set", interface, "up"], check=True
                )
            before = sent_packets()
            nodes.wait_until(
                lambda: sent_packets() > before + 100,
                "verbs are used again", PATIENCE_S,
            )  # fmt: skip
            self.wait_for_successes(load)
        self.check_only(load, LOST_NODE)
        self.check_verbs_used(self.check_all)

    def wait_for_successes(self, load):
        """Each of its requests is answered again."""
        count = len(self.requests) - 1
        begin = load.succeeded()
        nodes.wait_until(
            lambda: load.succeeded() >= begin + count,
            f"{count} more answers", PATIENCE_S,
        )  # fmt: skip

    def test_killed_hn(self):
        with self.load() as load:
            self.wait_for_successes(load)
            self.hn.kill()
            nodes.wait_until(
                lambda: load.failed() > 0, "a failed request", PATIENCE_S
            )
            nodes.wait_until(
                lambda: not self.client.ready(), "not ready", PATIENCE_S
            )
            self.hn.close()
            type(self).hn = self.start_hn()
            self.wait_ready(self.client)
            self.wait_for_successes(load)
        self.check_only(load, LOST_NODE)
        self.assertLess(load.slowest_s, REQUEST_LIMIT_S)
        self.check_verbs_used(self.check_all)

    def test_killed_cn(self):
        used = QUEUE_PAIRS if self.verbs else 0
        self.wait_for_queue_pairs(used)
        with self.load() as load:
            self.wait_for_successes(load)
            self.cn.kill()
            nodes.wait_until(
                lambda: load.failed() > 0, "a failed request", PATIENCE_S
            )
        self.check_only(load, LOST_NODE)
        # The HN noticed by itself and freed the memory that this CN could write to.
        self.wait_for_queue_pairs(0)
        self.cn.close()
        type(self).cn = self.start_cn()
        self.connect()
        self.check_verbs_used(self.check_all)
        self.wait_for_queue_pairs(used)
        self.assertIsNone(self.hn.process.poll())


if __name__ == "__main__":
    unittest.main()
