"""refract calibrate and refract partition --verify over real nodes.

Nothing here is a bar on time: tests run on busy machines. What is counted is
exact.
"""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest
import unittest.mock

from tests.e2e import chromium, support
from scripts.lib.nodes import program, wait_until

ALTERNATIVES = ("optimal", "heuristic", "all-cn", "all-hn")


def children_of(pid):
    """Processes that `pid` started and that still run."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue  # it has just ended
        # Behind the name, which may hold anything: state, parent.
        state, parent = stat.rpartition(")")[2].split()[:2]
        if int(parent) == pid and state != "Z":
            found.append(int(entry.name))
    return found


def is_running(pid):
    try:
        stat = (pathlib.Path("/proc") / str(pid) / "stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class VerifyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        # Where the command keeps its own folder: nothing may stay there.
        cls.scratch = cls.folder / "scratch"
        cls.scratch.mkdir()
        cls.environment = {**os.environ, "TMPDIR": str(cls.scratch)}
        exported = support.export("dlrm", cls.folder / "dlrm")
        cls.sample = exported / "sample.safetensors"
        support.add_model(cls.folder / "repo", "dlrm", exported / "dlrm.pt2")
        cls.model = cls.folder / "repo" / "dlrm"
        cls.calibration = cls.folder / "calibration.textproto"
        cls.refract(
            "calibrate", "--output", cls.calibration, "--rounds", 2,
            "--transport", "shm",
        )

    @classmethod
    def refract(cls, *arguments, **kwargs):
        with unittest.mock.patch.dict(os.environ, cls.environment):
            return support.refract(*arguments, **kwargs)

    def tearDown(self):
        self.assertEqual(list(self.scratch.iterdir()), [])

    def verify(self, *arguments, method="optimal"):
        report = self.folder / "verify.json"
        done = self.refract(
            "partition", self.model, "--method", method, "--verify",
            "--verify-rounds", 2, "--calibration", self.calibration,
            "--json", report, *arguments,
        )
        with open(report, encoding="utf-8") as file:
            return done.stdout, json.load(file)["partition"]["verification"]

    def check(self, verification, exact=True):
        cuts = verification["cuts"]
        named = " = ".join(c["name"] for c in cuts if not c["forced"])
        for method in ALTERNATIVES:
            self.assertIn(method, named.split(" = "))
        forced = [c for c in cuts if c["forced"]]
        self.assertGreaterEqual(len(forced), 5)
        crossings = {(tuple(c["up"]), tuple(c["down"])) for c in forced}
        self.assertEqual(len(crossings), len(forced))
        self.assertEqual(verification["answers_equal"], exact)
        for cut in cuts:
            with self.subTest(cut["name"]):
                self.assertGreater(cut["predicted_s"], 0)
                self.assertGreater(cut["measured_s"]["median"], 0)
                self.assertEqual(cut["measured_s"]["samples"], 8)
                self.assertAlmostEqual(
                    cut["predicted_over_measured"],
                    cut["predicted_s"] / cut["measured_s"]["median"],
                )
                if cut["up"] or cut["down"]:
                    self.assertGreater(cut["bytes_up"], 0)
                    self.assertGreater(cut["bytes_down"], 0)
                    # The prediction counts no request id. An id lies in the
                    # head of a message, which is padded to 64 B.
                    predicted = (cut["predicted_bytes_up"]
                                 + cut["predicted_bytes_down"])
                    self.assertAlmostEqual(
                        cut["bytes_up"] + cut["bytes_down"], predicted,
                        delta=max(0.02 * predicted, 64),
                    )
                    self.assertAlmostEqual(
                        cut["bytes_over_predicted"],
                        (cut["bytes_up"] + cut["bytes_down"]) / predicted,
                    )
                else:
                    self.assertEqual(cut["bytes_up"], 0)
                    self.assertIsNone(cut["bytes_over_predicted"])
        self.assertGreaterEqual(verification["rank_correlation"], -1)
        self.assertLessEqual(verification["rank_correlation"], 1)

    def test_every_cut_is_run_counted_and_compared(self):
        text, verification = self.verify("--batch", 48, "--transport", "shm")
        self.assertEqual(verification["transport"], "shm")
        self.assertEqual(verification["batch"], 48)
        self.assertGreater(verification["distinct_requests"], 1)
        self.check(verification)
        for cut in verification["cuts"]:
            self.assertIn(cut["name"], text)
        self.assertIn("rank correlation", text)

    def test_a_sample_over_tcp(self):
        _, verification = self.verify(
            "--sample", self.sample, "--transport", "tcp"
        )
        self.assertEqual(verification["transport"], "tcp")
        self.assertEqual(verification["distinct_requests"], 1)
        self.check(verification)

    def test_cuts_in_forms_of_their_own(self):
        text, verification = self.verify(
            "--batch", 48, "--transport", "shm", "--wire-dtype", "int8"
        )
        self.check(verification, exact=False)
        lossy = [cut for cut in verification["cuts"] if cut["up"]]
        self.assertTrue(lossy)
        for cut in lossy:
            with self.subTest(cut["name"]):
                self.assertIn("int8", cut["up_forms"] + cut["down_forms"])
                # Both tell of the same requests: the nodes compute what this
                # process does.
                for error in cut["errors"]:
                    self.assertGreater(error["expected_at_most"], 0)
                    self.assertEqual(
                        error["max_abs_error"], error["expected_at_most"]
                    )
        self.assertIn("  error ", text)

    def test_the_page_shows_forms_rows_and_what_was_found(self):
        if chromium.find() is None:
            self.skipTest("chromium is not installed")
        page = self.folder / "verify.html"
        _, verification = self.verify(
            "--batch", 16, "--transport", "shm", "--wire-dtype", "fp16",
            "--report", page, method="all-hn",
        )
        with open(self.folder / "verify.json", encoding="utf-8") as file:
            report = json.load(file)
        browser = chromium.Page()
        self.addCleanup(browser.close)
        browser.open(page.as_uri())
        wait_until(
            lambda: browser.evaluate("document.documentElement.dataset.ready")
            == "yes",
            "the page is drawn",
        )

        def text(selector):
            return browser.evaluate(
                f"document.querySelector({selector!r}).innerText"
            )

        self.assertIn(report["partition"]["hn_rows"], text("#rows"))
        self.assertIn("output_0 off by up to", text("#wire"))
        self.assertIn("as fp16, alone off by", text("#crossings"))
        table = text("#verification")
        self.assertIn(f"{verification['rank_correlation']:.3f}", table)
        for cut in verification["cuts"]:
            self.assertIn(cut["name"], table)
            self.assertIn(f"{cut['predicted_over_measured']:.2f}", table)
        # Each tensor's bytes are those that were sent.
        crossing = report["wire"]["up"]
        self.assertTrue(all(one["type"] == "fp16" for one in crossing
                            if one["plain_bytes"] > 1000))
        self.assertTrue(any(one["max_abs_error_alone"] for one in crossing))

    def test_users_of_a_sample_cross_once_and_bits_stay(self):
        tensors = support.make_inputs(
            self.folder / "dlrm" / "dlrm.json", 40, seed=3, bags="published"
        )
        same = {}
        for name, tensor in tensors.items():
            # One id per item, and all of them the same user's.
            same[name] = tensor if name.startswith("offsets") else (
                tensor[:1].expand_as(tensor).contiguous()
            )
        sample = self.folder / "same.safetensors"
        support.write_tensors(sample, same)
        _, verification = self.verify(
            "--transport", "tcp", "--sample", sample, "--wire-dtype", "fp32"
        )
        self.check(verification)
        self.assertTrue(
            any(
                "equal rows once" in form
                for cut in verification["cuts"]
                for form in cut.get("up_forms", [])
            )
        )

    def test_cuts_that_break_the_bound_are_left_out(self):
        text, verification = self.verify(
            "--batch", 16, "--transport", "shm", "--wire-dtype", "auto",
            "--wire-error-bound", "1e-4",
        )
        for cut in verification["cuts"]:
            for error in cut.get("errors", []):
                self.assertLessEqual(error["max_abs_error"], 1e-4)
        # In int8 no error is small enough for that bound.
        done = self.refract(
            "partition", self.model, "--method", "all-hn", "--verify",
            "--verify-rounds", 1, "--calibration", self.calibration,
            "--batch", 16, "--wire-dtype", "int8",
            "--wire-error-bound", "1e-12", check=False,
        )
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--wire-error-bound", done.stderr)

    def test_without_a_calibration_one_is_made(self):
        report = self.folder / "verify.json"
        done = self.refract(
            "partition", self.model, "--method", "heuristic", "--verify",
            "--verify-rounds", 1,
            "--verify-cuts", 0, "--batch", 8, "--json", report,
        )
        self.assertIn("front end:", done.stdout)
        with open(report, encoding="utf-8") as file:
            partition = json.load(file)["partition"]
        calibration = partition["verification"]["calibration"]
        self.assertGreater(calibration["request_s"], 0)
        self.assertEqual(
            partition["conditions"]["link"]["bytes_per_s"],
            calibration["link_bytes_per_s"],
        )
        self.assertFalse(
            any(cut["forced"] for cut in partition["verification"]["cuts"])
        )

    def refused(self, *arguments):
        done = self.refract(
            "partition", self.model, "--method", "heuristic", "--verify",
            *arguments, check=False
        )
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr

    def test_bad_input_is_refused_by_name(self):
        other = support.export("two_tower", self.folder / "two_tower")
        self.assertIn(
            "sample.safetensors",
            self.refused("--sample", other / "sample.safetensors"),
        )
        self.assertIn(
            "--batch says 7",
            self.refused("--sample", self.sample, "--batch", 7),
        )
        empty = self.folder / "empty"
        empty.mkdir()
        self.assertIn(
            "refract-cpu-node", self.refused("--node-programs", empty)
        )

    def test_a_node_that_does_not_start_is_a_failure_with_its_log(self):
        programs = self.folder / "programs"
        programs.mkdir()
        broken = programs / "refract-gpu-node"
        broken.write_text("#!/bin/sh\necho out of luck >&2\nexit 3\n")
        broken.chmod(0o755)
        (programs / "refract-cpu-node").symlink_to(program("refract-cpu-node"))
        done = self.refract(
            "partition", self.model, "--method", "heuristic", "--verify",
            "--node-programs", programs,
            "--calibration", self.calibration, check=False,
        )
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("refract-gpu-node has ended: exit status 3", done.stderr)
        self.assertIn("out of luck", done.stderr)

    def started(self):
        """A long verification, and its two nodes."""
        process = subprocess.Popen(
            [
                program("refract"), "partition", str(self.model), "--method",
                "heuristic", "--verify",
                "--verify-rounds", "1000000", "--calibration",
                str(self.calibration),
            ],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=self.environment,
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        wait_until(
            lambda: len(children_of(process.pid)) == 2, "both nodes run"
        )
        return process, children_of(process.pid)

    def test_a_signal_leaves_no_process_and_no_file(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                process, nodes = self.started()
                process.send_signal(number)
                _, errors = process.communicate(timeout=120)
                self.assertEqual(process.returncode, 1, errors)
                self.assertIn("ended by signal", errors)
                for node in nodes:
                    self.assertFalse(is_running(node))
                self.assertEqual(list(self.scratch.iterdir()), [])

    def test_a_killed_command_leaves_no_process(self):
        process, nodes = self.started()
        process.kill()
        process.wait()
        wait_until(
            lambda: not any(map(is_running, nodes)), "the nodes are gone"
        )
        # Nobody was left to clean up files.
        for folder in self.scratch.iterdir():
            support.run("rm", "-r", folder)

    def test_a_node_that_dies_is_a_failure(self):
        process, nodes = self.started()
        os.kill(nodes[0], signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, errors)
        self.assertIn("log of refract-gpu-node", errors)
        self.assertFalse(any(map(is_running, nodes)))


if __name__ == "__main__":
    unittest.main()
