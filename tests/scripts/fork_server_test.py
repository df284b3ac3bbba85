"""scripts/lib/fork_server.py and tests/fork_server.cc, with `refract` and a shell."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from scripts.lib import fork_server, nodes, repository

SHELL = "/bin/sh"


def gone(process):
    """It has ended, even if nobody has collected its status yet."""
    try:
        status = pathlib.Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return True
    return "State:\tZ" in status


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("still not so after 60 s")
        time.sleep(0.01)


class ForkServer(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()

    def shell(self):
        server = fork_server.Server(SHELL, self.folder)
        self.addCleanup(server.close)
        return server

    def call(self, server, script, *arguments, timeout=60):
        return server.call(["sh", "-c", script, *arguments], timeout)

    def test_refract_says_the_same_as_when_it_is_started(self):
        for arguments in (
            ["--version"], ["partition", "--help"], ["inspect"],
            ["inspect", "/nowhere/at all"], ["no such command"], [],
        ):
            with self.subTest(arguments):
                forked = repository.refract(*arguments, check=False)
                started = repository.run(
                    nodes.program("refract"), *arguments, check=False
                )
                for key in ("args", "returncode", "stdout", "stderr"):
                    self.assertEqual(getattr(forked, key), getattr(started, key))
        program = nodes.program("refract")
        self.assertIsNotNone(fork_server.server(program, nodes.SOURCE))
        with self.assertRaisesRegex(AssertionError, "exit 2\n.*/nowhere"):
            repository.refract("inspect", "/nowhere")

    def test_calls_have_arguments_files_folder_and_status(self):
        server = self.shell()
        done = self.call(
            server, 'echo "$#:$1:$2:$3"; pwd; echo bad >&2; cat; exit 3', "zero", "a b", "", "ü"
        )
        self.assertEqual(done.stdout, f"3:a b::ü\n{self.folder}\n")
        self.assertEqual((done.stderr, done.returncode), ("bad\n", 3))
        done = self.call(server, "kill -SEGV $$")
        self.assertEqual(done.returncode, -signal.SIGSEGV)
        # More than a pipe holds.
        done = self.call(server, "head -c 300000 /dev/zero | tr '\\0' x")
        self.assertEqual(done.stdout, "x" * 300000)

    def test_what_a_call_starts_is_not_a_server(self):
        done = self.call(self.shell(), "env; ls -l /proc/self/fd")
        self.assertNotIn("LD_PRELOAD", done.stdout)
        self.assertNotIn("REFRACT_FORK_SERVER_FD", done.stdout)
        self.assertNotIn("socket:", done.stdout)

    def test_calls_run_beside_each_other_and_apart(self):
        server = self.shell()
        with self.assertRaises(subprocess.TimeoutExpired):
            self.call(server, "echo $$ > slow; exec sleep 600", timeout=0.5)
        slow = int((self.folder / "slow").read_text())
        wait_until(lambda: gone(slow))
        first, second = (self.call(server, "echo $$").stdout for _ in range(2))
        self.assertNotEqual(first, second)

    def test_a_process_that_goes_on(self):
        with tempfile.TemporaryFile("w+") as log:
            process = self.shell().popen(
                ["sh", "-c", "echo out; echo bad >&2; trap 'exit 5' TERM; "
                 "while :; do sleep 0.01; done"], log,
            )  # fmt: skip
            with process.stdout:
                self.assertEqual(process.stdout.readline(), "out\n")
                self.assertIsNone(process.poll())
                with self.assertRaises(subprocess.TimeoutExpired):
                    process.wait(0.05)
                self.assertFalse(gone(process.pid))
                process.terminate()
                self.assertEqual(process.wait(60), 5)
                self.assertEqual(process.stdout.read(), "")
            self.assertEqual((process.poll(), process.returncode), (5, 5))
            process.kill()  # nothing
            log.seek(0)
            self.assertEqual(log.read(), "bad\n")

    def test_everything_ends_with_the_caller(self):
        caller = subprocess.Popen(
            [sys.executable, "-c",
             "import sys; from scripts.lib import fork_server\n"
             f"server = fork_server.Server({SHELL!r}, sys.argv[1])\n"
             "print(server._process.pid, flush=True)\n"
             "server.call(['sh', '-c', 'echo $$ > call; exec sleep 600'], 600)",
             self.folder],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.addCleanup(caller.stdout.close)
        self.addCleanup(caller.wait)
        self.addCleanup(caller.kill)
        server = int(caller.stdout.readline())
        told = self.folder / "call"
        wait_until(lambda: told.exists() and told.read_text().endswith("\n"))
        call = int(told.read_text())
        self.assertFalse(gone(call))
        caller.kill()
        wait_until(lambda: gone(server) and gone(call))

    def test_another_environment_has_another_server(self):
        one = fork_server.server(SHELL, self.folder)
        self.addCleanup(one.close)
        self.assertIs(fork_server.server(SHELL, self.folder), one)
        os.environ["REFRACT_TEST_SETTING"] = "new"
        self.addCleanup(os.environ.pop, "REFRACT_TEST_SETTING")
        other = fork_server.server(SHELL, self.folder)
        self.addCleanup(other.close)
        done = self.call(other, "echo $REFRACT_TEST_SETTING")
        self.assertEqual(done.stdout, "new\n")


if __name__ == "__main__":
    unittest.main()
