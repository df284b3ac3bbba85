"""Hedged requests while a GPU node stalls.

Oracle of scores: `refract run --mode reference`, LibTorch on the original file.
"""

import concurrent.futures
import pathlib
import re
import shutil
import signal
import tempfile
import threading
import time
import unittest
import urllib.request

import numpy as np

from models.zoo import safetensors_io
from tests.e2e import support

try:
    import tritonclient.grpc as triton

    from tests.e2e.kserve_requests import infer_inputs
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

MODEL = "wide_deep"
STALL_S = 0.2  # less than three heartbeats, so that the node stays ready
AFTER_MS = 20
# At once: alone, requests go to the node whose latest answers came soonest.
CLIENTS = 8


def metric(node, name, labels=""):
    with urllib.request.urlopen(node.metrics_url, timeout=30) as answer:
        text = answer.read().decode()
    found = re.findall(rf"^{name}(?:{{.*{labels}.*}})? (\S+)$", text, re.M)
    return sum(float(value) for value in found)


class Hedging(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-hedging-"))
        self.addCleanup(shutil.rmtree, self.folder)
        exported = support.export(MODEL, self.folder / MODEL)
        repository = self.folder / "repo"
        support.add_model(repository, MODEL, exported / f"{MODEL}.pt2")
        tensors = support.make_inputs(exported / f"{MODEL}.json", 3, 5)
        given, out = self.folder / "x.safetensors", self.folder / "y.safetensors"
        safetensors_io.write(given, tensors)
        support.refract(
            "run", repository / MODEL, "--mode", "reference", "--inputs", given,
            "--outputs", out,
        )
        self.expected = safetensors_io.read(out)["output_0"].numpy()
        self.inputs = infer_inputs(tensors)
        self.hns = [support.gpu_node(repository) for _ in range(2)]
        self.cns = {
            name: support.cpu_node(
                repository, [hn.address for hn in self.hns], *flags
            )
            for name, flags in (
                ("plain", ()), ("hedged", ("--hedge-after-ms", AFTER_MS))
            )
        }
        for node in (*self.cns.values(), *self.hns):
            self.addCleanup(node.close)

    def ask(self, cn, count):
        """Times and `hedged` of right answers, one request after the other."""
        times, hedged = [], 0
        with triton.InferenceServerClient(cn.address) as client:
            for _ in range(count):
                begin = time.monotonic()
                answer = client.infer(MODEL, self.inputs, client_timeout=60)
                times.append(time.monotonic() - begin)
                np.testing.assert_allclose(
                    answer.as_numpy("output_0"), self.expected, atol=1e-5, rtol=0
                )
                parameters = answer.get_response().parameters
                self.assertNotIn("retries", parameters)
                hedged += parameters["hedged"].bool_param
        return times, hedged

    def ask_for_a_while(self, cn):
        times, hedged, end = [], 0, time.monotonic() + 6
        while time.monotonic() < end:
            more, count = self.ask(cn, 10)
            times += more
            hedged += count
        return times, hedged

    def warm(self, cn):
        """Until both GPU nodes have answered requests of the CPU node."""
        support.wait_until(
            lambda: all(
                metric(cn, "refract_link_requests_sent_total", hn.address) > 0
                for hn in self.hns
            ) or not self.ask(cn, 5),
            "both GPU nodes got requests",
        )

    def test_answers_do_not_wait_for_a_stalled_node(self):
        stop = threading.Event()

        def stall():
            while not stop.wait(STALL_S):
                self.hns[0].process.send_signal(signal.SIGSTOP)
                stop.wait(STALL_S)
                self.hns[0].process.send_signal(signal.SIGCONT)

        slow = {}
        for name, cn in self.cns.items():
            self.warm(cn)
            stop.clear()
            thread = threading.Thread(target=stall)
            thread.start()
            with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
                found = list(pool.map(self.ask_for_a_while, [cn] * CLIENTS))
            stop.set()
            thread.join()
            times = [taken for more, _ in found for taken in more]
            hedged = sum(count for _, count in found)
            self.hns[0].process.send_signal(signal.SIGCONT)
            slow[name] = sum(taken > STALL_S / 2 for taken in times)
            print(
                f"{name}: {len(times)} requests, {slow[name]} slow, {hedged} hedged, "
                f"p99 {np.percentile(times, 99) * 1e3:.1f} ms"
            )
            won = metric(cn, "refract_hedges_total", 'outcome="won"')
            lost = metric(cn, "refract_hedges_total", 'outcome="lost"')
            if name == "plain":
                self.assertEqual((hedged, won, lost), (0, 0, 0))
                self.assertGreaterEqual(slow[name], 2)
            else:
                self.assertGreaterEqual(hedged, 1)
                self.assertGreaterEqual(won, 1)
                # 64 retries saved up at the start, and a tenth.
                requests = metric(cn, "nv_inference_request_success")
                self.assertLessEqual(won + lost, 64 + requests / 10)
            support.wait_until(
                lambda cn=cn: metric(cn, "refract_link_in_flight") == 0
                and metric(cn, "refract_requests_in_flight") == 0,
                "no copy of a request is left",
            )
        self.assertLess(slow["hedged"], slow["plain"])
        for node in (*self.cns.values(), *self.hns):
            self.assertEqual(node.stop(), 0, node.output())

    def test_bad_flags(self):
        for flags, words in (
            (("--hedge-quantile", "1"), "--hedge-quantile"),
            (("--hedge-after-ms", "0"), "--hedge-after-ms"),
            (("--hedge-quantile", "0.9", "--hedge-after-ms", "5"), "excludes"),
        ):
            done = support.start_once(
                support.program("refract-cpu-node"), "--model-repository",
                self.folder, *flags, check=False,
            )
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
