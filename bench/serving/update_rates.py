#!/usr/bin/env python3
"""Measures p99 at half load while rows of the tables change at different rates.

A CPU node that runs a DLRM as a whole and follows deltas, and an open-loop client
at half of the node's capacity. In each round every rate of changed rows gets a
block of requests, rate 0 among them, in an order that rotates from round to
round; the ratio of p99 is formed within the round. A delta appears every half
second; its rows are drawn over the rows of all tables. The deltas of a block are
made before it begins and renamed into the folder during the block: a trainer would
make them on another machine. A block counts only if the node applied all of them,
and `behind_s` says how long after the block's end the node needed.

With --more, rounds are added to those of the report: a long run can be divided.
"""

import argparse
import contextlib
import json
import pathlib
import re
import shutil
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
    parser.add_argument("--qps", type=float, metavar="Q",
                        help="requests per second (default: half of the capacity)")
    parser.add_argument("--cn", default="", metavar="ARGUMENTS",
                        help="further arguments of the CPU node")
    parser.add_argument("--work", type=pathlib.Path, metavar="DIR",
                        help="keep the model here for the next call")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--more", action="store_true",
                        help="add rounds to those of the file of --json")
    arguments = parser.parse_args()
    arguments.rates = [float(rate) for rate in arguments.rates.split(",")]
    if 0 not in arguments.rates:
        parser.error("--rates must have 0, which the others are compared with")
    if arguments.more and not arguments.json:
        parser.error("--more needs --json")
    return arguments


def metric(node, name):
    with urllib.request.urlopen(node.metrics_url, timeout=30) as answer:
        text = answer.read().decode()
    return sum(
        float(value)
        for value in re.findall(rf"^{name}{{.*}} (\S+)$", text, re.M)
    )


class Writer:
    """Brings deltas to a folder, one every INTERVAL_S, until all have been brought."""

    def __init__(self, folder, tables, rate, duration, seed):
        """Makes the deltas of `duration` seconds, beside the folder."""
        self.folder = folder
        self.aside = deltas.Folder(
            folder.path.parent / "aside", folder.model, folder.version
        )
        random = numpy.random.default_rng(seed)
        names = list(tables)
        first = numpy.cumsum([0] + [tables[name][0] for name in names])
        self.rows, self.bytes, self.manifests = 0, 0, []
        parent = folder.last()
        for _ in range(int(duration / INTERVAL_S) if rate else 0):
            count = int(rate * INTERVAL_S)
            drawn = numpy.sort(random.choice(first[-1], count, replace=False))
            changes = {}
            for number, name in enumerate(names):
                ids = drawn[(drawn >= first[number]) & (drawn < first[number + 1])]
                if len(ids):
                    shape = (len(ids), tables[name][1])
                    values = random.standard_normal(shape, numpy.float32)
                    changes[name] = deltas.Rows(ids - first[number], values)
            sequence = self.aside.write(changes, parent=parent)
            parent = self.aside.last()
            self.manifests.append(self.aside.manifests()[sequence])
            self.rows += count
            self.bytes += self.manifests[-1]["rows"]["bytes"]
        self.thread = threading.Thread(target=self.run)

    def start(self):
        self.thread.start()

    def run(self):
        begin = time.monotonic()
        for number, manifest in enumerate(self.manifests, 1):
            time.sleep(max(0, begin + number * INTERVAL_S - time.monotonic()))
            for name in (manifest["rows"]["file"], deltas.name_of(manifest["sequence"])):
                (self.aside.path / name).rename(self.folder.path / name)

    def clear(self):
        """Removes all files but the last delta: the node has applied them."""
        self.thread.join()
        for manifest in self.folder.manifests().values():
            (self.folder.path / manifest["rows"]["file"]).unlink(missing_ok=True)
            if manifest["sequence"] != self.folder.last()[0]:
                (self.folder.path / deltas.name_of(manifest["sequence"])).unlink()


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
        exported = repositories.export(
            MODEL, folder / MODEL, "--tables-gib", arguments.tables_gib,
            preset="default",
        )
        repositories.add_model(
            repository, MODEL, exported / f"{MODEL}.pt2", method="all-cn"
        )
    shutil.rmtree(repository / MODEL / "1" / "deltas", ignore_errors=True)
    (repository / MODEL / "1" / "deltas").mkdir()
    return repository


