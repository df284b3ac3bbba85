#!/usr/bin/env python3
"""Checks and measures the CUDA backend part by part, so that what is wrong costs
only its own figures: the middle of scripts/gpu_check.sh, which builds first.

The check (device_check) runs a process for each part, as no part may spoil the
next. Where one fails, hangs or dies, it is run again without the mechanisms that
the backend can do without (runtime/cuda/program/switches.h, and early starts), then with
half of them, and so on: what is left is switched off for all that follows, by
name and with what it said. The check has early starts wherever they are possible.

Measurements (bench_cuda, torch_compare.py) run in one process as long as all goes
well: it announces each part by a line "-- NAME" and keeps its results in a file;
where a part ends the process or takes too long, the next process goes on behind
it.

Check and measurements leave time for the comparison with PyTorch, which comes last.
Results so far are in check.json, bench.json, torch.json and gpu_check.json, .md
(summarize.py) after every process. Exit status 0: all parts passed with all
mechanisms; 1: not; 77: there was no GPU from the beginning. Processes end with
this one, whatever ends it.
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

# Those likely to be at fault together come first: they are tried first.
MECHANISMS = [
    "early_starts", "graphs", "tensor_interaction", "wide_kernels", "epilogues",
    "tile_products", "row_products", "product_trials", "merged_tables", "row_copies",
]  # fmt: skip
# Parts of the check that are about one.
OWN_PARTS = {"row_products": ["row_products"], "tile_products": ["tile_products"]}
# Lines of what a part said that are kept in the results.
KEPT_LINES = 12


class Budget:
    """Seconds that are left, of a share and of all but what is kept for others."""

    def __init__(self, end, share_s, kept_s=0.0):
        self.end = min(end - kept_s, time.monotonic() + share_s)

    def left(self):
        return self.end - time.monotonic()


class Outcome:
    """How a process ended: `status` is its own, or None where it was killed."""

    def __init__(self, status, hung, lines, announced, seconds):
        self.status, self.hung, self.lines = status, hung, lines
        self.announced, self.seconds = announced, seconds

    @property
    def ok(self):
        return self.status == 0 and not self.hung

    @property
    def what(self):
        """In words; "" where all was well."""
        if self.hung:
            return f"did not end within {self.seconds:.0f} s"
        if self.status == 0:
            return ""
        if self.status == 77:
            return "saw no GPU"
        if self.status == 3:
            return "slightly larger errors than allowed"
        if self.status < 0:
            try:
                return f"died of {signal.Signals(-self.status).name}"
            except ValueError:
                return f"died of signal {-self.status}"
        return f"failed with status {self.status}"


def end(process):
    """Kills what is left of a process and of those that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # A kernel that does not end may keep its process for a while.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)


def list_parts(command, environment, log, limit_s):
    """The parts that `command` has; or none, and why not: its exit status, None
    where it did not end. What it said goes to `log` then."""
    process = None
    try:
        process = subprocess.Popen(
            [*command, "--list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", env=environment, start_new_session=True,
        )  # fmt: skip
        said, complaint = process.communicate(timeout=limit_s)
        status = process.returncode
    except OSError as error:
        said, complaint, status = "", str(error), 127
    except subprocess.TimeoutExpired:
        said, complaint, status = "", f"--list did not end within {limit_s:.0f} s", None
    finally:
        if process is not None:
            end(process)
    if status == 0:
        return said.split(), 0
    log.write_text(f"{said}{complaint}\n", encoding="utf-8")
    print(said, complaint, sep="", flush=True)
    return [], status


def execute(command, environment, log, part_s, total_s):
    """Runs `command` until it ends, neither announces a part ("-- NAME") nor says that
    one goes on ("..") for `part_s` seconds, or has taken `total_s`. What it prints goes
    to the terminal and to `log`."""
    begin = time.monotonic()
    process = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        env=environment, start_new_session=True,
    )  # fmt: skip
    lines, announced, last = [], [], [begin]

    def read():
        with open(log, "a", encoding="utf-8") as file:
            for line in process.stdout:
                file.write(line)
                file.flush()
                sys.stdout.write(line)
                sys.stdout.flush()
                if line.startswith(".."):
                    last[0] = time.monotonic()
                    continue
                if line.startswith("-- "):
                    announced.append(line[3:].strip())
                    last[0] = time.monotonic()
                    lines.clear()
                lines.append(line.rstrip("\n"))
                del lines[: -10 * KEPT_LINES]

    reader = threading.Thread(target=read, daemon=True)
    hung = False
    # From here on: what is printed may have this process ended at once.
    try:
        reader.start()
        while process.poll() is None:
            now = time.monotonic()
            if now - last[0] > part_s or now - begin > total_s:
                hung = True
                break
            time.sleep(0.05)
        seconds = time.monotonic() - (last[0] if hung else begin)
    finally:
        end(process)
    reader.join(timeout=5)
    return Outcome(process.poll(), hung, lines[:], announced[:], seconds)


