"""bench/report.py and bench/quotes.py: their output for reports and pages."""

import dataclasses
import html
import json
import pathlib
import re
import shutil
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench import quotes, report, subjects  # noqa: E402


def quartiles(median):
    return {"q25": 0.9 * median, "median": median, "q75": 1.1 * median}


class Report(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)

    def report(self, subjects, *arguments, pages_differ=False):
        """Runs main() with stand-ins for subjects and pages; (status, report)."""
        checked = mock.Mock(returncode=int(pages_differ))
        real = report.subprocess.run

        def run(command, **options):
            if "figures.py" in str(command[1]):
                return checked
            return real(command, **options)

        with mock.patch.object(report, "SUBJECTS", subjects), mock.patch.object(
            report.subprocess, "run", run
        ), mock.patch.object(sys, "argv", ["report.py", "--out", str(self.out), *arguments]):
            status = report.main()
        return status, json.loads((self.out / "report.json").read_text())

    def subject(self, name, program, **options):
        command = (sys.executable, "-c", program, "{out}", "--rounds", "9")
        return subjects.Subject(name, name.title(), command, ("--rounds", "3"), **options)

    def good(self, name="good"):
        # Writes its options beside a figure.
        program = (
            "import json, sys; row = dict(model='m', batch=8, time_over_refract="
            "dict(q25=1, median=2.5, q75=3)); json.dump(dict(rows=[row], "
            "options=sys.argv[2:]), open(sys.argv[1], 'w'))"
        )
        return self.subject(name, program)

    def test_states_machine_revision_and_figures(self):
        status, found = self.report((self.good(),))
        self.assertEqual(status, 0)
        self.assertIn(found["machine"]["instruction_set"], ("AVX-512", "AVX2", "portable"))
        self.assertTrue(found["machine"]["processor"])
        self.assertIn("revision", found)
        text = (self.out / "report.html").read_text()
        self.assertIn(
            "<tr><td>m, batch 8, time_over_refract</td><td>2.5</td><td>1 – 3</td></tr>", text
        )
        self.assertIn(found["machine"]["processor"], html.unescape(text))
        picture = ElementTree.fromstring(re.search("<svg.*</svg>", text, re.DOTALL)[0])
        texts = [item.text for item in picture.iter("{http://www.w3.org/2000/svg}text")]
        self.assertEqual(texts, ["m, batch 8, time_over_refract", "2.5"])
        self.assertEqual(found["subjects"]["good"]["result"]["options"], ["--rounds", "9"])
        _, found = self.report((self.good(),), "--short")
        self.assertEqual(found["subjects"]["good"]["result"]["options"], ["--rounds", "3"])

    def test_a_failure_costs_only_its_own_figures(self):
        silent = self.subject("silent", "pass")
        broken = self.subject("broken", "raise SystemExit(3)")
        absent = self.subject("absent", "pass", needs=("no-such-program",))
        status, found = self.report((silent, broken, absent, self.good()))
        self.assertEqual(status, 1)
        self.assertIn("exit status 3", found["subjects"]["broken"]["failed"])
        self.assertIn("result.json", found["subjects"]["silent"]["failed"])
        self.assertIn("no-such-program", found["subjects"]["absent"]["skipped"])
        self.assertIn("result", found["subjects"]["good"])
        self.assertEqual(self.report((absent, self.good()))[0], 0)
        _, found = self.report((self.subject("no_gpu", "raise SystemExit(77)"), self.good()))
        self.assertIn("77", found["subjects"]["no_gpu"]["skipped"])

    def test_programs_of_another_revision_are_named(self):
        head = {"revision": "feed0123abcd", "with_changes": False}
        for revision, other in (("beef", True), ("feed0123", False)):
            program = (
                f"import json, sys; json.dump(dict(revision='{revision}'), open(sys.argv[1], 'w'))"
            )
            with mock.patch.object(report, "revision", lambda: head):
                status, found = self.report((self.subject("old", program),))
            self.assertEqual(status, 0)
            self.assertEqual("built_at" in found["subjects"]["old"], other)
            text = (self.out / "report.html").read_text()
            self.assertEqual("of another revision" in text, other)

    def test_fails_where_pages_differ(self):
        self.assertEqual(self.report((self.good(),), pages_differ=True)[0], 1)

    def test_names_of_figures(self):
        tree = {
            "models": [{"model": "din", "batch": 1, "torch": {"time": quartiles(2)}}],
            "summary": [{"against": "torch", "batch": 64, "geometric_mean": 1.5}],
            "rows": [{"name": "G1", "q25": 1, "median": 2, "q75": 3}],
            "transport": [{"name": "shm", "ratios": [{"yardstick": "raw", **quartiles(4)}]}],
        }
        self.assertEqual(
            [name for name, _ in report.figures({"p99_beside_over_alone": quartiles(1)})],
            ["p99_beside_over_alone"],
        )
        names = {name: row["median"] for name, row in report.figures(tree)}
        self.assertEqual(
            names,
            {
                "din, batch 1, torch, time": 2, "torch, batch 64, geometric_mean": 1.5,
                "G1": 2, "shm, ÷ raw": 4,
            },
        )

    def test_several_files_are_one_result(self):
        program = (
            "import pathlib, sys; folder = pathlib.Path(sys.argv[1]).parent; "
            "[folder.joinpath(name + '.json').write_text('[1]') for name in 'ab']"
        )
        subject = self.subject("several", program, result="{folder}/*.json")
        _, found = self.report((subject,))
        self.assertEqual(found["subjects"]["several"]["result"], {"a": [1], "b": [1]})
        nothing = self.subject("nothing", "pass", result="{folder}/*.json")
        status, found = self.report((nothing,))
        self.assertEqual(status, 1)
        self.assertIn("there is no", found["subjects"]["nothing"]["failed"])

    def test_preparations_are_made_once_and_have_a_short_form(self):
        made = subjects.Preparation(
            (sys.executable, "-c", "import os, pathlib, sys; "
             "pathlib.Path(sys.argv[1], 'n').write_text(sys.argv[3] + os.environ['LIMIT'])",
             "{folder}", "--size", "9"), ("--size", "1"), {"LIMIT": "avx2"},
        )
        program = (
            "import json, pathlib, sys; path = pathlib.Path(sys.argv[4], 'n'); "
            "json.dump(dict(read=path.read_text()), open(sys.argv[1], 'w')); path.write_text('again')"
        )
        users = tuple(
            dataclasses.replace(subject, command=(*subject.command, "{made}"))
            for subject in (self.subject("one", program), self.subject("two", program))
        )
        with mock.patch.dict(report.PREPARATIONS, {"made": made}):
            for arguments, wanted in (((), "9avx2"), (("--short",), "1avx2")):
                _, found = self.report(users, *arguments)
                results = [found["subjects"][name]["result"]["read"] for name in ("one", "two")]
                self.assertEqual(results, [wanted, "again"])

    def test_missing_modules_are_named(self):
        subject = self.subject("fm", "pass", modules=("no_such_module",))
        _, found = self.report((subject, self.good()))
        self.assertIn("no_such_module", found["subjects"]["fm"]["skipped"])

    def test_commands_exist(self):
        names = [subject.name for subject in report.SUBJECTS]
        self.assertEqual(sorted(names), sorted(set(names)))
        places = dict.fromkeys(("out", "folder", *report.PREPARATIONS), "x")
        for subject in (*report.SUBJECTS, *report.PREPARATIONS.values()):
            for part in report.arguments(subject, short=True):
                part = part.format(**places)
                if part.endswith((".py", ".sh", "run_in_vm")):
                    self.assertTrue((ROOT / part).exists(), part)


