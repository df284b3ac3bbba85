#!/usr/bin/env python3
"""Measures what changes of a model's version cost while requests are served.

A CPU node and a GPU node on this machine, both with explicit model control, serve two
versions of a DLRM whose tables take --tables-gib each, made here unless --work has
them. `refract bench serving` asks at a fixed rate all the time. Four parts, of which
--parts chooses, so that a run fits a short slot:

  changes  --changes loads that pin one of the two versions in turn, none kept in
           memory: failed requests, and resident memory of both nodes after the last
           change ÷ after the second
  load     p99 while versions load and switch without a pause ÷ p99 of a block
           without a change, per round
  back     time of a load that goes back to a version that is kept in memory
  start    with --cold: p99 in the seconds after a CPU node's start, the
           seconds until p99 stays below twice that of the last second, and the seconds
           until the node is ready; --older gives a second program, in turn
"""

import concurrent.futures
import contextlib
import json
import math
import os
import pathlib
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.serving.client import (  # noqa: E402
    Client, in_turn, option_parser, quartiles, workplace, write_result,
)
from scripts.lib import nodes, repository as repositories  # noqa: E402

MODEL = "dlrm"
PARTS = ("changes", "load", "back", "start")


def parse_arguments():
    parser = option_parser(__doc__)
    parser.add_argument("--tables-gib", type=float, default=2, help="per version")
    parser.add_argument("--parts", default=",".join(PARTS[:3]), metavar="LIST")
    parser.add_argument("--changes", type=int, default=50, metavar="N")
    parser.add_argument("--items", type=int, default=33, metavar="N")
    parser.add_argument("--qps", type=float, default=50, metavar="Q")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", type=float, default=8, metavar="S")
    parser.add_argument("--cold", action="store_true",
                        help="parts load and start: drop a version's tables from the page "
                        "cache before it loads")
    parser.add_argument("--older", type=pathlib.Path, metavar="FILE",
                        help="part start: another refract-cpu-node to compare with")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cn", default="", metavar="ARGUMENTS",
                        help="further arguments of the CPU node")
    parser.add_argument("--work", type=pathlib.Path, metavar="DIR",
                        help="keep the model here for the next call")
    parser.add_argument("--prepare", action="store_true",
                        help="make the model in --work and measure nothing")
    arguments = parser.parse_args()
    arguments.parts = arguments.parts.split(",")
    if not set(arguments.parts) <= set(PARTS):
        parser.error(f"--parts: known are {', '.join(PARTS)}")
    if arguments.changes < 4 or arguments.changes % 2:
        parser.error("--changes must be even and at least 4")
    return arguments


def prepare(arguments, folder):
    """The repository with versions 1 and 2; a folder that has it is taken as it is."""
    repository = folder / "repository"
    if not (repository / MODEL / "2").exists():
        for seed in (1, 2):
            exported = repositories.export(
                MODEL, folder / f"seed{seed}", "--tables-gib", arguments.tables_gib,
                "--seed", seed, preset="default",
            )
            repositories.add_model(repository, MODEL, exported / f"{MODEL}.pt2")
    return repository


def drop_tables(repository, version):
    """Drops the tables of a version that no node has mapped from the page cache.

    In idle time: dropping GiB takes tenths of a second of a processor, which requests
    must not pay.
    """

    def drop():
        # Of this thread alone, which ends: only root may take the policy back.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        for path in (repository / MODEL / str(version) / "tables").iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(drop).result()


def rss_kib(node):
    status = pathlib.Path(f"/proc/{node.process.pid}/status").read_text()
    return next(
        int(line.split()[1])
        for line in status.splitlines()
        if line.startswith("VmRSS:")
    )


class Pair:
    """Both nodes, and a client that loads versions."""

    def __init__(self, arguments, repository, keep, stack):
        import tritonclient.grpc as triton

        explicit = ("--model-control-mode", "explicit")
        self.hn = stack.enter_context(nodes.gpu_node(repository, *explicit))
        self.cn = stack.enter_context(nodes.cpu_node(
            repository, [self.hn.address], *explicit, "--keep-versions", keep,
            *arguments.cn.split(),
        ))
        self.client = triton.InferenceServerClient(self.cn.address)
        self.load(1)

    def load(self, version):
        """Seconds until the version is served alone."""
        policy = {"version_policy": {"specific": {"versions": [version]}}}
        begin = time.monotonic()
        self.client.load_model(MODEL, config=json.dumps(policy))
        return time.monotonic() - begin


def start(arguments, repository, folder, stack):
    hn = stack.enter_context(nodes.gpu_node(repository))
    programs = {"new": "refract-cpu-node"}
    if arguments.older:
        programs["older"] = str(arguments.older.resolve())
    rounds = {kind: [] for kind in programs}
    for number in range(arguments.rounds):
        for kind in in_turn(programs, number):
            if arguments.cold:
                drop_tables(repository, 2)
            found = start_once(arguments, repository, folder, hn, programs[kind], number)
            rounds[kind].append(found)
            print(
                f"round {number + 1}, {kind}: ready after {found['ready_s']:.2f} s, p99 "
                + ", ".join(f"{ms:.0f}" for ms in found["p99_ms"])
                + f" ms in its seconds, steady after {found['steady_s']:.1f} s",
                flush=True,
            )
    return {
        kind: {
            "ready_s": quartiles([r["ready_s"] for r in found]),
            "steady_s": quartiles([r["steady_s"] for r in found]),
            "p99_ms": {
                f"second {n + 1}": quartiles(second)
                for n, second in enumerate(zip(*(r["p99_ms"] for r in found)))
            },
            "failed": sum(r["failed"] for r in found),
            "rounds": found,
        }
        for kind, found in rounds.items()
    }


