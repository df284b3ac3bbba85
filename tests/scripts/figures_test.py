"""Tables of docs/measurements are those of their reports."""

import pathlib
import re
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import figures  # noqa: E402


class Figures(unittest.TestCase):
    def check(self, pages):
        with mock.patch.object(figures, "PAGES", pages), mock.patch.object(
            sys, "argv", ["figures.py", "--check"]
        ):
            return figures.main()

    def test_the_pages_are_as_the_reports(self):
        self.assertEqual(self.check(figures.PAGES), 0)

    def test_another_figure_and_a_missing_table_are_noticed(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for page in figures.PAGES.glob("*.md"):
                (folder / page.name).write_text(page.read_text())
            self.assertEqual(self.check(folder), 0)
            page = folder / "figures.md"
            text = page.read_text()
            start = text.index("<!-- table: gpu_check -->")
            other = re.sub(r"\| \d\.\d+ \[", "| 9.99 [", text[start:], count=1)
            page.write_text(text[:start] + other)
            self.assertEqual(self.check(folder), 1)
            page.write_text(text.replace("<!-- table: gpu_check -->", ""))
            self.assertEqual(self.check(folder), 1)


if __name__ == "__main__":
    unittest.main()
