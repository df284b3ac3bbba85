#!/usr/bin/env python3
"""Measures p99 with and without hedged requests while GPU nodes stall.

Two GPU nodes that compute on the CPU, which take turns in being stopped for --pause
seconds, one every --every seconds (SIGSTOP, as a busy driver or host would stop it;
of one node that stalls alone the choice of nodes would keep away), and two CPU nodes that use both, one of them with --hedge-quantile. In every
round each CPU node gets the same Poisson schedule in turn; the ratio of p99 is formed
within the round. The last lines are the counters of the CPU node that hedges: the
requests that were sent twice must be at most a tenth of all, beyond the retries saved
up at the start.
"""

import pathlib
import re
import signal
import sys
import threading
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.serving.client import (  # noqa: E402
    Client, in_turn, option_parser, quartiles, spread, workplace, write_result,
)
from scripts.lib import nodes, repository as repositories  # noqa: E402


def parse_arguments():
    parser = option_parser(__doc__)
    parser.add_argument("--model", default="dlrm")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--items", type=int, default=8)
    parser.add_argument("--qps", type=float, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", type=float, default=8, metavar="S")
    parser.add_argument("--pause", type=float, default=0.1, metavar="S")
    parser.add_argument("--every", type=float, default=0.5, metavar="S")
    parser.add_argument("--quantile", default="0.95")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Stalls:
    """Stops one process after the other for a while, until the end of the context."""

    def __init__(self, processes, pause, every):
        self.processes, self.pause, self.every = processes, pause, every
        self.count, self.ending = 0, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        while not self.ending.wait(self.every - self.pause):
            process = self.processes[self.count % len(self.processes)]
            process.send_signal(signal.SIGSTOP)
            self.ending.wait(self.pause)
            process.send_signal(signal.SIGCONT)
            self.count += 1

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.thread.join()


def hedges(node):
    """{outcome: count} of a CPU node."""
    with urllib.request.urlopen(node.metrics_url, timeout=10) as answer:
        text = answer.read().decode()
    return {
        outcome: int(float(count))
        for outcome, count in re.findall(
            r'^refract_hedges_total\{.*outcome="(\w+)".*\} (\S+)$', text, re.M
        )
    }


def measure(arguments, repository, folder, stack):
    hns = [stack.enter_context(nodes.gpu_node(repository)) for _ in range(2)]
    addresses = [hn.address for hn in hns]
    cns = {
        "plain": stack.enter_context(nodes.cpu_node(repository, addresses)),
        "hedged": stack.enter_context(nodes.cpu_node(
            repository, addresses, "--hedge-quantile", arguments.quantile
        )),
    }
    clients = {
        kind: Client(folder, cn, arguments.model, arguments.items)
        for kind, cn in cns.items()
    }
    for number, client in enumerate(clients.values()):
        client.folder = folder / str(number)
        client.folder.mkdir()
        # Both nodes are known, and the quantile is learnt.
        client.run(arguments.qps, 2, arguments.seed)
    rounds = []
    with Stalls(
        [hn.process for hn in hns], arguments.pause, arguments.every
    ) as stalls:
        for number in range(arguments.rounds):
            found = {}
            for kind in in_turn(clients, number):
                report = clients[kind].run(
                    arguments.qps, arguments.duration, arguments.seed + number
                )
                found[kind] = {
                    **{p: report["latency_ms"][p] for p in ("p50", "p99", "p99.9")},
                    "failed": report["sent"] - report["succeeded"],
                    "sent": report["sent"],
                }
            found["ratio"] = found["hedged"]["p99"] / found["plain"]["p99"]
            rounds.append(found)
            print(
                f"round {number + 1}: p99 {found['plain']['p99']:.1f} ms plain, "
                f"{found['hedged']['p99']:.1f} ms hedged",
                flush=True,
            )
        count = stalls.count
    return {
        "benchmark": "hedging",
        "model": arguments.model,
        "items": arguments.items,
        "qps": arguments.qps,
        "pause_s": arguments.pause,
        "every_s": arguments.every,
        "stalls": count,
        "hedged_over_plain_p99": quartiles([r["ratio"] for r in rounds]),
        "hedges": hedges(cns["hedged"]),
        "hedged_requests": sum(r["hedged"]["sent"] for r in rounds),
        "failed": sum(r[kind]["failed"] for r in rounds for kind in clients),
        "rounds": rounds,
    }


def main():
    arguments = parse_arguments()
    with workplace() as (stack, folder):
        repository = repositories.zoo_repository(
            folder, arguments.model, preset=arguments.preset
        )
        result = measure(arguments, repository, folder, stack)
    ratio = spread(result["hedged_over_plain_p99"])
    print(f"p99 hedged ÷ plain: {ratio}; failed: {result['failed']}")
    print(f"hedges: {result['hedges']} of {result['hedged_requests']} requests")
    write_result(arguments, result)


if __name__ == "__main__":
    main()