def start_once(arguments, repository, folder, hn, program, number):
    import tritonclient.grpc as triton

    begin = time.monotonic()
    policy = ("--model-control-mode", "none")
    with nodes.cpu_node(repository, [hn.address], *policy, *arguments.cn.split(),
                        program=program) as cn:
        asked = triton.InferenceServerClient(cn.address)
        nodes.wait_until(lambda: asked.is_model_ready(MODEL), f"{MODEL} is ready")
        ready = time.monotonic() - begin
        csv = folder / "start.csv"
        report = Client(folder, cn, MODEL, arguments.items).run(
            arguments.qps, arguments.duration, arguments.seed + number, timeout=30,
            warmup=0, csv=csv,
        )
    # (due, latency) of the answers, by tenths of a second in which they were due.
    tenths = [[] for _ in range(round(arguments.duration * 10))]
    for line in csv.read_text().splitlines()[1:]:
        due, _, _, latency_ms, outcome = line.split(",")
        if outcome == "OK":
            tenths[min(int(float(due) * 10), len(tenths) - 1)].append(float(latency_ms))

    def p99(some):
        some = sorted(latency for tenth in some for latency in tenth)
        return some[min(len(some) - 1, len(some) * 99 // 100)] if some else math.inf

    last = p99(tenths[-10:])
    late = [n for n in range(len(tenths)) if tenths[n] and max(tenths[n]) > 2 * last]
    return {
        "ready_s": ready,
        "p99_ms": [p99(tenths[n : n + 10]) for n in range(0, len(tenths), 10)],
        "steady_s": (late[-1] + 1) / 10 if late else 0,
        "failed": report["sent"] - report["succeeded"],
    }


class Asking:
    """Requests at the fixed rate, block after block, until the context ends."""

    def __init__(self, arguments, client):
        self.arguments, self.client = arguments, client
        self.failed, self.sent, self.ending = 0, 0, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.ending.is_set():
            report = self.client.run(
                self.arguments.qps, 1, self.arguments.seed, timeout=30, warmup=0
            )
            self.sent += report["sent"]
            self.failed += report["sent"] - report["succeeded"]

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.thread.join()


def changes(arguments, repository, folder, stack):
    pair = Pair(arguments, repository, 0, stack)
    client = Client(folder, pair.cn, MODEL, arguments.items)
    client.run(arguments.qps, 1, arguments.seed)  # threads get their memory
    took, early = [], None
    with Asking(arguments, client) as asking:
        for change in range(arguments.changes):
            took.append(pair.load(2 - change % 2))
            if change == 1:
                early = [rss_kib(pair.cn), rss_kib(pair.hn)]
        late = [rss_kib(pair.cn), rss_kib(pair.hn)]
    return {
        "changes": arguments.changes,
        "sent": asking.sent,
        "failed": asking.failed,
        "change_s": quartiles(took),
        "rss_kib_after_2": early,
        "rss_kib_after_all": late,
        "rss_ratio": [round(b / a, 4) for a, b in zip(early, late)],
    }


def load(arguments, repository, folder, stack):
    pair = Pair(arguments, repository, 0, stack)
    client = Client(folder, pair.cn, MODEL, arguments.items)
    client.run(arguments.qps, 2, arguments.seed)
    rounds, count = [], 0
    for number in range(arguments.rounds):
        found = {}
        for kind in in_turn(("steady", "changing"), number):
            client.start(
                arguments.qps, arguments.duration, arguments.seed + number, timeout=30
            )
            end = time.monotonic() + arguments.duration
            while kind == "changing" and time.monotonic() < end:
                version = 2 - count % 2
                if arguments.cold:
                    drop_tables(repository, version)
                pair.load(version)
                count += 1
            report = client.wait()
            found[f"{kind}_p99_ms"] = report["latency_ms"]["p99"]
            found[f"{kind}_failed"] = report["sent"] - report["succeeded"]
        found["ratio"] = found["changing_p99_ms"] / found["steady_p99_ms"]
        rounds.append(found)
        print(
            f"round {number + 1}: p99 {found['steady_p99_ms']:.2f} ms steady, "
            f"{found['changing_p99_ms']:.2f} ms while versions load",
            flush=True,
        )
    return {
        "loads": count,
        "p99_ratio": quartiles([r["ratio"] for r in rounds]),
        "rounds": rounds,
    }


def back(arguments, repository, folder, stack):
    pair = Pair(arguments, repository, 1, stack)
    pair.load(2)
    client = Client(folder, pair.cn, MODEL, arguments.items)
    with Asking(arguments, client) as asking:
        took = [pair.load(1 + n % 2) for n in range(10)]
    return {"back_s": quartiles(took), "longest_s": max(took), "failed": asking.failed}


def main():
    arguments = parse_arguments()
    with workplace(arguments.work) as (_, folder):
        repository = prepare(arguments, folder)
        if arguments.prepare:
            return
        result = {
            "benchmark": "version_switch",
            "tables_gib": arguments.tables_gib,
            "items": arguments.items,
            "qps": arguments.qps,
        }
        measures = {"changes": changes, "load": load, "back": back, "start": start}
        for part in arguments.parts:
            with contextlib.ExitStack() as running:
                result[part] = measures[part](arguments, repository, folder, running)
            print(part, json.dumps(result[part]), flush=True)
        write_result(arguments, result)


if __name__ == "__main__":
    main()
