"""scripts/summarize_tests.py on results as ctest writes them."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = SOURCE / "scripts" / "summarize_tests.py"

RAN = """<testcase name="{name}" status="{status}"><system-out>{out}</system-out></testcase>"""
NOT_RUN = """<testcase name="{name}" status="{status}"><skipped message="{message}"/>
<system-out>{out}</system-out></testcase>"""
PYTHON = """test_a (x.A) ... ok
test_b (x.A) ... skipped 'chromium is not installed'
test_c (x.A) ... skipped '{reason}'
Ran 3 tests in 0.1s

OK (skipped=2)
"""
CASES = """<testsuites><testsuite>
<testcase status="run" classname="A" name="Passes"/>
<testcase status="run" classname="A" name="Fails"><failure message="x"/></testcase>
<testcase status="run" classname="A" name="Skips"><skipped message="a.cc:1&#x0A;{reason}"/></testcase>
<testcase status="notrun" classname="A" name="DISABLED_x"/>
</testsuite></testsuites>"""


class SummarizeTests(unittest.TestCase):
    def summarize(self, *tests, cases=None, build_log=False):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            if tests:
                (folder / "release.xml").write_text(
                    "<testsuite>" + "".join(tests) + "</testsuite>"
                )
            if build_log:
                (folder / "release-build.log").write_text("")
            for name, text in (cases or {}).items():
                path = folder / "release-cases" / f"{name}.xml"
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
            done = subprocess.run(
                [sys.executable, SCRIPT, folder], capture_output=True, text=True
            )
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout.splitlines()

    def test_counts_cases(self):
        status, lines = self.summarize(
            RAN.format(name="one", status="run", out=""),
            RAN.format(name="py", status="run",
                       out=PYTHON.format(reason="there is no nvcc")),
        )
        self.assertEqual(status, 0)
        self.assertEqual(lines[-1], "2 passed, 0 failed, 2 skipped")
        self.assertIn("skipped release: py: chromium is not installed", lines)

    def test_a_missing_executable_has_failed(self):
        status, lines = self.summarize(
            RAN.format(name="one", status="run", out=""),
            NOT_RUN.format(name="gone", status="notrun",
                           message="Unable to find executable",
                           out="Unable to find executable: /x/gone"),
        )
        self.assertEqual(status, 1)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 0 skipped")
        self.assertIn(
            "failed release: gone: did not run: Unable to find executable: /x/gone",
            lines,
        )

    def test_a_disabled_test_has_failed(self):
        status, lines = self.summarize(
            NOT_RUN.format(name="off", status="disabled", message="", out="Disabled")
        )
        self.assertEqual(status, 1)
        self.assertEqual(lines[-1], "0 passed, 1 failed, 0 skipped")

    def test_the_skip_code_needs_a_permitted_reason(self):
        for reason, expected in (
            ("skipped: no GPU: the driver shows none", (0, "1 passed, 0 failed, 1 skipped")),
            ("I did not feel like it", (1, "1 passed, 1 failed, 0 skipped")),
            ("", (1, "1 passed, 1 failed, 0 skipped")),
        ):
            status, lines = self.summarize(
                RAN.format(name="one", status="run", out=""),
                NOT_RUN.format(name="gpu", status="notrun",
                               message="SKIP_RETURN_CODE=77", out=reason),
            )
            self.assertEqual((status, lines[-1]), expected, reason)

    def test_cases_skipped_without_permission_have_failed(self):
        status, lines = self.summarize(
            RAN.format(name="py", status="run", out=PYTHON.format(reason="too hard"))
        )
        self.assertEqual(status, 1)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 1 skipped")
        status, lines = self.summarize(
            RAN.format(name="a/b", status="fail", out=""),
            cases={"a_b": CASES.format(reason="this processor has no avx512")},
        )
        self.assertEqual(status, 1)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 1 skipped")

    def test_a_crash_counts_as_a_failure(self):
        status, lines = self.summarize(
            RAN.format(name="crash", status="fail", out="Segmentation fault")
        )
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"))

    def test_no_result_is_a_failure(self):
        self.assertEqual(self.summarize()[0], 1)
        status, lines = self.summarize(build_log=True)
        self.assertEqual(status, 1)
        self.assertIn("failed release: left no result", lines)


if __name__ == "__main__":
    unittest.main()