def measure_block(arguments, cn, client, writer, qps, seed):
    before = metric(cn, "refract_delta_rows_total")
    writer.start()
    report = client.run(qps, arguments.duration, seed)
    end = time.monotonic()
    nodes.wait_until(
        lambda: metric(cn, "refract_delta_rows_total") == before + writer.rows,
        f"{writer.rows} changed rows are applied",
    )
    return {
        "p99_ms": report["latency_ms"]["p99"],
        "p50_ms": report["latency_ms"]["p50"],
        "failed": report["sent"] - report["succeeded"],
        "rows": writer.rows,
        "bytes": writer.bytes,
        "behind_s": time.monotonic() - end,
        "report": report,
    }


def measure(arguments, folder, rounds, stack):
    repository = prepare(arguments, folder)
    version = repository / MODEL / "1"
    tables = tables_of(version, folder)
    changes = deltas.Folder(version / "deltas", MODEL, 1)
    hn = nodes.gpu_node(repository)
    stack.callback(hn.close)
    cn = nodes.cpu_node(
        repository, [hn.address], "--workers", 1, *arguments.cn.split()
    )
    stack.callback(cn.close)
    client = Client(folder, cn, MODEL, arguments.items)
    qps = arguments.qps or client.capacity(arguments.seed) / 2
    for number in range(len(rounds), len(rounds) + arguments.rounds):
        seed = arguments.seed + number
        turn = number % len(arguments.rates)
        found = {}
        for rate in arguments.rates[turn:] + arguments.rates[:turn]:
            writer = Writer(changes, tables, rate, arguments.duration, seed)
            found[rate] = measure_block(arguments, cn, client, writer, qps, seed)
            writer.clear()
        for rate, block in sorted(found.items()):
            block["ratio"] = block["p99_ms"] / found[0]["p99_ms"]
            print(
                f"round {number + 1}: {rate:8.0f} rows/s at {qps:.0f} requests/s: "
                f"p99 {block['p99_ms']:.2f} ms, {block['ratio']:.2f} × that of 0; "
                f"p50 {block['p50_ms']:.2f} ms; {block['failed']} failed, "
                f"{block['rows']} rows applied, the last {block['behind_s']:.2f} s "
                "after the block",
                flush=True,
            )
        rounds.append(
            {"seed": seed, "qps": qps, "rates": {f"{r:g}": b for r, b in found.items()}}
        )
        if arguments.json:
            report = summary(arguments, rounds)
            arguments.json.write_text(json.dumps(report, indent=1))


def summary(arguments, rounds):
    rates = [f"{rate:g}" for rate in arguments.rates]
    blocks = [block for r in rounds for block in r["rates"].values()]
    return {
        "benchmark": "update_rates",
        "tables_gib": arguments.tables_gib,
        "items": arguments.items,
        "duration_s": arguments.duration,
        "p99_over_steady": {
            rate: quartiles([r["rates"][rate]["ratio"] for r in rounds])
            for rate in rates
        },
        "p50_over_steady": {
            rate: quartiles(
                [r["rates"][rate]["p50_ms"] / r["rates"]["0"]["p50_ms"] for r in rounds]
            )
            for rate in rates
        },
        "failed": sum(block["failed"] for block in blocks),
        "rounds": rounds,
    }


def main():
    arguments = parse_arguments()
    rounds = []
    if arguments.more and arguments.json.exists():
        rounds = json.loads(arguments.json.read_text())["rounds"]
    with contextlib.ExitStack() as stack:
        folder = arguments.work
        if folder is None:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        measure(arguments, folder, rounds, stack)
    report = summary(arguments, rounds)
    for rate, ratio in report["p99_over_steady"].items():
        print(
            f"{rate:>8} rows/s: p99 ÷ steady p99 {ratio['median']:.2f} "
            f"[{ratio['q25']:.2f}, {ratio['q75']:.2f}]"
        )
    print(f"{len(rounds)} rounds; {report['failed']} requests failed")


if __name__ == "__main__":
    main()
