"""run_in_vm itself, in guests."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

RUN_IN_VM = pathlib.Path(__file__).resolve().parent / "run_in_vm"
SKIPPED = 77


def qemus(process_id):
    """Ids of the guests that `process_id` has started."""
    found = []
    for path in pathlib.Path(f"/proc/{process_id}/task").glob("*/children"):
        for child in path.read_text().split():
            # Gone meanwhile: one of its short-lived helpers.
            with contextlib.suppress(OSError):
                if "qemu" in os.readlink(f"/proc/{child}/exe"):
                    found.append(int(child))
    return found


def runs(process_id):
    """False once it ended, even when nobody has collected its status yet."""
    try:
        status = pathlib.Path(f"/proc/{process_id}/status").read_text()
    except OSError:
        return False
    return "State:\tZ" not in status


class RunInVmTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.job = self.folder / "job"

    def command(self, *arguments):
        return [
            RUN_IN_VM, "--where", "vm", "--take-turns", "--job-dir", self.job, *arguments
        ]

    def run_in_vm(self, *arguments):
        done = subprocess.run(
            self.command(*arguments), capture_output=True, text=True,
            timeout=500, check=False,
        )  # fmt: skip
        if done.returncode == SKIPPED:
            self.skipTest(done.stdout.splitlines()[-1])
        return done

    def result(self):
        return json.loads((self.job / "result.json").read_text())

    def test_programs_of_one_boot(self):
        shared = self.folder / "shared"
        shared.mkdir()
        commands = self.folder / "list"
        commands.write_text(
            # Output, a quoted argument, the environment.
            """bash -c 'echo "out $0 $A"; echo err >&2; exit 3' "a b"\n"""
            # The test leaves behind a process, loss and a file beyond the share.
            "bash -c 'sleep 1000 & tc qdisc add dev refract0 root netem loss 5%;"
            f" touch /etc/left-behind {shared}/file'\n"
            # …is gone: the counters are new, the interface too.
            "bash -c '! grep -qx sleep /proc/[0-9]*/comm && ! tc qdisc show dev refract0 | grep netem'\n"
            "bash -c 'trap \"\" TERM; sleep 1000; sleep 1000'\n"
            "ibv_devinfo\n"
        )
        done = self.run_in_vm(
            "--layout", "veth", "--timeout", "4", "--list", commands,
            "--env", "A=b c", "--share", shared,
        )  # fmt: skip
        result = self.result()
        self.assertEqual(
            [p["exit_code"] for p in result["programs"]],
            [3, 0, 0, 124, 0],
            done.stdout + done.stderr,
        )
        self.assertEqual(done.returncode, 3)
        self.assertIn("out a b b c\n", done.stdout)
        self.assertNotIn("err\n", done.stdout)
        self.assertIn("err\n", done.stderr)
        self.assertIn("after 4 s", result["programs"][3]["problem"])
        self.assertIn("rxe0", done.stdout)
        self.assertIn("rxe1", done.stdout)
        self.assertTrue((shared / "file").exists())
        self.assertFalse(os.path.exists("/etc/left-behind"))
        counters = json.loads(
            (self.job / "programs/000/counters_after.json").read_text()
        )
        self.assertEqual(set(counters), {"rxe0", "rxe1"})
        self.assertIn("rcvd_rnr_err", counters["rxe0"])

    def test_a_guest_that_dies_is_a_failed_set_up(self):
        done = self.run_in_vm(
            "--layout", "none", "--",
            "bash", "-c", "echo before; sleep 1; echo c >/proc/sysrq-trigger",
        )  # fmt: skip
        self.assertEqual(done.returncode, 125, done.stdout + done.stderr)
        self.assertIn("before", done.stdout)
        self.assertIn("Kernel panic", done.stdout)
        self.assertEqual(self.result()["programs"][0]["exit_code"], 125)

    def test_killed_it_takes_the_guest_along(self):
        self.check_guest_ends(signal.SIGKILL)

    def test_stopped_it_takes_the_guest_along(self):
        self.check_guest_ends(signal.SIGTERM)

    def test_a_killed_guest_is_a_failed_set_up(self):
        process, guests = self.start()
        os.kill(guests[-1], signal.SIGKILL)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 125)
        self.assertIn("QEMU was ended by SIGKILL", out)

    def start(self):
        """(run_in_vm, its guests)."""
        # No probe of KVM: its machine is not the emulated machine.
        environment = os.environ | {"REFRACT_RDMA_VM_ACCEL": "tcg"}
        process = subprocess.Popen(
            self.command("--layout", "none", "--", "sleep", "1000"),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=environment,
        )  # fmt: skip
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        guests = []
        end = time.monotonic() + 60
        while not guests and process.poll() is None:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
            guests = qemus(process.pid)
        if not guests:
            self.assertEqual(process.returncode, SKIPPED)
            self.skipTest(process.stdout.read().splitlines()[-1])
        return process, guests

    def check_guest_ends(self, how):
        process, guests = self.start()
        process.send_signal(how)
        process.wait()
        end = time.monotonic() + 60
        while any(runs(guest) for guest in guests):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)


if __name__ == "__main__":
    unittest.main()
