"""Programs to run, the folders with their results, and the GoogleTest summary.

A job folder holds, for each program, programs/<nnn>/ with command.sh, limit_s,
stdout, stderr, counters_before.json, counters_after.json, exit_code, begin and
end (seconds of the guest's clock) and, from a GoogleTest program, cases/*.xml.
"""

import dataclasses
import json
import os
import pathlib
import shlex
import xml.etree.ElementTree as ElementTree

TIMED_OUT = 124  # as timeout(1)
FAILED_SETUP = 125
SKIPPED = 77  # SKIP_RETURN_CODE of the CTest tests

# Variables of the caller that programs see too, by prefix.
PASSED_ON = ("REFRACT_", "GTEST_", "GLOG_", "OMP_", "ASAN_", "UBSAN_", "TSAN_")
NOT_PASSED_ON = ("GTEST_OUTPUT", "REFRACT_RDMA_VM_")


def passed_on_environment():
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(PASSED_ON) and not name.startswith(NOT_PASSED_ON)
    }


@dataclasses.dataclass
class Program:
    """One command and, once it ran, what came of it."""

    command: list
    folder: pathlib.Path
    limit_s: float
    exit_code: int | None = None
    problem: str | None = None  # why there is no exit code of its own
    seconds: float | None = None

    @property
    def name(self):
        return pathlib.Path(self.command[0]).name

    def write(self, environment, folder_inside):
        """command.sh; `folder_inside` is this folder's path where it runs."""
        self.folder.mkdir(parents=True)
        (self.folder / "cases").mkdir()
        lines = [f"cd {shlex.quote(os.getcwd())} || exit"]
        variables = dict(environment)
        variables["GTEST_OUTPUT"] = f"xml:{folder_inside}/cases/"
        lines += [
            f"export {name}={shlex.quote(value)}"
            for name, value in variables.items()
        ]
        lines.append("exec " + shlex.join(self.command))
        (self.folder / "command.sh").write_text("\n".join(lines) + "\n")
        (self.folder / "limit_s").write_text(f"{self.limit_s:g}\n")
        for name in ("stdout", "stderr"):
            (self.folder / name).touch()

    def read_result(self):
        """Takes exit code and duration from the folder."""
        code = int((self.folder / "exit_code").read_text())
        begin = float((self.folder / "begin").read_text())
        end = float((self.folder / "end").read_text())
        self.seconds = round(end - begin, 2)
        # timeout(1) kills with 124, or 137 when TERM was not enough.
        if code in (TIMED_OUT, 137) and end - begin >= self.limit_s:
            self.exit_code = TIMED_OUT
            self.problem = f"still running after {self.limit_s:g} s"
        else:
            self.exit_code = code

    def counters(self, when):
        path = self.folder / f"counters_{when}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def counter_changes(self):
        """{device: {counter: difference}} of the counters that moved."""
        before, after = self.counters("before"), self.counters("after")
        changes = {}
        for device, values in after.items():
            old = before.get(device, {})
            moved = {
                name: value - old.get(name, 0)
                for name, value in values.items()
                if value != old.get(name, 0)
            }
            if moved:
                changes[device] = moved
        return changes

    def suites(self):
        """The <testsuite> elements that the program wrote."""
        found = []
        for path in sorted((self.folder / "cases").glob("*.xml")):
            try:
                found += ElementTree.parse(path).getroot().iter("testsuite")
            except ElementTree.ParseError:
                pass  # cut off: a program that died while it wrote
        return found

    def judge(self):
        """A pass in which no case ran is none."""
        cases = [c for suite in self.suites() for c in suite.iter("testcase")]
        if self.exit_code != 0 or not cases:
            return
        ran = [
            case
            for case in cases
            if case.get("status") == "run" and case.find("skipped") is None
        ]
        if not ran:
            self.exit_code = 1
            self.problem = "no case ran: filtered out or skipped, all of them"

    def as_json(self):
        return {
            "command": self.command,
            "exit_code": self.exit_code,
            "problem": self.problem,
            "seconds": self.seconds,
            "counter_changes": self.counter_changes(),
        }


def read_list(path):
    """Commands of a file with one per line, quoted as for a shell."""
    lines = pathlib.Path(path).read_text().splitlines()
    return [shlex.split(line) for line in lines if line.strip()]


def merge_cases(programs, output):
    """One GoogleTest XML file of all programs, where any wrote one.

    A program that failed without a failed case (a crash, a time-out, a leak
    report) gets one, as does one that has no cases of its own.
    """
    if not any(program.suites() for program in programs):
        return
    root = ElementTree.Element("testsuites", name="AllTests")
    for program in programs:
        suites = program.suites()
        root.extend(suites)
        failed = any(s.find(".//failure") is not None for s in suites)
        if suites and (program.exit_code == 0 or failed):
            continue
        suite = ElementTree.SubElement(root, "testsuite", name=program.name)
        case = ElementTree.SubElement(
            suite, "testcase", name="exit_code", classname=program.name,
            status="run",
        )  # fmt: skip
        if program.exit_code == SKIPPED:
            ElementTree.SubElement(case, "skipped", message="exit code 77")
        elif program.exit_code != 0:
            reason = program.problem or f"exit code {program.exit_code}"
            ElementTree.SubElement(case, "failure", message=reason)
    output.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(output, encoding="unicode")
