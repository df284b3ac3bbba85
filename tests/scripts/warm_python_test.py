"""tests/warm_python.py: a call looks like one of `python3 -c`."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

WARM = pathlib.Path(__file__).resolve().parents[1] / "warm_python.py"


def runs(process):
    """False once it ended, even when nobody has collected its status yet."""
    try:
        return ") Z" not in pathlib.Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


class WarmPython(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="refract-warm-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.environment = os.environ | {
            "REFRACT_BUILD_DIR": str(cls.folder), "REFRACT_WARM_PYTHON": sys.executable,
        }  # fmt: skip

    def run_code(self, code, *arguments, **options):
        return subprocess.run(
            [WARM, "-c", code, *arguments], capture_output=True, text=True,
            check=False, timeout=300, **{"env": self.environment, **options},
        )  # fmt: skip

    def test_arguments_folder_environment_and_files(self):
        done = self.run_code(
            "import os, sys; print(sys.argv, os.getcwd(), os.environ['A'], sys.stdin.read());"
            "print('err', file=sys.stderr); sys.exit(5)",
            "x", "y z", cwd="/usr", env={**self.environment, "A": "b c"}, input="in",
        )  # fmt: skip
        self.assertEqual(done.stdout, "['-c', 'x', 'y z'] /usr b c in\n")
        self.assertEqual(done.stderr, "err\n")
        self.assertEqual(done.returncode, 5)

    def test_torch_is_there_before_the_call_and_modules_of_the_path_are_not(self):
        (self.folder / "own.py").write_text("value = 1\n")
        code = "import sys; print('torch' in sys.modules, 'own' in sys.modules);"
        code += "import own; print(own.value)"
        for value in (1, 2):
            (self.folder / "own.py").write_text(f"value = {value}\n" + "#" * value)
            done = self.run_code(
                code, env={**self.environment, "PYTHONPATH": str(self.folder)}
            )
            self.assertEqual(done.stdout, f"True False\n{value}\n", done.stderr)

    def test_a_module_is_run_as_by_the_interpreter(self):
        (self.folder / "tried.py").write_text(
            "import unittest\n"
            "class Tried(unittest.TestCase):\n"
            "    def test_right(self): pass\n"
            "    def test_wrong(self): self.fail('so')\n"
        )
        for case, status in (("Tried.test_right", 0), ("Tried", 1)):
            done = subprocess.run(
                [WARM, "-m", "unittest", "-v", f"tried.{case}"], capture_output=True,
                text=True, check=False, cwd=self.folder, env=self.environment,
            )  # fmt: skip
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn("test_right (tried.Tried.test_right) ... ok", done.stderr)
        self.assertIn("AssertionError: so", done.stderr)

    def test_a_file_is_run_as_by_the_interpreter(self):
        folder = self.folder / "programs"
        folder.mkdir()
        (folder / "beside.py").write_text("value = 3\n")
        (folder / "main.py").write_text(
            "import sys, beside\n"
            "print(__name__, __file__, sys.argv, sys.path[0], beside.value, 'torch' in sys.modules)\n"
            "sys.exit(4)\n"
        )
        ran = [
            subprocess.run(
                [python, "programs/main.py", "x", "-m"], capture_output=True, text=True,
                check=False, cwd=self.folder, env=self.environment,
            )
            for python in (WARM, sys.executable)
        ]  # fmt: skip
        warm, own = ([done.stdout, done.stderr, done.returncode] for done in ran)
        self.assertTrue(warm[0].endswith(" True\n"), warm)
        self.assertEqual([warm[0].replace(" True\n", " False\n"), *warm[1:]], own)

    def test_calls_draw_different_numbers(self):
        code = "import random, numpy; print(random.random(), numpy.random.random())"
        one, other = (self.run_code(code).stdout.split() for _ in range(2))
        self.assertEqual(len({*one, *other}), 4)

    def test_ends_are_those_of_the_interpreter(self):
        for code, status, said in (
            ("pass", 0, ""),
            ("raise SystemExit('why')", 1, "why\n"),
            ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV, ""),
            ("import os; os.abort()", -signal.SIGABRT, ""),
        ):
            with self.subTest(code):
                done = self.run_code(code)
                self.assertEqual((done.returncode, done.stderr), (status, said))
        done = self.run_code("1 / 0")
        self.assertEqual(done.returncode, 1)
        self.assertTrue(done.stderr.endswith("ZeroDivisionError: division by zero\n"))

    def test_a_call_and_its_children_end_with_its_caller(self):
        code = (
            "import os, subprocess, time; child = subprocess.Popen(['sleep', '600']);"
            "print(os.getpid(), child.pid, flush=True); time.sleep(600)"
        )
        with subprocess.Popen(
            [WARM, "-c", code], stdout=subprocess.PIPE, text=True, env=self.environment
        ) as caller:
            processes = caller.stdout.readline().split()
            self.assertNotIn(str(caller.pid), processes)
            caller.kill()
            end = time.monotonic() + 60
            while any(map(runs, processes)):
                self.assertLess(time.monotonic(), end)
                time.sleep(0.02)

    def test_without_a_server_the_interpreter_itself_runs(self):
        environment = dict(self.environment)
        del environment["REFRACT_BUILD_DIR"]
        code = "import sys; print('torch' in sys.modules, sys.argv)"
        done = self.run_code(code, "x", env=environment)
        self.assertEqual(done.stdout, "False ['-c', 'x']\n")
        done = subprocess.run(
            [WARM, "--version"], capture_output=True, text=True, env=self.environment,
            check=True,
        )  # fmt: skip
        self.assertIn("Python 3", done.stdout)


if __name__ == "__main__":
    unittest.main()
