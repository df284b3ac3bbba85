"""The link check finds what it must find, and accepts this tree."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "check_links.py"


def run(root):
    done = subprocess.run(
        [sys.executable, SCRIPT, str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


class CheckLinks(unittest.TestCase):
    def check(self, **files):
        """`a__b_md="…"` is the file a/b.md."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = name.replace("__", "/")
                stem, _, extension = path.rpartition("_")
                file = pathlib.Path(folder) / f"{stem}.{extension}"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return run(folder)

    def test_accepts_this_tree(self):
        code, output = run(ROOT)
        self.assertEqual(code, 0, output)

    def test_links_lead_to_files_and_headings(self):
        code, output = self.check(
            docs__a_md="# A\n\n## Two `Words`\n\n[b](b.md) [r](../README.md#top)\n"
            "[self](#two-words) [web](https://example.org/no.md)\n",
            docs__b_md="[a](a.md#two-words)\n",
            README_md="# Top\n\n[a](docs/a.md) [b](docs/b.md)\n",
        )
        self.assertEqual(code, 0, output)
        code, output = self.check(docs__a_md="[b](b.md)\n")
        self.assertEqual(code, 1)
        self.assertIn("docs/a.md: link to b.md: there is no docs/b.md", output)
        code, output = self.check(docs__a_md="[b](b.md#no)\n", docs__b_md="# B\n")
        self.assertEqual(code, 1)
        self.assertIn("docs/b.md has no such heading", output)

    def test_paths_in_pages_exist(self):
        page = "`{}`\n"
        for quote in ("base/a.h", "a.h", "base", "base/", "base/a", "base/*.h",
                      "a.{h,cc}", "other/thing", "build/release/bin"):  # fmt: skip
            code, output = self.check(
                README_md=page.format(quote), base__a_h="", base__a_cc=""
            )
            self.assertEqual(code, 0, output)
        for quote in ("base/b.h", "b.h", "base/b", "base/b*.h"):
            code, output = self.check(README_md=page.format(quote), base__a_h="")
            self.assertEqual(code, 1, quote)
            self.assertIn(f"`{quote}`", output)

    def test_commands_are_no_paths(self):
        code, output = self.check(
            README_md="```\nbase/no.h\n```\n`cat base/no.h`\n", base__a_h=""
        )
        self.assertEqual(code, 0, output)

    def test_pages_that_source_names_exist(self):
        code, output = self.check(base__a_h="// docs/b.md says why\n")
        self.assertEqual(code, 1)
        self.assertIn("base/a.h: docs/b.md: there is no such page", output)
        code, output = self.check(
            base__a_h="// docs/b.md says why, b.md too\n", docs__b_md=""
        )
        self.assertEqual(code, 0, output)

    def test_a_how_to_is_short(self):
        for words, expected in ((1200, 0), (1201, 1)):
            code, output = self.check(**{"docs__how-to__a_md": "word " * words})
            self.assertEqual(code, expected, output)
        self.assertIn("docs/how-to/a.md: 1201 words", output)
        code, output = self.check(docs__design__a_md="word " * 1201)
        self.assertEqual(code, 0, output)

    def test_quoted_messages_are_in_the_programs(self):
        page = (
            "| message | remedy |\n| --- | --- |\n| `{}` | do |\n\n"
            "| symptom | remedy |\n| --- | --- |\n| `never said` | do |\n"
        )
        source = 'F(absl::StrCat("no room for ", n,\n  " rows of "\n  "a table"));\n'
        for message, expected in (
            ("no room for …", 0), ("no room for … rows of a table", 0),
            ("rows of a table", 0), ("no rooms for …", 1),
        ):  # fmt: skip
            code, output = self.check(
                **{"docs__how-to__troubleshooting_md": page.format(message)},
                base__a_cc=source,
            )
            self.assertEqual(code, expected, output)
        self.assertIn("no program has the message 'no rooms for'", output)

    def test_the_readme_links_every_page(self):
        pages = {"docs__x__a_md": "", "docs__decisions__0001-b_md": ""}
        code, output = self.check(README_md="[d](docs/decisions)\n", **pages)
        self.assertEqual(code, 1)
        self.assertIn("README.md: no link to docs/x/a.md", output)
        self.assertNotIn("0001-b.md", output)
        code, output = self.check(
            README_md="[d](docs/decisions) [a](docs/x/a.md#top)\n",
            docs__x__a_md="# Top\n",
            **{"docs__decisions__0001-b_md": ""},
        )
        self.assertEqual(code, 0, output)
        # A folder does not stand for its pages but where they are numbered.
        code, output = self.check(README_md="[x](docs/x)\n", docs__x__a_md="")
        self.assertEqual(code, 1)

    def test_a_changelog_may_name_what_is_gone(self):
        code, output = self.check(CHANGELOG_md="`base/b.h`\n", base__a_h="")
        self.assertEqual(code, 0, output)

    def test_the_glossary_names_identifiers_once(self):
        row = "| term | meaning | code |\n| --- | --- | --- |\n| a | is | `n::Abc` |\n"
        source = "namespace n { class Abc; }\n"
        code, output = self.check(docs__glossary_md=row, base__a_h=source)
        self.assertEqual(code, 0, output)
        code, output = self.check(docs__glossary_md=row, base__a_h="")
        self.assertEqual(code, 1)
        self.assertIn("the source has no Abc", output)
        code, output = self.check(
            docs__glossary_md=row + "| a | again | – |\n", base__a_h=source
        )
        self.assertEqual(code, 1)
        self.assertIn("the term 'a' is there twice", output)


if __name__ == "__main__":
    unittest.main()
