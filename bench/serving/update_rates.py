#!/usr/bin/env python3
"""Measures p99 at half load while rows of the tables change at different rates.

A CPU node that runs a DLRM as a whole and follows deltas, and an open-loop client
at half of the node's capacity. In each round every rate of changed rows gets a
block of requests, rate 0 among them, in an order that rotates from round to
round; the ratio of p99 is formed within the round. A writer brings a delta every
half second, whose ids are drawn over all tables and rows. A block counts only if
the node applied what was written in it.
"""

import argparse
import contextlib
import json
import pathlib
import re
import sys
import tempfile
import threading
import time
import urllib.request

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.serving.client import Client, quartiles  # noqa: E402
from scripts.lib import deltas, nodes, repository as repositories  # noqa: E402

MODEL = "dlrm"
INTERVAL_S = 0.5  # between deltas


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rates", default="0,1000,10000,100000", metavar="LIST",
                        help="changed rows per second; 0 must be among them")
    parser.add_argument("--tables-gib", type=float, default=0.5)
    parser.add_argument("--items", type=int, default=33, metavar="N")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--duration", type=float, default=8, metavar="S")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.rates = [float(rate) for rate in arguments.rates.split(",")]
    if 0 not in arguments.rates:
        parser.error("--rates must have 0, which the others are compared with")
    return arguments


def metric(node, name):
    with urllib.request.urlopen(node.metrics_url, timeout=30) as answer:
        text = answer.read().decode()
    return sum(
        float(value)
        for value in re.findall(rf"^{name}{{.*}} (\S+)$", text, re.M)
    )


class Writer:
    """Writes deltas at a rate until it is stopped; `rows` counts them."""

    def __init__(self, folder, tables, rate, seed):
        self.folder, self.tables, self.rate = folder, tables, rate
        self.random = numpy.random.default_rng(seed)
        self.rows = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        begin = time.monotonic()
        while not self.ended.wait(INTERVAL_S):
            # Rows due by now, so that a slow write does not lower the rate.
            due = int(self.rate * (time.monotonic() - begin)) - self.rows
            changes = {}
            for name, (rows, dim) in self.tables.items():
                ids = self.random.integers(0, rows, due // len(self.tables))
                ids = numpy.unique(ids)
                values = self.random.standard_normal((len(ids), dim), numpy.float32)
                changes[name] = deltas.Rows(ids, values)
            if due >= len(self.tables):
                self.folder.write(changes)
                self.rows += sum(len(change.ids) for change in changes.values())

    def stop(self):
        self.ended.set()
        self.thread.join()
        return self.rows


def tables_of(version, folder):
    """{name: (rows, dim)} of the tables of a version."""
    file = folder / "inspected.json"
    repositories.refract("inspect", version, "--json", file)
    return {
        table["name"]: (table["rows"], table["dim"])
        for table in json.loads(file.read_text())["tables"]
    }


def measure(arguments, folder, stack):
    exported = repositories.export(
        MODEL, folder / MODEL, "--tables-gib", arguments.tables_gib, preset="default"
    )
    repository = folder / "repository"
    repositories.add_model(
        repository, MODEL, exported / f"{MODEL}.pt2", method="all-cn"
    )
    version = repository / MODEL / "1"
    tables = tables_of(version, folder)
    changes = deltas.Folder(version / "deltas", MODEL, 1)
    hn = nodes.gpu_node(repository)
    stack.callback(hn.close)
    cn = nodes.cpu_node(repository, [hn.address], "--workers", 1)
    stack.callback(cn.close)
    client = Client(folder, cn, MODEL, arguments.items)
    rounds = []
    for number in range(arguments.rounds):
        seed = arguments.seed + number
        qps = client.capacity(seed) / 2
        turn = number % len(arguments.rates)
        found = {}
        for rate in arguments.rates[turn:] + arguments.rates[:turn]:
            before = metric(cn, "refract_delta_rows_total")
            writer = Writer(changes, tables, rate, seed)
            report = client.run(qps, arguments.duration, seed)
            written = writer.stop()
            nodes.wait_until(
                lambda: metric(cn, "refract_delta_rows_total") == before + written,
                f"{written} changed rows are applied",
            )
            found[rate] = {
                "p99_ms": report["latency_ms"]["p99"],
                "failed": report["sent"] - report["succeeded"],
                "rows": written,
                "report": report,
            }
            changes.merge()
        for rate, block in sorted(found.items()):
            block["ratio"] = block["p99_ms"] / found[0]["p99_ms"]
            print(
                f"round {number + 1}: {rate:8.0f} rows/s at {qps:.0f} requests/s: "
                f"p99 {block['p99_ms']:.2f} ms, {block['ratio']:.2f} × that of 0; "
                f"{block['failed']} failed, {block['rows']} rows applied",
                flush=True,
            )
        rounds.append({"seed": seed, "qps": qps, "rates": found})
    return {
        "benchmark": "update_rates",
        "tables_gib": arguments.tables_gib,
        "items": arguments.items,
        "p99_over_steady": {
            f"{rate:g}": quartiles([r["rates"][rate]["ratio"] for r in rounds])
            for rate in arguments.rates
        },
        "failed": sum(b["failed"] for r in rounds for b in r["rates"].values()),
        "rounds": rounds,
    }


def main():
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        report = measure(arguments, pathlib.Path(folder), stack)
    for rate, ratio in report["p99_over_steady"].items():
        print(
            f"{rate:>8} rows/s: p99 ÷ steady p99 {ratio['median']:.2f} "
            f"[{ratio['q25']:.2f}, {ratio['q75']:.2f}]"
        )
    print(f"{report['failed']} requests failed")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
