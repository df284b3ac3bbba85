"""What the benchmarks of serving share: options, clients, sums over reports, results."""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from scripts.lib import nodes

# Requests per second, more than any generator can send.
AT_ONCE_PER_S = 1_000_000


def option_parser(documentation):
    """Options that every benchmark of this folder has."""
    parser = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=pathlib.Path, help="file for the result")
    return parser


def at_least_three(text):
    """The type of --rounds, for quartiles."""
    if int(text) < 3:
        raise argparse.ArgumentTypeError("must be at least 3")
    return int(text)


@contextlib.contextmanager
def workplace(folder=None):
    """A stack for nodes, and a folder: `folder`, or one that ends with the stack."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        yield stack, folder


@contextlib.contextmanager
def first_processor():
    """Nodes that start within have one processor, and later processes the others.

    Yields whether there are others.
    """
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, processors[:1] if len(processors) > 1 else processors)
    yield len(processors) > 1
    os.sched_setaffinity(0, processors[1:] or processors)


def in_turn(kinds, number):
    """`kinds` forwards in every second round, so that a drift favours none."""
    return list(kinds)[:: -1 if number % 2 else 1]


def spread(ratio, digits=2):
    """Quartiles as text."""
    return (f"{ratio['median']:.{digits}f} "
            f"({ratio['q25']:.{digits}f} to {ratio['q75']:.{digits}f})")


def write_result(arguments, result):
    """To the file of --json, if there is one."""
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


class Client:
    """`refract bench serving` of one model."""

    def __init__(self, folder, node, model, items):
        self.folder, self.node = folder, node
        self.model, self.items = model, items
        self.count = 0

    def start(self, qps, duration, seed, timeout=10, max_in_flight=None,
              ids="uniform", csv=None, arrivals="poisson", warmup=0.5):
        self.count += 1
        self.report = self.folder / f"{self.model}-{self.count}.json"
        self.process = subprocess.Popen(
            [
                nodes.program("refract"), "bench", "serving",
                "--target", self.node.address, "--model", self.model,
                "--query-sizes", f"fixed:{self.items}", "--qps", f"{qps:g}",
                "--duration", f"{duration:g}", "--warmup", f"{warmup:g}",
                "--arrivals", arrivals,
                "--timeout", f"{timeout:g}", "--seed", str(seed),
                "--ids", ids,
                "--json", str(self.report),
                *(() if csv is None else ("--csv", str(csv))),
                *(() if max_in_flight is None
                  else ("--max-in-flight", str(max_in_flight))),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait(self):
        error = self.process.communicate()[1]
        # 1: no query succeeded.
        if self.process.returncode not in (0, 1):
            sys.exit(f"refract bench serving: {error.strip()}")
        return json.loads(self.report.read_text())

    def run(self, *arguments, **options):
        self.start(*arguments, **options)
        return self.wait()

    def start_at_once(self, requests, seed, timeout=60):
        """Requests that are all due at once; the client drops none."""
        self.start(
            AT_ONCE_PER_S, requests / AT_ONCE_PER_S, seed, timeout=timeout,
            arrivals="constant", warmup=0, max_in_flight=2 * requests,
        )

    def answered(self, qps, duration, seed, timeout):
        """A run's report, and its answers per second.

        Counts the answers that arrive from `timeout` after the warm-up on until
        the load ends: a full queue needs that long to become full, and answers
        that arrive after the load belong to requests that had the node alone.
        """
        csv = self.folder / f"{self.model}-queries.csv"
        report = self.run(qps, duration, seed, timeout=timeout, csv=csv)
        return report, answers_between(csv.read_text(), timeout, duration)

    def capacity(self, seed):
        """Answers per second under more load than the node can take."""
        qps, most, tried = 50.0, 0.0, False
        while True:
            report, answered = self.answered(qps, 2.5, seed, timeout=1)
            # One stall must not end the search: the answered rate must stop
            # growing, and twice.
            enough = answered < min(0.8 * report["offered_qps"], 1.25 * most)
            most = max(answered, most)
            if tried and most == 0:
                sys.exit(
                    f"model '{self.model}' answers no request of "
                    f"{self.items} items within 1 s"
                )
            if enough and tried:
                return most
            tried = enough or most == 0
            if not tried:
                qps *= 2


class ProcessorTime:
    """Of nodes, in seconds, since it was last asked."""

    def __init__(self, *running):
        self.files = [
            pathlib.Path(f"/proc/{node.process.pid}/stat") for node in running
        ]
        self.before = self.sum()

    def sum(self):
        ticks = 0
        for file in self.files:
            # utime and stime, after the name, which may have spaces.
            fields = file.read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def lap(self):
        before, self.before = self.before, self.sum()
        return self.before - before


def answers_between(queries, begin, end):
    """Answers per second of the queries in `refract bench serving --csv`.

    `begin`, `end`: seconds since the warm-up. Queries of the warm-up are not in the
    file, so `begin` must be at least the timeout of a query.
    """
    count = 0
    for line in queries.splitlines()[1:]:
        due, _, _, latency_ms, outcome = line.split(",")
        if outcome == "OK":
            count += begin <= float(due) + float(latency_ms) / 1e3 < end
    return count / (end - begin)


def quartiles(values):
    """Quartiles among `values`, which may be infinite."""
    values, quarter = sorted(values), len(values) // 4
    return {
        "q25": values[quarter],
        "median": values[len(values) // 2],
        "q75": values[-1 - quarter],
    }
