#!/usr/bin/env python3
"""Runs the check and the measurements of the CUDA backend part by part, so that a
part that fails costs only its own figures: the middle of scripts/gpu_check.sh, which
builds first.

Three programs take their turns: device_check, bench_cuda and torch_compare.py. Each
prints the names of its parts with --list and runs the parts of --parts. A line of
its output that begins with

    "-- "      names the part that begins
    "= "       is a result, as JSON: a figure with a name, facts of the part, or the
               name of a figure that there was no time for ("left_out")
    ".. "      says that the part goes on
    "FAILED"   is a failure of the part

A part that ends its process, or says nothing for too long, has failed; a new process
goes on behind it. Check and measurements leave time for the comparison with PyTorch,
which comes last. Parts without enough time are left out and named.

Results so far are in check.json, bench.json, torch.json and gpu_check.json, .md
(summarize.py) after every process. Exit status 0: every part passed; 1: not; 77:
there was no GPU from the beginning. All processes end with this one.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import shlex
import signal
import subprocess
import sys
import threading
import time

import summarize

# Lines of a part's output that are kept where it fails.
KEPT_LINES = 12
NO_GPU = 77


def words(status, hung, seconds):
    """How a process ended."""
    if hung:
        return f"did not end within {seconds:.0f} s"
    if status == NO_GPU:
        return "saw no GPU"
    if status == 3:
        return "slightly larger errors than allowed"
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"died of {signal.Signals(-status).name}"
    return f"failed with status {status}"


def end(process):
    """Kills a process and its children."""
    with contextlib.suppress(ProcessLookupError):
        # The process leads a session of its own (start_new_session), so its children are in its
        # group.
        os.killpg(process.pid, signal.SIGKILL)
    # A kernel that does not end may keep its process for a while.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)


class Output:
    """Output of a process, by part."""

    def __init__(self, result, log):
        self.result, self.log = result, log
        self.part = None
        self.said = time.monotonic()  # when it last said that it goes on
        self.begun = self.said  # the part
        self.lines = []  # of the part

    def end_part(self, outcome=None):
        """`outcome`: how the part failed, where its output does not say so."""
        if self.part is None:
            return
        failures = [line for line in self.lines if line.startswith("FAILED")]
        entry = self.result["parts"].setdefault(self.part, {})
        entry["outcome"] = outcome or ("failed" if failures else "ok")
        entry["seconds"] = time.monotonic() - self.begun
        if entry["outcome"] != "ok":
            entry["output"] = (failures or self.lines[-KEPT_LINES:])[:KEPT_LINES]

    def read(self, stream):
        with open(self.log, "a", encoding="utf-8") as log:
            for line in stream:
                log.write(line)
                log.flush()
                self.take(line.rstrip("\n"))

    def take(self, line):
        if line.startswith("= "):
            fact = json.loads(line[2:])
            if "name" in fact:
                self.result["rows"].append(fact)
            elif "left_out" in fact:
                self.result["left_out"].append(fact["left_out"])
            elif self.part is None:
                self.result.update(fact)
            else:
                self.result["parts"].setdefault(self.part, {}).update(fact)
            return
        print(line, flush=True)
        if line.startswith(("..", "-- ")):
            self.said = time.monotonic()
        if line.startswith("-- "):
            self.end_part()
            self.part, self.begun, self.lines = line[3:].strip(), self.said, []
        elif not line.startswith(".."):
            self.lines.append(line)
            del self.lines[: -10 * KEPT_LINES]


def execute(command, output, part_s, total_s):
    """Runs `command` until it ends, is silent for `part_s` seconds, or has taken
    `total_s`. Gives its exit status and whether it had to be ended."""
    begin = time.monotonic()
    process = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,
    )  # fmt: skip
    reader = threading.Thread(target=output.read, args=[process.stdout], daemon=True)
    hung = False
    # From here on a printed line may lead to the end of this process at once.
    try:
        reader.start()
        while process.poll() is None and not hung:
            now = time.monotonic()
            hung = now - output.said > part_s or now - begin > total_s
            time.sleep(0.05)
    finally:
        end(process)
    reader.join(timeout=5)
    return process.poll(), hung


class Run:
    def __init__(self, options):
        self.options = options
        self.end = time.monotonic() + options.limit_s
        self.failed = []  # names

    def write(self, name, content):
        path = self.options.out / f"{name}.json"
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(path)
        self.summarize(quiet=True)

    def summarize(self, quiet=False):
        seconds = self.options.seconds_before + time.monotonic() - self.options.begin
        summarize.write(self.options.out, seconds, self.failed, quiet)

    def parts_of(self, name, command, limit_s):
        """The names of a program's parts and its exit status."""
        log = self.options.out / f"{name}.log"
        lister = None
        try:
            lister = subprocess.Popen(
                [*command, "--list"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
            said, _ = lister.communicate(timeout=limit_s)
            status = lister.returncode
        except OSError as error:
            said, status = str(error), 127
        except subprocess.TimeoutExpired:
            said, status = f"--list did not end within {limit_s:.0f} s", 1
        finally:
            if lister is not None:
                end(lister)
        if status == 0:
            return said.split(), 0
        log.write_text(said + "\n", encoding="utf-8")
        print(said, flush=True)
        return [], status

    def run_program(self, name, command, deadline, part_s):
        """Runs all parts of a program; 77 where its first part saw no GPU."""

        def left():
            return deadline - time.monotonic()

        parts, status = self.parts_of(name, command, min(part_s, max(left(), 1)))
        if status != 0:
            # There was a GPU for the check; PyTorch may be missing.
            if status != NO_GPU or name != "torch":
                self.failed.append(name)
            return status
        result = {"rows": [], "parts": {}, "left_out": []}
        while parts:
            if left() < 2:
                result["left_out"] += parts
                break
            print(f"== {name}", flush=True)
            output = Output(result, self.options.out / f"{name}.log")
            extra = ["--limit-s", f"{left():.0f}"] if name == "torch" else []
            status, hung = execute(
                [*command, "--parts", ",".join(parts), *extra], output, part_s, left()
            )
            if status == NO_GPU and not result["parts"] and name == "check":
                return NO_GPU
            if output.part not in parts:  # the process ended before its first part
                output.part = parts[0]
            last = output.part == parts[-1]
            earlier = any(entry["outcome"] != "ok" for entry in result["parts"].values()
                          if "outcome" in entry)  # fmt: skip
            if hung and left() <= 0:  # not the part's fault
                result["parts"].pop(output.part, None)
                result["left_out"] += parts[parts.index(output.part) :]
                parts = []
            # Status 1 after the last part repeats the failure of an earlier part, which its output
            # has named.
            elif status == 0 or (status == 1 and last and earlier and not hung):
                output.end_part()
                parts = []
            else:
                output.end_part(words(status, hung, time.monotonic() - output.said))
                print(f"== {name}: {output.part} "
                      f"{result['parts'][output.part]['outcome']}", flush=True)  # fmt: skip
                # A new process begins behind the part that ended this one: an error of the device
                # spoils a process's later calls.
                parts = parts[parts.index(output.part) + 1 :]
            self.write(name, result)
        for part, entry in result["parts"].items():
            if entry.get("outcome", "ok") != "ok":
                self.failed.append(f"{name} of {part}")
        self.write(name, result)
        return 0

    def run(self):
        options = self.options
        now = time.monotonic()
        torch_s = options.torch_s if options.torch else 0.0
        # The check comes first, since figures of wrong results mean nothing; but it must leave time
        # for the measurements.
        kept_s = torch_s + min(options.bench_s, options.least_bench_s)
        check = [*options.check, "--seed", str(options.seed)]
        status = self.run_program(
            "check", check, min(self.end - kept_s, now + options.check_s), options.part_s
        )
        if status == NO_GPU:
            return NO_GPU
        now = time.monotonic()
        self.run_program("bench", options.bench,
                         min(self.end - torch_s, now + options.bench_s), options.part_s)  # fmt: skip
        # Python's own start and the summary need a few seconds.
        if options.torch:
            self.run_program("torch", options.torch, self.end - 15, options.torch_part_s)
        self.summarize()
        return 1 if self.failed else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words_of = {"type": shlex.split, "metavar": "COMMAND"}
    parser.add_argument("--check", **words_of, required=True, help="device_check, options")
    parser.add_argument("--bench", **words_of, required=True, help="bench_cuda, options")
    parser.add_argument("--torch", **words_of, help="python3 torch_compare.py, options")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--limit-s", type=float, default=400, help="for all of it")
    parser.add_argument("--check-s", type=float, default=130, help="the check's share")
    parser.add_argument("--bench-s", type=float, default=150)
    parser.add_argument("--least-bench-s", type=float, default=0,
                        help="that the check leaves for it")  # fmt: skip
    parser.add_argument("--torch-s", type=float, default=0,
                        help="that check and bench leave for it")  # fmt: skip
    parser.add_argument("--part-s", type=float, default=40, help="limit of one part")
    parser.add_argument("--torch-part-s", type=float, default=90)
    parser.add_argument("--seconds-before", type=float, default=0,
                        help="that the build took, for the summary")  # fmt: skip
    options = parser.parse_args()
    options.begin = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in ("check", "bench", "torch"):
        (options.out / f"{name}.log").unlink(missing_ok=True)
    # An exit ends the processes of the parts, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return Run(options).run()


if __name__ == "__main__":
    sys.exit(main())
