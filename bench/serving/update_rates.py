#!/usr/bin/env python3
"""Measures p99 at half load while rows of the tables change at different rates.

CPU nodes that run a DLRM as a whole share the machine and get equal open-loop loads
at the same time, together half of the machine's capacity. Each node follows deltas of
its own folder at its own rate. Rate 0 has two nodes, "0" and "again", whose ratio shows
how far two equal nodes are apart. Stalls of the machine hit all nodes alike, and so
does the processor time that applying deltas takes: a ratio says what the requests of a
node wait for because this node applies deltas.

Two deltas a second change rows drawn over all tables. They are made before the load
and renamed into the folders during the load: a trainer would make them on another
machine. Ratios are formed within windows of a few seconds.
"""

import json
import pathlib
import re
import shutil
import sys
import time
import urllib.request

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.serving.client import (  # noqa: E402
    Client, option_parser, quartiles, workplace, write_result,
)
from scripts.lib import deltas, nodes, repository as repositories  # noqa: E402

MODEL = "dlrm"
STEADY, AGAIN = "0", "again"
DELTAS_PER_S = 2
KINDS = 8  # different files of rows, which deltas name in turn
WARMUP_S = 3.0


def parse_arguments():
    parser = option_parser(__doc__)
    parser.add_argument("--rates", default="1000,10000,100000", metavar="LIST",
                        help="changed rows per second, beside 0")
    parser.add_argument("--tables-gib", type=float, default=0.5)
    parser.add_argument("--items", type=int, default=33, metavar="N")
    parser.add_argument("--duration", type=float, default=60, metavar="S")
    parser.add_argument("--window", type=float, default=5, metavar="S")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--qps", type=float, metavar="Q",
                        help="requests per second of each node (default: half of the "
                        "capacity of one node, divided by the number of nodes)")
    parser.add_argument("--cn", default="", metavar="ARGUMENTS",
                        help="further arguments of the CPU node")
    parser.add_argument("--work", type=pathlib.Path, metavar="DIR",
                        help="keep the model here for the next call")
    arguments = parser.parse_args()
    rates = [float(rate) for rate in arguments.rates.split(",")]
    if min(rates) < DELTAS_PER_S:
        parser.error(f"--rates must be at least {DELTAS_PER_S}")
    arguments.labels = {STEADY: 0, AGAIN: 0} | {f"{rate:g}": rate for rate in rates}
    if arguments.duration < arguments.window:
        parser.error("--duration must be at least --window")
    return arguments


def metric(node, name):
    with urllib.request.urlopen(node.metrics_url, timeout=30) as answer:
        text = answer.read().decode()
    return sum(
        float(value)
        for value in re.findall(rf"^{name}{{.*}} (\S+)$", text, re.M)
    )


class Writer:
    """Deltas of one node, made beside its folder and brought into it when due."""

    def __init__(self, folder, tables, rate, duration, seed):
        self.folder = folder
        folder.path.mkdir(parents=True)
        self.aside = deltas.Folder(
            folder.path.parent / "aside", folder.model, folder.version
        )
        self.random = numpy.random.default_rng(seed)
        self.values = self.random.standard_normal(1 << 20, numpy.float32)
        self.waiting = []
        kinds = [
            self.make(tables, int(rate / DELTAS_PER_S))
            for _ in range(KINDS if rate else 0)
        ]
        for kind in kinds:
            name = kind["rows"]["file"]
            (self.aside.path / name).rename(folder.path / name)
        # A chain of deltas, whose manifests name a few files of rows in turn.
        parent = {"sequence": 0, "id": ""}
        for number in range(int(duration * DELTAS_PER_S) if rate else 0):
            state = {"sequence": number + 1, "id": f"delta{number + 1}"}
            manifest = kinds[number % KINDS] | state | {"parent": parent}
            parent = state
            name = deltas.name_of(state["sequence"])
            (self.aside.path / name).write_text(json.dumps(manifest))
            self.waiting.append(name)
        self.brought = 0

    def make(self, tables, count):
        """A delta of `count` rows; its manifest."""
        # Rows are drawn over all tables as one: `first` has the first row of
        # each table there.
        first = numpy.cumsum([0] + [rows for rows, _ in tables.values()])
        drawn = numpy.sort(self.random.choice(first[-1], count, replace=False))
        changes = {}
        for number, (name, (_, dim)) in enumerate(tables.items()):
            ids = drawn[(drawn >= first[number]) & (drawn < first[number + 1])]
            if len(ids):
                values = numpy.resize(self.values, (len(ids), dim))
                changes[name] = deltas.Rows(ids - first[number], values)
        sequence = self.aside.write(changes)
        return json.loads((self.aside.path / deltas.name_of(sequence)).read_text())

    def bring(self):
        if self.waiting:
            name = self.waiting.pop(0)
            (self.aside.path / name).rename(self.folder.path / name)
            self.brought += 1