class Run:
    def __init__(self, options):
        self.options = options
        self.end = time.monotonic() + options.limit_s
        self.out = options.out
        self.failed = []  # names
        self.off = {}  # mechanism: why
        self.seed = options.seed
        self.no_gpu = False
        # Kept for it, however long all before it takes.
        self.torch_s = options.torch_s if options.torch else 0.0
        for name in filter(None, os.environ.get("REFRACT_CUDA_WITHOUT", "").split(",")):
            self.off[name] = {"why": "asked for by REFRACT_CUDA_WITHOUT"}
        if os.environ.get("REFRACT_EARLY_STARTS") == "never":
            self.off["early_starts"] = {"why": "asked for by REFRACT_EARLY_STARTS"}

    def environment(self, off, force_early):
        environment = dict(os.environ)
        environment["REFRACT_CUDA_WITHOUT"] = ",".join(
            sorted(set(off) - {"early_starts"})
        )
        environment.pop("REFRACT_EARLY_STARTS", None)
        if "early_starts" in off:
            environment["REFRACT_EARLY_STARTS"] = "never"
        elif force_early:
            environment["REFRACT_EARLY_STARTS"] = "always"
        return environment

    def write(self, name, content):
        path = self.out / f"{name}.json"
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
        summarize.write(
            self.out, self.options.seconds_before + time.monotonic() - self.options.begin,
            self.failed, self.off, quiet=True,
        )  # fmt: skip

    # --- the check

    def check_once(self, part, off, budget, limit_s=None):
        """The part's outcome and its results, without `off`."""
        path = self.out / "part.json"
        path.unlink(missing_ok=True)
        outcome = execute(
            [*self.options.check, "--part", part, "--seed", self.seed, "--json", path],
            self.environment(off, True), self.out / "check.log",
            min(limit_s or self.options.part_s, max(budget.left(), 1)),
            max(budget.left(), 1),
        )  # fmt: skip
        return outcome, summarize.read(path)

    def culprits(self, part, budget):
        """Mechanisms without which the part passes, as few as there was time to
        find; and its results without them. None where it fails without all."""
        suspects = [
            name for name in OWN_PARTS.get(part, MECHANISMS) if name not in self.off
        ]

        def passes(without, limit_s=None):
            print(f"== {part} without {', '.join(without)}", flush=True)
            return self.check_once(part, [*self.off, *without], budget, limit_s)

        if not suspects or budget.left() < 1:
            return None, None
        outcome, result = passes(suspects)
        if not outcome.ok:
            return None, None
        # How long it takes is known now: one that hangs must not use up the time in
        # which the others are told apart.
        limit_s = min(self.options.part_s, max(4 * outcome.seconds, 10))
        while len(suspects) > 1 and budget.left() > 1:
            half = suspects[: (len(suspects) + 1) // 2]
            outcome, found = passes(half, limit_s)
            if outcome.ok:
                suspects, result = half, found
                continue
            other = suspects[len(half) :]
            outcome, found = passes(other, limit_s)
            if not outcome.ok:  # some of both halves
                break
            suspects, result = other, found
        return suspects, result

    def check(self):
        budget = Budget(
            self.end, self.options.check_s,
            self.torch_s + min(self.options.bench_s, self.options.least_bench_s),
        )  # fmt: skip
        parts, status = list_parts(
            self.options.check[:1], self.environment(self.off, True),
            self.out / "check.log", min(self.options.part_s, max(budget.left(), 1)),
        )  # fmt: skip
        if status != 0:
            self.failed.append("check")
        results = {"device": None, "seed": self.seed, "parts": {}, "left_out": []}
        for part in parts:
            if budget.left() < 2:
                results["left_out"].append(part)
                self.write("check", results)
                continue
            print(f"== check: {part}", flush=True)
            outcome, result = self.check_once(part, self.off, budget)
            # One that was there and is gone is no reason to be silent.
            if outcome.status == 77 and not results["parts"]:
                self.no_gpu = True
                return
            if outcome.hung and outcome.seconds < self.options.part_s:
                results["left_out"].append(part)  # it had no time of its own
                self.write("check", results)
                continue
            entry = {"outcome": outcome.what or "ok", "seconds": outcome.seconds}
            if not outcome.ok:
                self.failed.append(f"check of {part}")
                entry["output"] = outcome.lines[-KEPT_LINES:]
                said = [line for line in outcome.lines if line.startswith("FAILED")]
                if said:
                    entry["output"] = said[:KEPT_LINES]
                # Where errors are a little larger than allowed, the figures of
                # what computed them are what is wanted.
                if outcome.status != 3:
                    names, without = self.culprits(part, budget)
                    for name in names or []:
                        self.off[name] = {
                            "why": f"check of {part} {outcome.what}",
                            "output": entry["output"],
                        }
                        print(f"== switched off: {name}", flush=True)
                    if names:
                        result = without
                        entry["passes_without"] = names
            if result:
                results["device"] = result["device"]
                entry.update(result.get(part, {}))
            results["parts"][part] = entry
            self.write("check", results)
        (self.out / "part.json").unlink(missing_ok=True)

    # --- measurements

    def measure(self, name, command, budget, part_s):
        """Runs all parts of a program, each again in a new process as often as one
        before it fails."""
        log = self.out / f"{name}.log"
        parts, status = list_parts(
            command, self.environment(self.off, False), log,
            min(part_s, max(budget.left(), 1)),
        )  # fmt: skip
        if status != 0:
            # There was a GPU for the check; torch may not be there.
            if status != 77 or name != "torch":
                self.failed.append(name)
            return
        merged = {"failed": [], "left_out": []}
        while parts:
            if budget.left() < 2:
                merged["left_out"] += parts
                self.write(name, merged)
                break
            path = self.out / "part.json"
            path.unlink(missing_ok=True)
            print(f"== {name}", flush=True)
            outcome = execute(
                [*command, "--parts", ",".join(parts), "--json", path,
                 *(["--limit-s", f"{budget.left():.0f}"] if name == "torch" else [])],
                self.environment(self.off, False), log, part_s, budget.left(),
            )  # fmt: skip
            self.merge(merged, summarize.read(path) or {})
            # One that fails in a part goes on by itself where it can.
            ended = outcome.announced[-1] if outcome.announced else None
            if outcome.ok or outcome.status == 1 and ended == parts[-1] and merged.get(
                "failures"
            ):  # fmt: skip
                parts = []
            elif outcome.hung and budget.left() <= 0:
                rest = parts[parts.index(ended) :] if ended in parts else parts
                merged["left_out"] += rest
                parts = []
            else:
                failed = ended if ended in parts else parts[0]
                merged["failed"].append(
                    {"part": failed, "outcome": outcome.what,
                     "output": outcome.lines[-KEPT_LINES:]}
                )  # fmt: skip
                self.failed.append(f"{name} of {failed}")
                print(f"== {name}: {failed} {outcome.what}", flush=True)
                parts = parts[parts.index(failed) + 1 :]
            self.write(name, merged)
        (self.out / "part.json").unlink(missing_ok=True)
        if merged.get("failures"):
            self.failed.append(name)
        self.write(name, merged)

    @staticmethod
    def merge(merged, result):
        """Lists are added to, all else is of the last process."""
        for key, value in result.items():
            if isinstance(value, list):
                merged.setdefault(key, []).extend(value)
            else:
                merged[key] = value

    def run(self):
        self.check()
        if self.no_gpu:
            return 77
        self.measure(
            "bench", self.options.bench,
            Budget(self.end, self.options.bench_s, self.torch_s), self.options.part_s,
        )  # fmt: skip
        # Python's own start and the summary need a few seconds.
        if self.options.torch:
            self.measure(
                "torch", self.options.torch, Budget(self.end - 15, self.options.limit_s),
                self.options.torch_part_s,
            )  # fmt: skip
        return 1 if self.failed else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words = {"type": shlex.split, "metavar": "COMMAND"}
    parser.add_argument("--check", **words, required=True, help="device_check, options")
    parser.add_argument("--bench", **words, required=True, help="bench_cuda, options")
    parser.add_argument("--torch", **words, help="python3 torch_compare.py, options")
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
    # So that what runs ends, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    run = Run(options)
    status = run.run()
    if status != 77:
        summarize.write(
            options.out, options.seconds_before + time.monotonic() - options.begin,
            run.failed, run.off,
        )  # fmt: skip
    return status


if __name__ == "__main__":
    sys.exit(main())
