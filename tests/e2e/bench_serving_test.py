"""`refract bench serving` against a CPU node: what it sends and what it writes.

REFRACT_REPORT_SCREENSHOTS=FOLDER keeps pictures of the page.
"""

import base64
import csv
import json
import os
import pathlib
import re
import shutil
import tempfile
import unittest

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
        support.export("wide_deep", cls.folder / "wide_deep")
        cls.repository = cls.folder / "repo"
        support.add_model(
            cls.repository, "m", cls.folder / "wide_deep" / "wide_deep.pt2",
            method="all-cn",
        )
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


if __name__ == "__main__":
    unittest.main()
