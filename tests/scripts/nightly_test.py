"""scripts/nightly.sh with cmake, ctest and fuzz targets that do as they are told.

The scripts are the tree's own, in a copy; only the programs that they start are
stand-ins.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Configures and builds: logs its arguments, and fails or takes long where asked.
CMAKE = r"""#!/bin/bash
echo "$*" >>cmake.log
[[ $1 == --preset ]] && { mkdir -p "build/$2"; exit 0; }
[[ -z $SLOW_BUILD ]] || exec sleep 60
[[ $2 != "$BROKEN_BUILD" ]] || { echo "x.cc:1: error: no"; exit 1; }
echo "[1/1] linking"
"""
# Two tests; both are begun unless the second is to be left out.
CTEST = r"""#!/bin/bash
all=(base/a_test fuzz/one) run=()
while (($#)); do
  case "$1" in
    -R) only="$2" ;;
    -N) list=yes ;;
    --output-junit) junit="$2" ;;
  esac
  shift
done
for name in "${all[@]}"; do [[ ! $name =~ $only ]] || run+=("$name"); done
if [[ $list ]]; then
  for name in "${run[@]}"; do echo "  Test #1: $name"; done
  exit
fi
{
  echo '<testsuite>'
  for name in "${run[@]}"; do
    [[ $name == "$NOT_BEGUN" ]] || echo "<testcase name=\"$name\" status=\"run\"/>"
  done
  echo '</testsuite>'
} >"$junit"
"""
FUZZ = r"""#!/bin/bash
[[ $(basename "$0") != "fuzz_$BROKEN_TARGET" ]] || { echo "ERROR: overflow"; exit 1; }
echo "Done 100 runs in 1 second(s) $1"
"""


class Nightly(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        (self.root / "tests" / "fuzz").mkdir(parents=True)
        shutil.copy(ROOT / "tests" / "permitted_skips.txt", self.root / "tests")
        for name, text in (("cmake", CMAKE), ("ctest", CTEST)):
            self.program(f"bin/{name}", text)
        for name in ("one", "two"):
            (self.root / "tests" / "fuzz" / f"{name}_fuzz.cc").touch()
            self.program(f"build/fuzz/fuzz/fuzz_{name}", FUZZ)

    def program(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def nightly(self, *arguments, **environment):
        done = subprocess.run(
            [self.root / "scripts" / "nightly.sh", "--no-install", "--jobs", "1", *arguments],
            env={
                **os.environ, "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", **environment
            },
            capture_output=True, text=True, timeout=120, check=False,
        )
        return done.returncode, done.stdout.splitlines(), done.stderr

    def test_everything_runs_and_counts(self):
        status, lines, errors = self.nightly()
        self.assertEqual((status, lines[-1]), (0, "6 passed, 0 failed, 0 skipped"), errors)
        for preset in ("asan", "tsan", "fuzz"):
            self.assertIn(f"{preset}: 2 passed, 0 failed, 0 skipped", lines)
            self.assertRegex(errors, rf"{preset}, build: \d+ s, \d+ \+ \d+ s of processors")
        # Two targets on at least one core get the hour or its half.
        (done,) = {line.split("max_total_time=")[1] for line in self.fuzz_log().splitlines()}
        self.assertGreaterEqual(int(done), 1790)
        self.assertLessEqual(int(done), 3600)

    def fuzz_log(self):
        return (self.root / "artifacts" / "fuzz" / "one.log").read_text()

    def test_only_builds_and_runs_what_matches(self):
        status, lines, _ = self.nightly("--only", "fuzz/one")
        self.assertEqual((status, lines[-1]), (0, "3 passed, 0 failed, 0 skipped"))
        builds = [
            line.split(" -- ")[1]
            for line in (self.root / "cmake.log").read_text().splitlines()
            if line.startswith("--build build/") and " -- " in line
        ]
        self.assertEqual(
            builds[:3],
            ["-j 1 fuzz_one_replay", "-j 1 fuzz_one_replay", "-j 1 fuzz_one"],
        )
        status, lines, _ = self.nightly("--only", "nothing")
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"))

    def test_one_part_alone(self):
        for part in ("asan", "tsan", "fuzz"):
            status, lines, errors = self.nightly("--part", part)
            self.assertEqual((status, lines[-1]), (0, "2 passed, 0 failed, 0 skipped"), errors)
            self.assertIn(f"{part}: 2 passed, 0 failed, 0 skipped", lines)

    def test_a_preset_that_does_not_build_has_failed_and_stops_no_other(self):
        status, lines, errors = self.nightly(BROKEN_BUILD="build/asan")
        self.assertEqual((status, lines[-1]), (1, "4 passed, 1 failed, 0 skipped"))
        self.assertIn("failed asan: left no result", lines)
        self.assertIn("x.cc:1: error: no", errors)

    def test_a_test_that_was_not_begun_has_failed(self):
        status, lines, _ = self.nightly(NOT_BEGUN="base/a_test")
        self.assertEqual((status, lines[-1]), (1, "4 passed, 2 failed, 0 skipped"))
        self.assertIn("failed tsan: base/a_test: did not run: its time was up", lines)

    def test_a_broken_fuzz_target_has_failed(self):
        status, lines, _ = self.nightly(BROKEN_TARGET="two")
        self.assertEqual((status, lines[-1]), (1, "5 passed, 1 failed, 0 skipped"))
        self.assertIn("failed fuzz/two", [line.replace("fuzz: ", "") for line in lines])

    def test_bad_options(self):
        for arguments, word in (
            (("--minutes", "0"), "minutes"), (("--jobs", "x"), "jobs"), (("--fast",), "--fast"),
            (("--part", "msan"), "msan"),
        ):
            status, _, errors = self.nightly(*arguments)
            self.assertNotEqual(status, 0)
            self.assertIn(word, errors)

    def test_a_build_beyond_the_limit_has_failed(self):
        script = self.root / "scripts" / "nightly.sh"
        text = script.read_text()
        self.assertIn("minutes * 60", text)
        script.write_text(text.replace("minutes * 60", "minutes * 3"))
        status, lines, _ = self.nightly("--minutes", "1", SLOW_BUILD="1")
        self.assertEqual((status, lines[-1]), (1, "0 passed, 3 failed, 0 skipped"))


if __name__ == "__main__":
    unittest.main()
