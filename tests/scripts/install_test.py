"""scripts/lib/install.sh: processors for a build, and what a user sees of it."""

import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def build(output, status=0):
    """refract_build() with a build that prints `output`."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        script = pathlib.Path(folder) / "build.sh"
        script.write_text(f"cat <<'END'\n{output}END\nexit {status}\n")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c",
             f"source scripts/lib/install.sh; refract_build {log} bash {script}"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done, log.read_text()


class Progress(unittest.TestCase):
    # What Ninja prints first counts no file.
    OUTPUT = "[0/2] Re-checking globbed directories...\n" + "".join(
        f"[{i}/20] Building {i}.o\n" for i in range(1, 21)
    )

    def test_each_tenth_is_told_and_the_log_is_whole(self):
        done, log = build(self.OUTPUT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(log, self.OUTPUT)
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 10, done.stderr)
        self.assertIn("2 of 20 files built after", lines[0])
        self.assertIn("20 of 20 files built after", lines[-1])
        self.assertIn("about 0 s left", lines[-1])

    def test_a_failed_build_has_its_status(self):
        done, _ = build(self.OUTPUT, status=3)
        self.assertEqual(done.returncode, 3)


class Cores(unittest.TestCase):
    def test_openmp_settings_do_not_count(self):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c",
             "source scripts/lib/install.sh; refract_cores"],
            cwd=ROOT, capture_output=True, text=True, check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_THREAD_LIMIT": "1"},
        )  # fmt: skip
        self.assertEqual(int(done.stdout), len(os.sched_getaffinity(0)))


if __name__ == "__main__":
    unittest.main()
