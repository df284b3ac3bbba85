"""`refract partition --report`: the page of a graph of 1,500 operators.

What the page holds is checked everywhere, what it does where there is a
browser. REFRACT_REPORT_SCREENSHOTS=FOLDER keeps pictures to look at.
"""

import json
import os
import pathlib
import re
import tempfile
import unittest

import torch
from safetensors.torch import save_file

from tests.e2e import chromium, support

FIELDS = 250
OPERATORS = 1500
MAX_PAGE_BYTES = 3_000_000
DATA = re.compile(
    r'(<script type="application/json" id="data">)(.*?)(</script>)', re.DOTALL
)


class ManyFields(torch.nn.Module):
    """Two look-ups per column of ids, as click models have them."""

    def __init__(self):
        super().__init__()

        def tables(dim):
            return torch.nn.ModuleList(
                torch.nn.Embedding(20, dim) for _ in range(FIELDS)
            )

        self.rows = tables(8)
        self.weights = tables(1)
        self.top = torch.nn.Sequential(
            torch.nn.Linear(8 * FIELDS, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 1),
        )

    def forward(self, ids):
        columns = [ids[:, i : i + 1] for i in range(FIELDS)]
        rows = [t(c).flatten(1) for t, c in zip(self.rows, columns)]
        first = sum(t(c).flatten(1) for t, c in zip(self.weights, columns))
        return torch.sigmoid(self.top(torch.cat(rows, 1)) + first)


class Reported(unittest.TestCase):
    """The model and its report."""

    @classmethod
    def make(cls):
        temporary = tempfile.TemporaryDirectory()
        unittest.addModuleCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        torch.manual_seed(0)
        ids = torch.randint(0, 20, (6, FIELDS))
        traced = torch.jit.trace(ManyFields().eval(), ids)
        file = cls.folder / "many_fields.pt"
        torch.jit.freeze(traced).save(file)
        save_file({"ids": ids}, cls.folder / "sample.safetensors")
        support.add_model(cls.folder / "repo", "many_fields", file, method="optimal")
        cls.page = cls.folder / "report.html"
        report = cls.folder / "report.json"
        support.refract(
            "partition", cls.folder / "repo" / "many_fields", "--method",
            "optimal", "--report", cls.page, "--json", report,
        )
        cls.html = cls.page.read_text(encoding="utf-8")
        cls.json = json.loads(report.read_text(encoding="utf-8"))
        cls.data = json.loads(DATA.search(cls.html).group(2))


def setUpModule():
    """Both classes read the same files."""
    Reported.make()


class ReportTest(Reported):
    def test_the_page_is_small_and_needs_nothing_else(self):
        self.assertLess(self.page.stat().st_size, MAX_PAGE_BYTES)
        around_data = DATA.sub("", self.html)
        for mark in ("src=", "href=", "url(", "@import", "fetch(", "{{"):
            self.assertNotIn(mark, around_data)
        self.assertEqual(
            set(re.findall(r"https?://[^\"' ]+", around_data)),
            {"http://www.w3.org/2000/svg"},  # a name, not an address
        )

    def test_the_page_holds_the_json(self):
        self.assertGreaterEqual(
            len(self.data["partition"]["nodes"]), OPERATORS
        )
        self.assertEqual(self.data["partition"], self.json["partition"])
        self.assertEqual(self.data["model"]["digest"], self.json["digest"])

    def test_everything_has_a_place_in_its_stage(self):
        partition = self.data["partition"]
        drawing = self.data["drawing"]
        plans = partition["alternatives"] + partition["forced_cuts"]
        self.assertEqual(len(drawing["of_plan"]), len(plans))
        first = len(drawing["inputs"])
        for plan, index in zip(plans, drawing["of_plan"]):
            columns = drawing["places"][index][::2]
            gates = first + len(plan["stages"])
            self.assertEqual(
                len(columns), gates + len(plan["up"]) + len(plan["down"])
            )
            # CN-pre, gates up, HN, gates down, CN-post.
            bands = [[], columns[gates : gates + len(plan["up"])], [],
                     columns[gates + len(plan["up"]) :], []]
            bands[0] += columns[:first]
            for stage, column in zip(plan["stages"], columns[first:]):
                bands[2 * stage].append(column)
            used = [band for band in bands if band]
            for left, right in zip(used, used[1:]):
                self.assertLess(max(left), min(right))

    def test_forced_cuts_are_as_forced_and_cost_no_less(self):
        partition = self.data["partition"]
        self.assertGreaterEqual(len(partition["forced_cuts"]), 3)
        for cut in partition["forced_cuts"]:
            self.assertEqual(
                cut["value"] in cut[cut["direction"]], cut["crosses"]
            )
            self.assertLessEqual(
                partition["cost"], cut["cost"] * (1 + 1e-9)
            )
            self.assertLessEqual(cut["lower_bound"], cut["cost"] * (1 + 1e-9))