class Quotes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        shutil.copytree(ROOT / "bench" / "results", self.root / "bench" / "results")
        shutil.copy(ROOT / "README.md", self.root)
        shutil.copytree(ROOT / "docs" / "measurements", self.root / "docs" / "measurements")

    def change(self, page, old, new):
        text = (self.root / page).read_text()
        self.assertIn(old, text)
        (self.root / page).write_text(text.replace(old, new, 1))
        return quotes.problems(self.root)

    def test_pages_have_the_figures_of_the_reports(self):
        self.assertEqual(quotes.problems(self.root), [])

    def test_another_figure_in_a_page_is_noticed(self):
        found = self.change("README.md", "(AVX-512): 2.1, 1.3", "(AVX-512): 4.1, 1.3")
        self.assertIn("should say 'Xeon 207 (AVX-512): 2.1, 1.3", found[0])
        self.assertTrue(any("no report has 4.1" in problem for problem in found), found)

    def test_a_table_without_a_subject_is_noticed(self):
        page = "docs/measurements/figures.md"
        found = self.change(page, "Subject `batching`: ", "")
        self.assertIn("'Batching on a CPU': no subject makes the table", found[0])
        self.assertEqual(found[1:], ["no page names the subject batching"])
        found = self.change(page, "Subject `isolation`", "Subject `isolated`")
        self.assertIn("'Two models on one node': there is no subject isolated", found[0])

    def test_a_report_without_a_subject_is_noticed(self):
        path = self.root / "bench" / "results" / "h100" / "other.json"
        path.write_text("{}")
        (found,) = quotes.problems(self.root)
        self.assertIn("other.json: there is no such subject", found)

    def test_another_figure_in_a_report_is_noticed(self):
        path = self.root / "bench" / "results" / "h100" / "gpu_check.json"
        run = json.loads(path.read_text())
        for row in run["torch"]["rows"]:
            row["median"] *= 2
        path.write_text(json.dumps(run))
        self.assertIn("to 1.63 of the time of torch.compile", quotes.problems(self.root)[0])

    def test_a_figure_without_a_report_is_noticed(self):
        (found,) = self.change("README.md", "## Numbers", "It is 9.7 times faster.\n\n## Numbers")
        self.assertIn("no report has 9.7", found)
        self.assertIn("is 9.7 times", self.root.joinpath("README.md").read_text())


if __name__ == "__main__":
    unittest.main()