def tables_of(version, folder):
    """{name: (rows, dim)} of the tables of a version."""
    file = folder / "inspected.json"
    repositories.refract("inspect", version, "--json", file)
    return {
        table["name"]: (table["rows"], table["dim"])
        for table in json.loads(file.read_text())["tables"]
    }


def prepare(arguments, folder):
    """The repository; a folder that has one is taken as it is."""
    repository = folder / "repository"
    if not repository.exists():
        repositories.zoo_repository(
            folder, MODEL, "--tables-gib", arguments.tables_gib, preset="default",
            method="all-cn",
        )
    shutil.rmtree(folder / "deltas", ignore_errors=True)
    return repository


def measure(arguments, folder, stack):
    """By node: latencies in ms by window (failed requests: infinite), deltas that
    were brought, and those of them that were applied when the load ended."""
    repository = prepare(arguments, folder)
    tables = tables_of(repository / MODEL / "1", folder)
    hn = stack.enter_context(nodes.gpu_node(repository))
    running, clients, writers = {}, {}, {}
    for number, (label, rate) in enumerate(arguments.labels.items()):
        own = folder / "deltas" / label
        writers[label] = Writer(
            deltas.Folder(own / MODEL / "1", MODEL, 1), tables, rate,
            arguments.duration, arguments.seed + number,
        )
        running[label] = stack.enter_context(nodes.cpu_node(
            repository, [hn.address], "--workers", 1, "--deltas-folder", own,
            *arguments.cn.split(),
        ))
        clients[label] = Client(own, running[label], MODEL, arguments.items)
    qps = arguments.qps or (
        clients[STEADY].capacity(arguments.seed) / 2 / len(running)
    )
    for number, (label, client) in enumerate(clients.items()):
        client.start(
            qps, arguments.duration, arguments.seed + number,
            csv=client.folder / "queries.csv", warmup=WARMUP_S,
        )
    begin = time.monotonic() + WARMUP_S
    for step in range(int(arguments.duration * DELTAS_PER_S)):
        time.sleep(max(0, begin + step / DELTAS_PER_S - time.monotonic()))
        for writer in writers.values():
            writer.bring()
    found = {}
    for label, client in clients.items():
        client.wait()
        windows = [[] for _ in range(int(arguments.duration / arguments.window))]
        for line in (client.folder / "queries.csv").read_text().splitlines()[1:]:
            due, _, _, latency_ms, outcome = line.split(",")
            number = int(float(due) / arguments.window)
            if number < len(windows):
                windows[number].append(
                    float(latency_ms) if outcome == "OK" else float("inf")
                )
        found[label] = {
            "latency_ms": windows,
            "brought": writers[label].brought,
            "applied": int(metric(running[label], "refract_deltas_applied_total")),
        }
    return qps, found


def quantile(latencies, share):
    return float(numpy.quantile(latencies, share, method="higher"))


def summary(arguments, qps, found):
    whole = {
        label: [value for window in node["latency_ms"] for value in window]
        for label, node in found.items()
    }

    def over_steady(label, share):
        return quartiles([
            quantile(of, share) / quantile(to, share)
            for of, to in zip(
                found[label]["latency_ms"], found[STEADY]["latency_ms"]
            )
        ])

    return {
        "benchmark": "update_rates",
        "tables_gib": arguments.tables_gib,
        "items": arguments.items,
        "qps": qps,
        "rates": {
            label: {
                "requests": len(values),
                "failed": sum(value == float("inf") for value in values),
                "brought": found[label]["brought"],
                "applied": found[label]["applied"],
                "p50_ms": quantile(values, 0.5),
                "p99_ms": quantile(values, 0.99),
                "p50_over_steady": over_steady(label, 0.5),
                "p99_over_steady": over_steady(label, 0.99),
            }
            for label, values in whole.items()
        },
        "windows": found,
    }


def main():
    arguments = parse_arguments()
    with workplace(arguments.work) as (stack, folder):
        report = summary(arguments, *measure(arguments, folder, stack))
    write_result(arguments, report)
    for label, rate in report["rates"].items():
        p50, p99 = rate["p50_over_steady"], rate["p99_over_steady"]
        print(
            f"{label:>8} rows/s: {rate['requests']} requests, {rate['failed']} failed; "
            f"{rate['applied']} of {rate['brought']} deltas applied; "
            f"p50 {rate['p50_ms']:.2f} ms, ÷ steady {p50['median']:.2f} "
            f"[{p50['q25']:.2f}, {p50['q75']:.2f}]; "
            f"p99 {rate['p99_ms']:.2f} ms, ÷ steady {p99['median']:.2f} "
            f"[{p99['q25']:.2f}, {p99['q75']:.2f}]"
        )


if __name__ == "__main__":
    main()
