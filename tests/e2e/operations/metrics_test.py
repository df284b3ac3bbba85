"""Metrics of both daemons, after a known number of requests of known kinds."""

import collections
import json
import math
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

from tests.e2e import support

try:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    from tests.e2e.kserve_requests import request_of
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

PROMTOOL = shutil.which("promtool") or shutil.which(
    "promtool", path=pathlib.Path(sys.executable).parent
)
NO_PROMTOOL = "promtool is missing (Debian: package prometheus)"
MONITORING = support.SOURCE / "deploy" / "monitoring"
ANSWERED, ROWS, INVALID, UNKNOWN, EXPIRED = 40, 3, 4, 5, 2
SPLIT_STAGES = {
    "decode", "cn_queue", "cn_pre", "gpu_node", "resume", "cn_post", "encode",
}


def scrape(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def parse(text):
    """{name: {frozenset of labels: value}}; fails on a line of another form."""
    metrics = collections.defaultdict(dict)
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        if not found:
            raise AssertionError(f"not of Prometheus's text format: {line}")
        name, labels, value = found.groups()
        labels = frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or ""))
        if labels in metrics[name]:
            raise AssertionError(f"twice: {line}")
        metrics[name][labels] = float(value)
    return metrics


# Only nodes with a token file that has quotas serve these: e2e/security.
OF_QUOTAS = {
    "refract_client_requests_total", "refract_client_refused_total",
    "refract_client_in_flight",
}
# Only nodes with --table-memory disk serve these: e2e/table_store.
OF_DISK = {
    "refract_row_cache_rows_total", "refract_table_reads_total",
    "refract_table_read_bytes_total",
}
# Only nodes with --deltas-kafka serve these: e2e/delta_topic.
OF_KAFKA = {
    "refract_delta_messages_total",
    "refract_delta_topic_behind",
    "refract_delta_topic_errors_total",
    "refract_delta_topic_up",
}
# Only nodes of a shard group serve these: e2e/shards.
OF_SHARDS = {"refract_lost_shard_ids_total", "refract_shard_look_ups_total"}


def documented():
    page = (support.SOURCE / "docs" / "reference" / "metrics.md").read_text()
    return set(re.findall(r"^\| `((?:nv|refract)_\w+)` \|", page, re.M))


