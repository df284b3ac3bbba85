"""scripts/lib/repository.py keeps what exports write."""

import os
import pathlib
import tempfile
import unittest
import unittest.mock

from scripts.lib import repository


class KeptExport(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.enterContext(
            unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.folder / "cache"))
        )
        self.source = self.folder / "source.py"
        self.source.write_text("1")
        self.made = 0

    def make(self, folder):
        self.made += 1
        (folder / "model").write_text(f"{self.made}")

    def get(self, *arguments, make=None):
        target = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        repository.kept_export("m", arguments, [self.source], target, make or self.make)
        return target / "model"

    def test_it_is_made_once_for_the_same_arguments_and_sources(self):
        first = self.get("a")
        first.write_text("changed")  # a copy
        self.assertEqual(self.get("a").read_text(), "1")
        self.assertEqual(self.get("b").read_text(), "2")
        self.source.write_text("2")
        self.assertEqual(self.get("a").read_text(), "3")
        with unittest.mock.patch("importlib.metadata.version", lambda _: "0"):
            self.assertEqual(self.get("a").read_text(), "4")
        self.assertEqual(self.get("a").read_text(), "3")

    def test_nothing_is_kept_of_what_fails(self):
        def fail(folder):
            self.make(folder)
            raise ValueError

        with self.assertRaises(ValueError):
            self.get("a", make=fail)
        self.assertEqual(self.get("a").read_text(), "2")
        kept = [p for p in repository.exports_folder().iterdir() if p.is_dir()]
        self.assertEqual(len(kept), 1)

    def test_what_nobody_used_for_long_goes(self):
        self.get("old")
        self.get("used")
        for path in repository.exports_folder().iterdir():
            os.utime(path, (0, 0))
        self.get("used")
        self.get("new")
        self.get("used")
        self.assertEqual(self.made, 3)
        self.get("old")
        self.assertEqual(self.made, 4)

    def test_without_a_cache_folder_the_build_has_it(self):
        (self.folder / "cache").write_text("a file")
        with unittest.mock.patch.object(repository, "BUILD", self.folder / "build"):
            self.get("a")
            self.get("a")
        self.assertEqual(self.made, 1)
        self.assertTrue((self.folder / "build" / "tests" / "exports").is_dir())


if __name__ == "__main__":
    unittest.main()
