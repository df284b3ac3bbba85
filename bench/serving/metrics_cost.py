#!/usr/bin/env python3
"""Measures the cost of metrics and tracing: answers per second with and without.

Two pairs of a CPU node and a GPU node (on its CPU). In every round the same model
gets more requests than the nodes can answer: once with nodes that are scraped and
trace a share of the requests into a file, and once with --metrics-port off and
without tracing. The ratio is formed within the round.
"""

import argparse
import contextlib
import json
import pathlib
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.serving.client import Client, quartiles  # noqa: E402
from scripts.lib import nodes, repository as repositories  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--duration", type=float, default=5, metavar="S")
    parser.add_argument("--interval", type=float, default=1, metavar="S")
    parser.add_argument("--trace-rate", type=int, default=100, metavar="N",
                        help="trace one request in N; 0: none (default 100)")
    parser.add_argument("--items", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.rounds < 3:
        parser.error("--rounds must be at least 3")
    return arguments


class Scraper:
    """Reads the metrics of nodes at an interval, in a thread."""

    def __init__(self, urls, interval):
        self.seconds = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(urls, interval))
        self.thread.start()

    def run(self, urls, interval):
        while not self.ended.wait(interval):
            for url in urls:
                began = time.perf_counter()
                with urllib.request.urlopen(url, timeout=10) as answer:
                    answer.read()
                self.seconds.append(time.perf_counter() - began)

    def stop(self):
        self.ended.set()
        self.thread.join()


def start(folder, stack, *options, cpu_node_options=()):
    repository = folder / "repository"
    hn = nodes.gpu_node(repository, *options)
    stack.callback(hn.close)
    cn = nodes.cpu_node(repository, [hn.address], *options, *cpu_node_options)
    stack.callback(cn.close)
    return hn, cn


def main():
    arguments = parse_arguments()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        exported = repositories.export("dlrm", folder / "dlrm", preset="tiny")
        repositories.add_model(
            folder / "repository", "dlrm", exported / "dlrm.pt2"
        )
        traces = folder / "traces.jsonl"
        tracing = ()
        if arguments.trace_rate:
            # Of late requests, which overload makes, none beyond the rate.
            tracing = (
                "--trace-config", f"triton,file={traces}",
                "--trace-config", f"rate={arguments.trace_rate}",
                "--trace-config", "failed=false", "--slow-request-ms", 0,
            )
        measured = start(folder, stack, cpu_node_options=tracing)
        plain = start(folder, stack, "--metrics-port", "off")
        clients = {
            kind: Client(folder / kind, pair[1], "dlrm", arguments.items)
            for kind, pair in (("scraped", measured), ("off", plain))
        }
        for client in clients.values():
            client.folder.mkdir()
        qps = 1.5 * clients["off"].capacity(arguments.seed)
        rounds, scrapes = [], []
        for number in range(arguments.rounds):
            found = {}
            for kind in ("scraped", "off")[:: 1 if number % 2 == 0 else -1]:
                if kind == "scraped":
                    scraper = Scraper(
                        [node.metrics_url for node in measured],
                        arguments.interval,
                    )
                report = clients[kind].run(
                    qps, arguments.duration, arguments.seed + number, timeout=1
                )
                if kind == "scraped":
                    scraper.stop()
                    scrapes += scraper.seconds
                found[kind] = report["achieved_qps"]
            found["ratio"] = found["scraped"] / found["off"]
            rounds.append(found)
            print(
                f"round {number + 1}: {found['scraped']:.0f} answers/s scraped, "
                f"{found['off']:.0f} without metrics, ratio {found['ratio']:.3f}",
                flush=True,
            )
        if arguments.trace_rate and not traces.stat().st_size:
            sys.exit("no request was traced")
        result = {
            "benchmark": "metrics_cost",
            "trace_rate": arguments.trace_rate,
            "offered_qps": qps,
            "scraped_over_off": quartiles([r["ratio"] for r in rounds]),
            "scrape_seconds": quartiles(scrapes),
            "rounds": rounds,
        }
        print(
            f"ratio {result['scraped_over_off']['median']:.3f} "
            f"({result['scraped_over_off']['q25']:.3f} to "
            f"{result['scraped_over_off']['q75']:.3f}); a scrape takes "
            f"{1e3 * result['scrape_seconds']['median']:.1f} ms"
        )
        if arguments.json:
            arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
