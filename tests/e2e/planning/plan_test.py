"""`refract plan`: the examples of docs/examples, and the page of a plan.

What the page holds is checked everywhere, that it draws itself where there is a
browser. REFRACT_REPORT_SCREENSHOTS=FOLDER keeps a picture.
"""

import json
import os
import pathlib
import re
import tempfile
import unittest

from scripts.lib.nodes import SOURCE
from tests.e2e import chromium, support

EXAMPLES = SOURCE / "docs" / "examples"
DATA = re.compile(
    r'(<script type="application/json" id="data">)(.*?)(</script>)', re.DOTALL
)


class PlanTest(unittest.TestCase):
    """The plan of the documented example, with few requests."""

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        folder = pathlib.Path(temporary.name)
        cls.page, report = folder / "plan.html", folder / "plan.json"
        cls.manifests = folder / "manifests"
        cls.manifests.mkdir()
        (cls.manifests / "20-old-cn.yaml").write_text(
            "# Written by refract plan, flavour kai: deployment 'old'.\n"
        )
        (cls.manifests / "mine.yaml").write_text("kind: ConfigMap\n")
        cls.out = support.refract(
            "plan", EXAMPLES / "ranker.json", "--seeds", 2, "--requests", 2000,
            "--no-sensitivity", "--report", cls.page, "--json", report,
            "--manifests", cls.manifests, "--image", "registry/refract:7",
            "--fabric-labels", "topograph", "--namespace", "serving",
        ).stdout
        cls.json = json.loads(report.read_text(encoding="utf-8"))
        cls.html = cls.page.read_text(encoding="utf-8")

    def test_the_answer_holds_and_nothing_can_be_left_out(self):
        service = self.json["services"][0]
        answer, slo = service["answer"], service["slo_p99_ms"]
        self.assertLessEqual(answer["at_design_rate"]["p99_ms"]["mean"], slo)
        for less in ("one_cn_less", "one_hn_less"):
            self.assertGreater(answer[less]["p99_ms"]["mean"], slo)
        # The demand on CN cores, from the file: 14.4 ms × 26,800/s.
        cores = answer["cns"] * answer["configuration"]["cn_cores"]
        self.assertGreater(cores, 14.4e-3 * 20000 * 1.34)
        self.assertLess(cores, 1.5 * 14.4e-3 * 20000 * 1.34)

    def test_the_page_needs_nothing_else(self):
        self.assertEqual(json.loads(DATA.search(self.html).group(2)), self.json)
        around_data = DATA.sub("", self.html)
        for mark in ("src=", "href=", "url(", "@import", "fetch(", "{{"):
            self.assertNotIn(mark, around_data)

    def test_the_manifests_have_the_counts_of_the_answer(self):
        service = self.json["services"][0]
        name, answer = service["name"], service["answer"]
        files = {path.name: path.read_text() for path in self.manifests.iterdir()}
        # Files of an earlier plan are gone, other files are not.
        self.assertEqual(
            set(files), {f"10-{name}-hn.yaml", f"20-{name}-cn.yaml", "mine.yaml"}
        )
        for role, count in (("10", answer["hns"]), ("20", answer["cns"])):
            (text,) = (t for f, t in files.items() if f.startswith(role))
            self.assertRegex(text, rf"(maxReplicas|  replicas): {count}\n")
            self.assertIn("image: registry/refract:7\n", text)
            self.assertIn("namespace: serving\n", text)
            self.assertIn("topologyKey: fabric.topograph.run/tier-1\n", text)
        cn = files[f"20-{name}-cn.yaml"]
        self.assertIn(f"srv:_refract._tcp.{name}-hn.serving.svc", cn)

    def test_bad_flags_of_manifests(self):
        for arguments, said in (
            (["--flavour", "kai"], "--flavour requires --manifests"),
            (["--manifests", "x", "--flavour", "helm"], "helm not in"),
            (["--manifests", self.page / "x"], "--manifests "),
        ):
            done = support.refract(
                "plan", EXAMPLES / "ranker.json", "--seeds", 1, "--requests",
                1000, "--no-sensitivity", *arguments, check=False,
            )
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr.splitlines()[-1])

    def test_manifests_that_cannot_be_written_leave_the_old_files(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            old = folder / "20-old-cn.yaml"
            old.write_text("# Written by refract plan, flavour kai: …\n")
            in_the_way = folder / f"20-{self.json['services'][0]['name']}-cn.yaml"
            in_the_way.mkdir()
            done = support.refract(
                "plan", EXAMPLES / "ranker.json", "--seeds", 1, "--requests",
                1000, "--no-sensitivity", "--manifests", folder, check=False,
            )
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(f"{in_the_way}: cannot be written", done.stderr)
            self.assertTrue(old.exists())

    def test_the_documented_loan(self):
        out = support.refract(
            "plan", "loan", EXAMPLES / "promotion.json"
        ).stdout
        self.assertIn("borrow 6 of 12 training nodes for 140 HNs", out)
        self.assertIn("whole models would take 70 nodes: 91.4 % fewer", out)

    @unittest.skipUnless(
        chromium.find(), "no browser: Debian package chromium is not installed"
    )
    def test_the_page_draws_itself(self):
        browser = chromium.Page()
        self.addCleanup(browser.close)
        browser.open(self.page.as_uri())
        self.assertEqual(browser.happened("Runtime.exceptionThrown"), [])
        self.assertEqual(
            browser.evaluate("document.documentElement.dataset.ready"), "yes"
        )
        # Latency, parts, price, day.
        self.assertEqual(
            browser.evaluate("document.querySelectorAll('svg').length"), 4
        )
        folder = os.environ.get("REFRACT_REPORT_SCREENSHOTS")
        if folder:
            browser.screenshot(pathlib.Path(folder) / "plan.png")


if __name__ == "__main__":
    unittest.main()
