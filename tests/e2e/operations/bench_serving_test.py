"""`refract bench serving` against a CPU node: what it sends and what it writes.

REFRACT_REPORT_SCREENSHOTS=FOLDER keeps pictures of the page.
"""

import base64
import csv
import hmac
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
import unittest
import urllib.request

import numpy
from safetensors.torch import load_file

from tests.e2e import chromium, support

try:
    from hdrh.log import HistogramLogReader
    from hdrh.histogram import HdrHistogram
except ImportError:
    HistogramLogReader = None


class Bench(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-bench-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.repository, _ = support.add_wide_deep(cls.folder)
        cls.cn = support.cpu_node(cls.repository, [])
        cls.addClassCleanup(cls.cn.close)

    def bench(self, *arguments, check=True, target=None):
        return support.refract(
            "bench", "serving", "--target", target or self.cn.address, "--model", "m",
            "--query-sizes", "fixed:3", *arguments, check=check,
        )

    def report(self, *arguments, **options):
        path = self.folder / "report.json"
        self.bench("--json", path, *arguments, **options)
        return json.loads(path.read_text())


class Outputs(Bench):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        files = {
            kind: cls.folder / f"run.{kind}"
            for kind in ("json", "csv", "hlog", "html")
        }
        cls.files = files
        cls.bench(
            cls, "--qps", 150, "--duration", 3, "--warmup", 0.5, "--slo-ms", 500,
            "--arrivals", "bursts:3,0.5,2", "--json", files["json"], "--csv",
            files["csv"], "--hlog", files["hlog"], "--report", files["html"],
        )
        cls.run_json = json.loads(files["json"].read_text())

    def test_csv_has_a_line_per_query(self):
        with open(self.files["csv"], encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), self.run_json["queries"])
        latencies = sorted(
            float(row["latency_ms"]) for row in rows if row["outcome"] == "OK"
        )
        self.assertEqual(len(latencies), self.run_json["succeeded"])
        self.assertAlmostEqual(
            latencies[-1], self.run_json["latency_ms"]["max"], places=2
        )
        self.assertEqual({row["items"] for row in rows}, {"3"})
        due = [float(row["due_s"]) for row in rows]
        self.assertEqual(due, sorted(due))
        self.assertTrue(0 <= due[0] and due[-1] < 3)

    @unittest.skipIf(HistogramLogReader is None, "hdrhistogram is not installed")
    def test_hdrhistogram_reads_the_log(self):
        total = HdrHistogram(1, 3600 * 10**9, 3)
        reader = HistogramLogReader(str(self.files["hlog"]), total)
        intervals = []
        while True:
            interval = reader.get_next_interval_histogram()
            if interval is None:
                break
            intervals.append(interval)
            total.add(interval)
        reader.close()
        self.assertEqual(len(intervals), 3)
        self.assertEqual(total.get_total_count(), self.run_json["succeeded"])
        with open(self.files["csv"], encoding="utf-8") as file:
            latencies = sorted(
                float(row["latency_ms"]) for row in csv.DictReader(file)
                if row["outcome"] == "OK"
            )
        # The histogram has three digits. Its ranks are rounded to the nearest
        # query, those of the report up.
        for percentile in (1, 50, 90, 99, 99.9, 100):
            rank = int(percentile / 100 * len(latencies) + 0.5)
            exact = latencies[max(rank, 1) - 1]
            self.assertAlmostEqual(
                total.get_value_at_percentile(percentile) / 1e6, exact,
                delta=0.002 * exact + 0.001,
            )

    def test_curve_and_time_line_agree_with_the_figures(self):
        report = self.run_json
        curve = report["percentiles"]
        self.assertEqual(curve[-1], [1, report["latency_ms"]["max"]])
        self.assertEqual(dict(map(tuple, curve))[0.5], report["latency_ms"]["p50"])
        self.assertEqual(curve, sorted(curve))
        line = report["timeline"]
        self.assertEqual(sum(p["queries"] for p in line), report["queries"])
        self.assertEqual(sum(p["succeeded"] for p in line), report["succeeded"])

    def test_the_page_needs_nothing_else(self):
        page = self.files["html"].read_text(encoding="utf-8")
        around_data = re.sub(r'(?s)id="data">.*?</script>', "", page)
        for mark in ("src=", "href=", "url(", "@import", "fetch(", "{{"):
            self.assertNotIn(mark, around_data)

    @unittest.skipIf(chromium.find() is None, "Chromium is not installed")
    def test_the_page_draws_one_run_or_two(self):
        page = self.open(self.files["html"])
        self.assertEqual(page.evaluate("runs.length"), 1)
        for svg in ("percentiles", "latencies", "rates"):
            self.assertGreater(
                page.evaluate(f"document.querySelectorAll('#{svg} path.run0').length"),
                0, svg,
            )
        self.assertEqual(
            page.evaluate("document.querySelectorAll('path.run1').length"), 0
        )
        self.picture(page, "one-run")

        # Half the load, and half of it unanswered: beside the first run.
        other = self.folder / "other.json"
        self.bench("--qps", 75, "--duration", 3, "--warmup", 0.5, "--json", other)
        halved = json.loads(other.read_text())
        halved["errors"] = halved["queries"] // 2
        for point in halved["timeline"]:
            point["succeeded"] //= 2
        other.write_text(json.dumps(halved))
        both = self.folder / "both.html"
        support.refract(
            "bench", "compare", self.files["json"], other, "--report", both
        )
        page = self.open(both)
        self.assertEqual(page.evaluate("NAMES"), ["run", "other"])
        for svg in ("percentiles", "latencies", "rates"):
            self.assertGreater(
                page.evaluate(f"document.querySelectorAll('#{svg} path.run1').length"),
                0, svg,
            )
        figures = page.evaluate(
            "[...document.querySelectorAll('#figures tr')].map("
            "(row) => [...row.cells].map((cell) => cell.textContent))"
        )
        by_name = {cells[0]: cells[1:] for cells in figures}
        for key in ("p50", "p99", "p99.9", "max"):
            shown = float(by_name[f"latency {key}, ms"][0])
            exact = self.run_json["latency_ms"][key]
            self.assertAlmostEqual(shown, exact, delta=0.001 * exact)
        self.assertIn(
            "have no answer", page.evaluate("document.getElementById('warnings').innerText")
        )
        self.assertGreater(page.evaluate("document.querySelectorAll('rect.failed').length"), 0)
        self.picture(page, "two-runs")

    def test_compare_refuses_what_is_no_report(self):
        bad = self.folder / "bad.json"
        for text in ("{", "[]", '{"benchmark": "transport"}', '{"benchmark": "serving"}'):
            bad.write_text(text)
            done = support.refract(
                "bench", "compare", bad, "--report", self.folder / "bad.html",
                check=False,
            )
            self.assertEqual(done.returncode, 2, text)
            self.assertIn("bad.json: is no report", done.stderr)

    def open(self, path):
        page = chromium.Page()
        self.addCleanup(page.close)
        page.open(path.as_uri())
        self.assertEqual(page.happened("Runtime.exceptionThrown"), [])
        return page

    def picture(self, page, name):
        folder = os.environ.get("REFRACT_REPORT_SCREENSHOTS")
        if folder:
            data = page.call("Page.captureScreenshot", captureBeyondViewport=True)
            pathlib.Path(folder, f"{name}.png").write_bytes(
                base64.b64decode(data["data"])
            )