def total(metrics, name, **labels):
    """Sum of the series that have these labels; fails if there are none."""
    wanted = set(labels.items())
    values = [v for have, v in metrics[name].items() if wanted <= have]
    if not values:
        raise AssertionError(f"no series of {name} with {labels}")
    return sum(values)


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-metrics-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.repository = cls.folder / "repo"
        support.export("dlrm", cls.folder / "dlrm")
        support.add_model(
            cls.repository, "dlrm", cls.folder / "dlrm" / "dlrm.pt2"
        )

    def setUp(self):
        self.hn = support.gpu_node(self.repository)
        self.addCleanup(self.hn.close)
        # Found in a file: that has metrics of its own.
        listed = self.folder / "nodes"
        listed.write_text(self.hn.address + "\n")
        # A tracer has metrics of its own, too; nothing is sampled.
        self.cn = support.cpu_node(
            self.repository, [f"file:{listed}"],
            "--trace-config", f"triton,file={self.folder / 'traces.jsonl'}",
            "--trace-config", "rate=0",
            # Requests that are scored again have metrics, too.
            "--shadow-rate", "0.5",
        )
        self.addCleanup(self.cn.close)
        channel = grpc.insecure_channel(self.cn.address)
        self.addCleanup(channel.close)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        support.wait_until(
            lambda: self.stub.ServerReady(service_pb2.ServerReadyRequest()).ready,
            "the CN is ready",
        )
        seed = int(os.environ.get("REFRACT_TEST_SEED", random.randrange(2**31)))
        print(f"seed {seed} (repeat with REFRACT_TEST_SEED)")
        self.tensors = support.make_inputs(
            self.folder / "dlrm" / "dlrm.json", ROWS, seed
        )

    def code_of(self, request, **options):
        with self.assertRaises(grpc.RpcError) as caught:
            self.stub.ModelInfer(request, **options)
        return caught.exception.code()

    def send_all(self):
        for _ in range(ANSWERED):
            self.stub.ModelInfer(request_of("dlrm", self.tensors))
        for _ in range(INVALID):
            broken = request_of("dlrm", dict(list(self.tensors.items())[1:]))
            self.assertEqual(
                self.code_of(broken), grpc.StatusCode.INVALID_ARGUMENT
            )
        for _ in range(UNKNOWN):
            self.assertEqual(
                self.code_of(request_of("no such model", self.tensors)),
                grpc.StatusCode.NOT_FOUND,
            )
        for _ in range(EXPIRED):
            late = request_of("dlrm", self.tensors)
            late.parameters["timeout"].int64_param = 1  # µs
            self.assertEqual(
                self.code_of(late), grpc.StatusCode.DEADLINE_EXCEEDED
            )

    def of_cn(self):
        """Once the last answer's stages are counted, just after it is sent."""
        found = {}

        def complete():
            found.update(text=scrape(self.cn.metrics_url))
            found["metrics"] = parse(found["text"])
            return ANSWERED == total(
                found["metrics"], "refract_stage_duration_seconds_count",
                stage="encode",
            )

        support.wait_until(complete, "all answers are counted", timeout=10)
        return found["metrics"], found["text"]

    def check_histograms(self, metrics, text):
        names = re.findall(r"^# TYPE (\w+) histogram$", text, re.M)
        self.assertGreater(len(names), 0)
        for name in names:
            for labels, count in metrics[f"{name}_count"].items():
                buckets = sorted(
                    (float(dict(have)["le"]), value)
                    for have, value in metrics[f"{name}_bucket"].items()
                    if {pair for pair in have if pair[0] != "le"} == labels
                )
                self.assertEqual(buckets[-1], (math.inf, count), name)
                values = [value for _, value in buckets]
                self.assertEqual(values, sorted(values), name)

    def check_by_promtool(self, text):
        if PROMTOOL is None:
            return
        done = subprocess.run(
            [PROMTOOL, "check", "metrics"], input=text, capture_output=True,
            text=True, timeout=60,
        )
        # Its remarks about Triton's names, which are as they are: counters
        # without _total, units in microseconds.
        remarks = [
            line for line in (done.stdout + done.stderr).splitlines()
            if line and not line.startswith("nv_inference_")
        ]
        self.assertEqual(remarks, [])

    def test_cpu_node_counts_requests_by_outcome_and_stage(self):
        self.send_all()
        metrics, text = self.of_cn()
        model = {"model": "dlrm", "version": "1"}
        for name, expected in {
            "nv_inference_request_success": ANSWERED,
            "nv_inference_count": ANSWERED * ROWS,
            "nv_inference_exec_count": ANSWERED,
            "nv_inference_pending_request_count": 0,
            "nv_inference_request_duration_histogram_us_count": ANSWERED,
            "nv_inference_queue_duration_histogram_us_count": ANSWERED,
            "refract_retries_total": 0,
            "refract_local_runs_total": 0,
            "refract_non_finite_answers_total": 0,
            "refract_model_ready": 1,
        }.items():
            self.assertEqual(total(metrics, name, **model), expected, name)
        for reason, expected in {
            "OTHER": INVALID, "REJECTED": EXPIRED, "BACKEND": 0, "CANCELED": 0,
        }.items():
            self.assertEqual(
                total(metrics, "nv_inference_request_failure", reason=reason),
                expected,
            )
        self.assertEqual(
            total(metrics, "refract_request_failures_total", reason="expired"),
            EXPIRED,
        )
        self.assertEqual(
            total(metrics, "refract_requests_unknown_model_total"), UNKNOWN
        )
        for stage in SPLIT_STAGES:
            self.assertEqual(
                total(
                    metrics, "refract_stage_duration_seconds_count",
                    stage=stage, **model,
                ),
                ANSWERED,
                stage,
            )
        # Stages follow each other without a gap. Decode and encode are before
        # and after what Triton counts.
        inside = sum(
            total(metrics, "refract_stage_duration_seconds_sum", stage=stage)
            for stage in SPLIT_STAGES - {"decode", "encode"}
        )
        whole = total(metrics, "nv_inference_request_duration_us") / 1e6
        self.assertAlmostEqual(inside / whole, 1, delta=0.05)
        self.assertLess(
            total(metrics, "refract_request_memory_bytes"),
            total(metrics, "refract_request_memory_limit_bytes"),
        )
        self.check_histograms(metrics, text)
        self.check_by_promtool(text)

    def test_gpu_node_and_links_count_what_crossed(self):
        self.send_all()
        cn, _ = self.of_cn()
        text = scrape(self.hn.metrics_url)
        hn = parse(text)
        model = {"model": "dlrm", "version": "1"}
        self.assertEqual(
            total(
                hn, "refract_gpu_node_requests_total", outcome="succeeded", **model
            ),
            ANSWERED,
        )
        self.assertEqual(
            total(hn, "refract_gpu_node_requests_total", **model), ANSWERED
        )
        executions = total(hn, "refract_gpu_node_execution_duration_seconds_count")
        self.assertEqual(executions, ANSWERED)
        self.assertEqual(
            total(hn, "refract_gpu_node_queue_duration_seconds_count"), ANSWERED
        )
        self.assertEqual(
            total(hn, "refract_gpu_node_batch_rows_sum"), ANSWERED * ROWS
        )
        self.assertEqual(
            total(hn, "refract_gpu_node_batch_requests_sum"), ANSWERED
        )
        self.assertEqual(
            total(hn, "refract_gpu_node_requests_received_total"), ANSWERED
        )
        self.assertEqual(total(hn, "refract_gpu_node_connections"), 1)
        self.assertEqual(total(hn, "refract_model_ready", **model), 1)
        # The GPU node's time is part of the time that the CPU node waited.
        inside = sum(
            total(hn, f"refract_gpu_node_{part}_duration_seconds_sum")
            for part in ("queue", "execution")
        )
        self.assertLess(
            inside,
            total(cn, "refract_stage_duration_seconds_sum", stage="gpu_node"),
        )
        node = {"gpu_node": self.hn.address}
        self.assertEqual(
            total(cn, "refract_link_connected", path="shm", **node), 1
        )
        self.assertEqual(
            total(cn, "refract_link_in_flight", path="shm", **node), 0
        )
        self.assertEqual(
            total(cn, "refract_link_requests_sent_total", **node), ANSWERED
        )
        self.assertGreater(total(cn, "refract_link_sent_bytes_total", **node), 0)
        self.check_histograms(hn, text)
        self.check_by_promtool(text)

    def test_the_page_lists_what_is_served(self):
        served = set()
        for node in (self.cn, self.hn):
            served |= set(re.findall(r"^# TYPE (\w+)", scrape(node.metrics_url), re.M))
        self.assertEqual(
            served, documented() - OF_QUOTAS - OF_DISK - OF_SHARDS - OF_KAFKA
        )

    def test_series_stay_the_same_whatever_clients_send(self):
        before = {
            (name, labels)
            for name, series in parse(scrape(self.cn.metrics_url)).items()
            for labels in series
        }
        self.send_all()
        after = {
            (name, labels)
            for name, series in self.of_cn()[0].items()
            for labels in series
        }
        self.assertEqual(after, before)

    def test_a_lost_gpu_node_shows(self):
        self.hn.kill()
        support.wait_until(
            lambda: total(
                parse(scrape(self.cn.metrics_url)), "refract_link_losses_total"
            ) == 1,
            "the loss is counted",
        )
        metrics = parse(scrape(self.cn.metrics_url))
        self.assertEqual(total(metrics, "refract_model_ready"), 0)
        self.assertEqual(total(metrics, "refract_link_connected"), 0)
        self.code_of(request_of("dlrm", self.tensors))
        metrics = parse(scrape(self.cn.metrics_url))
        self.assertEqual(
            total(metrics, "nv_inference_request_failure", reason="BACKEND"), 1
        )

    def test_only_loopback_can_reach_metrics_and_they_can_be_off(self):
        self.assertRegex(self.cn.metrics_url, r"^http://127\.0\.0\.1:\d+/metrics$")
        with self.assertRaises(urllib.error.HTTPError) as caught:
            scrape(self.cn.metrics_url.replace("/metrics", "/other"))
        self.assertEqual(caught.exception.code, 404)
        off = support.gpu_node(self.repository, "--metrics-port", "off")
        self.addCleanup(off.close)
        self.assertIsNone(off.metrics_url)

    def test_bad_ports_and_hosts_are_named(self):
        taken = socket.socket()
        self.addCleanup(taken.close)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for arguments, status, said in (
            (["--metrics-port", "x"], 2, "--metrics-port"),
            (["--metrics-port", "65536"], 2, "--metrics-port"),
            (["--metrics-port", port], 1, f"127.0.0.1:{port}"),
            (["--metrics-host", "192.0.2.1", "--metrics-port", 0], 2, "192.0.2.1"),
        ):
            for name, own in (
                ("refract-gpu-node", ["--host", "127.0.0.1", "--port", 0]),
                ("refract-cpu-node", ["--grpc-host", "127.0.0.1", "--grpc-port", 0]),
            ):
                done = support.start_once(
                    support.program(name), "--model-repository", self.repository,
                    *own, *arguments, check=False,
                )
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn(said, done.stderr.splitlines()[-1])


class Board(unittest.TestCase):
    """The Grafana board and the alert rules name metrics that exist."""

    def names_in(self, text):
        names = re.findall(r"\b(?:nv|refract)_[a-z_]+\w", text)
        return {re.sub(r"_(bucket|sum|count)$", "", n) if not n.endswith(
            ("exec_count", "inference_count")) else n for n in names}

    def test_board(self):
        board = json.loads((MONITORING / "grafana.json").read_text())
        for panel in board["panels"]:
            for target in panel["targets"]:
                names = self.names_in(target["expr"])
                self.assertNotEqual(names, set(), panel["title"])
                self.assertEqual(names - documented(), set(), panel["title"])

    def test_rules_name_documented_metrics(self):
        text = (MONITORING / "alerts.yml").read_text()
        for expression in re.findall(r"expr: ((?:\|\n(?: {10}.*\n)+)|.*)", text):
            self.assertEqual(self.names_in(expression) - documented(), set())

    @unittest.skipIf(PROMTOOL is None, NO_PROMTOOL)
    def test_rules_raise_the_alerts_that_they_should(self):
        done = subprocess.run(
            [PROMTOOL, "test", "rules", MONITORING / "alerts_test.yml"],
            capture_output=True, text=True, timeout=60,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