@unittest.skipUnless(
    chromium.find(), "no browser: Debian package chromium is not installed"
)
class BrowserTest(Reported):
    """Properties of the page that only a browser shows."""

    @classmethod
    def setUpClass(cls):
        cls.browser = chromium.Page()
        cls.addClassCleanup(cls.browser.close)

    def open(self, page, fragment=""):
        self.browser.open(page.as_uri() + fragment)
        self.assertEqual(self.browser.happened("Runtime.exceptionThrown"), [])
        self.assertEqual(
            self.browser.evaluate("document.documentElement.dataset.ready"),
            "yes",
        )

    def picture(self, name):
        folder = os.environ.get("REFRACT_REPORT_SCREENSHOTS")
        if folder:
            self.browser.screenshot(pathlib.Path(folder) / f"{name}.png")

    def count(self, selector):
        return self.browser.evaluate(
            f"document.querySelectorAll({json.dumps(selector)}).length"
        )

    def text(self, selector):
        return self.browser.evaluate(
            f"document.querySelector({json.dumps(selector)}).textContent"
        )

    def transform(self):
        return self.browser.evaluate(
            "document.getElementById('view').getAttribute('transform')"
        )

    def test_it_draws_the_plan_and_asks_for_nothing(self):
        self.open(self.page)
        partition = self.data["partition"]
        optimal = partition["alternatives"][0]
        self.assertEqual(
            self.count(".node"),
            len(self.data["drawing"]["inputs"]) + len(partition["nodes"])
            + len(optimal["up"]) + len(optimal["down"]),
        )
        for stage in range(3):
            self.assertEqual(
                self.count(f".node.s{stage}:not(.input)"),
                optimal["stages"].count(stage),
            )
        crossing = len(optimal["up"]) + len(optimal["down"])
        self.assertGreater(crossing, 0)
        self.assertEqual(self.count(".node.gate"), crossing)
        self.assertEqual(self.count("#crossings .crossing"), crossing)
        asked = {
            request["request"]["url"].split("#")[0]
            for request in self.browser.happened("Network.requestWillBeSent")
        }
        self.assertEqual(asked, {self.page.as_uri()})
        loaded = self.browser.evaluate(
            "performance.getEntriesByType('navigation')[0].loadEventEnd"
        )
        print(f"open after {loaded:.0f} ms, {self.page.stat().st_size} bytes")
        self.picture("whole")

    def test_every_crossing_tells_its_bytes(self):
        self.open(self.page)
        drawn = self.browser.evaluate(
            "[...document.querySelectorAll('.node.gate')].map((gate) =>"
            " [gate.querySelector('title').textContent.split('\\n')[0],"
            "  gate.querySelector('text').textContent])"
        )
        size = {
            value["name"]: value["bytes"]
            for value in self.data["partition"]["values"]
        }
        for name, label in drawn:
            number, unit = label.split()
            scale = {"B": 1, "KiB": 2**10, "MiB": 2**20}[unit]
            self.assertAlmostEqual(
                float(number) * scale / size[name], 1, delta=1e-3
            )

    def test_wheel_and_mouse_move_the_graph(self):
        self.open(self.page)
        x, y = self.browser.middle("#drawing")
        before = self.transform()
        self.browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400)
        zoomed = self.transform()
        self.assertNotEqual(before, zoomed)
        self.browser.drag(x, y, 60, 40)
        numbers = [
            [float(n) for n in re.findall(r"[-\d.]+(?:e-?\d+)?", text)]
            for text in (zoomed, self.transform())
        ]
        for left, right, moved in zip(*numbers, (60, 40, 0)):
            self.assertAlmostEqual(right - left, moved, places=3)
        self.browser.click("#fit")
        self.assertNotEqual(self.transform(), zoomed)

    def test_search_finds_and_a_click_tells(self):
        self.open(self.page)
        self.browser.click("#search")
        # Not "sigmoid": the step that the layer before it is merged into says so too.
        self.browser.type("aten.sigmoid")
        self.assertEqual(self.text("#hits"), "1 found")
        self.browser.press("Enter")
        self.assertEqual(self.text("#hits"), "1 of 1")
        details = self.text("#details")
        self.assertIn("aten.sigmoid.default", details)
        self.picture("found")
        self.browser.press("Escape")
        self.assertEqual(self.count(".hit"), 0)
        # The drawing still shows the place: another operator near it.
        node = self.data["partition"]["nodes"][-2]
        self.open(self.page, f"#node={node['name']}")
        self.browser.press("Escape")
        self.assertNotIn(node["op"], self.text("#details"))
        index = len(self.data["drawing"]["inputs"]) + len(
            self.data["partition"]["nodes"]
        ) - 2
        self.browser.click(f'.node[data-d="{index}"]')
        details = self.text("#details")
        self.assertIn(node["op"], details)
        self.assertIn("on the HN", details)
        for name in node["outputs"]:
            value = next(
                value for value in self.data["partition"]["values"]
                if value["name"] == name
            )
            self.assertIn(value["shape"], details)

    def test_a_row_of_the_table_shows_its_plan(self):
        self.open(self.page)
        partition = self.data["partition"]
        plans = partition["alternatives"] + partition["forced_cuts"]
        self.assertEqual(
            self.count("#alternatives tbody tr"), len(plans)
        )
        for row, plan in enumerate(plans):
            # Some rows have to be scrolled to.
            self.browser.evaluate(
                f"document.querySelector('tr[data-row=\"{row}\"]')"
                ".scrollIntoView({block: 'nearest'})"
            )
            self.browser.click(f'tr[data-row="{row}"] td:nth-child(2)')
            self.assertEqual(
                self.count(".node.gate"), len(plan["up"]) + len(plan["down"])
            )
            self.assertEqual(self.count("tr.shown"), 1)
            self.assertEqual(
                self.count(".node.s1"), plan["stages"].count(1)
            )

    def test_names_stay_names(self):
        evil = "</script><script>window.broken=1</script>'\"<!--<img src=x>"
        data = json.dumps(self.data)
        data = data.replace("many_fields", "{name}").replace(
            "sigmoid", "{name}"
        )
        quoted = json.dumps(evil)[1:-1]
        for mark in "<>&":
            quoted = quoted.replace(mark, f"\\u{ord(mark):04x}")
        data = data.replace("{name}", quoted)
        page = self.folder / "evil.html"
        page.write_text(
            DATA.sub(lambda m: m.group(1) + data + m.group(3), self.html),
            encoding="utf-8",
        )
        self.open(page, "#search=%3Cimg")
        self.assertIn(evil, self.text("#title"))
        self.assertNotEqual(self.text("#hits"), "0 found")
        self.browser.press("Enter")
        self.assertIsNone(self.browser.evaluate("window.broken"))
        self.assertEqual(self.count("img"), 0)


if __name__ == "__main__":
    unittest.main()