class JsonOnly(http.server.BaseHTTPRequestHandler):
    """KServe v2 as its text has it: no extension, tensors as JSON."""

    protocol_version = "HTTP/1.1"
    requests = []

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/v2/health/live":
            return self.answer(200, {"live": True})
        if self.path == "/v2":
            return self.answer(200, {"name": "plain", "extensions": []})
        if self.path == "/v2/models/plain/ready":
            return self.answer(200, {"ready": True})
        if self.path == "/v2/models/plain":
            return self.answer(200, {"name": "plain", "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
                {"name": "n", "datatype": "INT64", "shape": [-1]},
            ]})
        return self.answer(404, {"error": f"no {self.path}"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        request = json.loads(body)
        JsonOnly.requests.append(request)
        self.answer(200, {"model_name": "plain", "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1], "data": [1.5]}
        ]})

    def log_message(self, *arguments):
        pass


class Targets(Bench):
    LOAD = ("--qps", 100, "--duration", 1, "--warmup", 0.2)

    def check(self, *arguments, **options):
        report = self.report(*self.LOAD, *arguments, **options)
        self.assertEqual(report["succeeded"], report["queries"])
        self.assertGreater(report["queries"], 50)
        return report

    def http_address(self, cn=None):
        return f"127.0.0.1:{(cn or self.cn).http_port}"

    def test_http_has_the_answers_of_grpc(self):
        folders = {}
        for protocol, address in (("grpc", self.cn.address), ("http", self.http_address())):
            folders[protocol] = self.folder / protocol
            report = self.check(
                "--protocol", protocol, "--record", folders[protocol], target=address
            )
            self.assertIn("server_ms", report)
            self.assertEqual(report["response_bytes"] > 0, True)
        for i in range(4):
            for kind in ("request", "response"):
                name = f"{kind}_{i}.safetensors"
                self.assertEqual(
                    (folders["grpc"] / name).read_bytes(),
                    (folders["http"] / name).read_bytes(), name,
                )

    def test_queries_take_several_servers_in_turn(self):
        other = support.cpu_node(self.repository, [])
        self.addCleanup(other.close)

        def answered(cn):
            with urllib.request.urlopen(cn.metrics_url) as reply:
                text = reply.read().decode()
            found = re.search(r"^nv_inference_request_success{.*} (\d+)", text, re.M)
            return int(found.group(1))

        for protocol in ("grpc", "http"):
            nodes = (self.cn, other)
            before = [answered(node) for node in nodes]
            addresses = [
                node.address if protocol == "grpc" else self.http_address(node)
                for node in nodes
            ]
            report = self.check(
                "--protocol", protocol, "--target", addresses[1], target=addresses[0]
            )
            first, second = (
                answered(node) - old for node, old in zip(nodes, before)
            )
            # The request before the load goes to the first.
            self.assertEqual(first + second, report["sent_requests"] + 1)
            self.assertLessEqual(abs(first - second), 2)

    def test_processes_share_one_schedule(self):
        arguments = ("--arrivals", "constant", "--csv", self.folder / "all.csv")
        one = self.check(*arguments)
        three = self.check(*arguments, "--processes", 3)
        self.assertEqual(one["queries"], 100)
        self.assertEqual(three["queries"], 100)
        self.assertEqual(three["sent_requests"], 120)
        self.assertEqual(three["distinct_requests"], 120)
        self.assertEqual(three["options"]["processes"], 3)
        with open(self.folder / "all.csv", encoding="utf-8") as file:
            due = [float(row["due_s"]) for row in csv.DictReader(file)]
        for i, at in enumerate(due):
            self.assertAlmostEqual(at, i / 100, places=5)
        done = self.bench(
            *self.LOAD, "--processes", 2, "--wait", 0.2, check=False,
            target="127.0.0.1:1",
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("127.0.0.1:1: no connection", done.stderr)

    def test_tls_and_tokens(self):
        key, cert = self.folder / "key.pem", self.folder / "cert.pem"
        tokens = self.folder / "tokens"
        tokens.write_text("0123456789abcdef-secret\n")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-subj", "/CN=localhost", "-keyout", key, "-out", cert,
             "-addext", "subjectAltName=IP:127.0.0.1"],
            check=True, capture_output=True,
        )
        cn = support.cpu_node(
            self.repository, [], "--tls-cert", cert, "--tls-key", key,
            "--client-tokens", tokens,
        )
        self.addCleanup(cn.close)
        for protocol, address in (("grpc", cn.address), ("http", self.http_address(cn))):
            base = ("--protocol", protocol)
            self.check(
                *base, "--tls-ca", cert, "--token-file", tokens, target=address
            )
            for wrong, message in (
                (("--tls-ca", cert), "token"),
                (("--token-file", tokens), "no connection"),
                # The roots of this machine do not vouch for it.
                (("--token-file", tokens, "--tls"), "no connection"),
            ):
                done = self.bench(
                    *self.LOAD, *base, *wrong, "--wait", 1, check=False,
                    target=address,
                )
                self.assertEqual(done.returncode, 1, (protocol, wrong, done.stderr))
                self.assertIn(message, done.stderr)

    def test_a_server_of_plain_kserve_is_asked_in_json(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), JsonOnly)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        path = self.folder / "plain.json"
        support.refract(
            "bench", "serving", "--protocol", "http", "--target",
            f"127.0.0.1:{server.server_port}", "--model", "plain", "--query-sizes",
            "fixed:3", "--rows", "n=40", "--qps", 50, "--duration", 1,
            "--json", path,
        )
        report = json.loads(path.read_text())
        self.assertEqual(report["succeeded"], report["queries"])
        self.assertNotIn("server_ms", report)
        self.assertEqual(len(JsonOnly.requests), report["sent_requests"] + 1)
        for request in JsonOnly.requests:
            x, n = request["inputs"]
            self.assertEqual(x["shape"], [3, 2])
            self.assertEqual(len(x["data"]), 6)
            self.assertTrue(all(0 <= value < 40 for value in n["data"]))
            self.assertNotIn("parameters", x)
        done = self.bench(
            *self.LOAD, "--protocol", "http", check=False,
            target=f"127.0.0.1:{server.server_port}",
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("no /v2/models/m", done.stderr)

    def test_bad_usage_is_told_from_an_absent_server(self):
        for protocol in ("grpc", "http"):
            done = self.bench(
                *self.LOAD, "--protocol", protocol, "--wait", 0.2, check=False,
                target="127.0.0.1:1",
            )
            self.assertEqual(done.returncode, 1)
            self.assertIn("--target 127.0.0.1:1: no connection", done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)
        for wrong, message in (
            (("--protocol", "smtp"), "--protocol"),
            (("--processes", 0), "--processes"),
            (("--tls-cert", self.folder / "repo"), "--tls-cert"),
            (("--tls-ca", self.folder / "absent.pem"), "--tls-ca"),
            (("--arrivals", "never"), "--arrivals"),
        ):
            done = self.bench(*self.LOAD, *wrong, check=False)
            self.assertEqual(done.returncode, 2, wrong)
            self.assertIn(message, done.stderr)


class Recording(Bench):
    """A CPU node records; the recorded requests are sent again."""

    def record(self, *arguments):
        path = self.folder / "recorded.jsonl"
        cn = support.cpu_node(self.repository, [], "--record", path, *arguments)
        sent = self.folder / "sent"
        shutil.rmtree(sent, ignore_errors=True)
        try:
            report = self.report(
                "--qps", 100, "--duration", 1, "--warmup", 0, "--record", sent,
                "--record-count", 5, "--seed", 4, target=cn.address,
            )
            self.assertEqual(cn.stop(), 0)
        finally:
            cn.close()
        head, *lines = map(json.loads, path.read_text().splitlines())
        return report, path, head, lines

    def requests_in(self, folder):
        return [
            load_file(folder / f"request_{i}.safetensors") for i in range(5)
        ]

    def line_of(self, request, lines):
        """The line with its dense features: requests may overtake each other."""
        dense = {
            name: tensor.numpy().tobytes() for name, tensor in request.items()
            if tensor.dtype.is_floating_point
        }
        self.assertTrue(dense)
        found = [
            line for line in lines
            if dense.items() <= {
                i["name"]: base64.b64decode(i["data"]) for i in line["inputs"]
            }.items()
        ]
        self.assertTrue(found)
        return found[0]

    def test_the_replay_sends_what_was_recorded(self):
        report, path, head, lines = self.record("--record-rate", 1)
        self.assertEqual(head["refract_trace"], 1)
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        # The request before the load, too.
        self.assertEqual(len(lines), report["sent_requests"] + 1)
        times = [line["at_s"] for line in lines]
        self.assertEqual(times, sorted(times))
        self.assertLess(times[-1] - times[1], 1.5)
        self.assertEqual({line["items"] for line in lines}, {3})
        original = self.requests_in(self.folder / "sent")
        for request in original:
            line = self.line_of(request, lines)
            for name, tensor in request.items():
                (recorded,) = (i for i in line["inputs"] if i["name"] == name)
                self.assertEqual(recorded["shape"], list(tensor.shape))
                self.assertEqual(
                    base64.b64decode(recorded["data"]), tensor.numpy().tobytes()
                )
        # Without the request before the load, as fast again.
        trace = path.read_text().splitlines()
        path.write_text("\n".join(trace[:1] + trace[2:]))
        replayed = self.folder / "replayed"
        again = self.report(
            "--arrivals", f"trace:{path}", "--warmup", 0, "--record", replayed,
            "--record-count", 5,
        )
        self.assertEqual(again["sent_requests"], report["sent_requests"])
        self.assertEqual(again["succeeded"], again["queries"])
        self.assertLess(abs(again["qps"] - report["achieved_qps"]), 30)
        for request in self.requests_in(replayed):
            line = self.line_of(request, lines)
            for recorded in line["inputs"]:
                self.assertEqual(
                    base64.b64decode(recorded["data"]),
                    request[recorded["name"]].numpy().tobytes(),
                )

    def test_a_share_is_recorded(self):
        report, _, _, lines = self.record("--record-rate", 0.25)
        self.assertAlmostEqual(len(lines), (report["sent_requests"] + 1) / 4, delta=1)

    def test_ids_are_redacted_by_a_keyed_hash(self):
        secret = self.folder / "secret"
        secret.write_bytes(b"not told to anybody")
        _, path, head, lines = self.record(
            "--record-rate", 1, "--record-redact-key", secret
        )
        self.assertEqual(head["ids"], "redacted")
        config = (self.repository / "m" / "config.pbtxt").read_text()
        redacted = 0
        for request in self.requests_in(self.folder / "sent"):
            line = self.line_of(request, lines)
            for name, tensor in request.items():
                (recorded,) = (i for i in line["inputs"] if i["name"] == name)
                data = base64.b64decode(recorded["data"])
                if tensor.dtype.is_floating_point:
                    self.assertEqual(data, tensor.numpy().tobytes())
                    continue
                if f'"offsets.{name}"' in config:
                    self.assertEqual(data, tensor.numpy().tobytes())
                    continue
                rows = self.rows_of(config, name, tensor)
                columns = len(rows)
                expected = [
                    int.from_bytes(
                        hmac.digest(
                            secret.read_bytes(),
                            f"{name}/{i % columns}/{value}".encode(), "sha256",
                        )[:8],
                        "little",
                    ) % rows[i % columns]
                    for i, value in enumerate(tensor.flatten().tolist())
                ]
                self.assertEqual(
                    numpy.frombuffer(data, tensor.numpy().dtype).tolist(), expected
                )
                redacted += len(expected)
        self.assertGreater(redacted, 50)
        # The redacted ids are valid.
        again = self.report("--arrivals", f"trace:{path}", "--warmup", 0)
        self.assertEqual(again["succeeded"], again["queries"])

    def rows_of(self, config, name, tensor):
        """Rows of the table of each column of an ids input, by config.pbtxt."""
        text = re.search(
            rf'key: "ids.{name}"\s*value\s*{{\s*string_value: "([^"]*)"', config
        ).group(1)
        columns = tensor.shape[-1] if tensor.dim() > 1 else 1
        rows = [None] * columns
        for entry in text.split(";"):
            words = dict(word.split("=") for word in entry.split())
            of = [int(words["column"])] if "column" in words else range(columns)
            for column in of:
                rows[column] = min(int(words["rows"]), rows[column] or 1 << 62)
        return rows

    def test_the_file_is_bounded(self):
        _, path, _, lines = self.record("--record-rate", 1, "--record-size", "20KiB")
        self.assertLess(path.stat().st_size, 21 * 1024)
        self.assertGreater(len(lines), 5)

    def test_bad_flags(self):
        for flags, message in (
            (("--record-rate", 0.5), "--record"),
            (("--record", "/nowhere/at/all"), "/nowhere/at/all"),
            (("--record", self.folder / "x", "--record-rate", 2), "--record-rate"),
            (("--record", self.folder / "x", "--record-redact-key", "/absent"),
             "--record-redact-key"),
        ):
            done = support.start_once(
                support.program("refract-cpu-node"), "--model-repository",
                self.repository, "--grpc-port", "0", "--http-port", "off",
                "--metrics-port", "off", *flags, check=False,
            )
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(message, done.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
