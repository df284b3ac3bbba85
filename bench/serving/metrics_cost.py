#!/usr/bin/env python3
"""Measures the cost of metrics and tracing: answers per second with and without.

Two pairs of a CPU node and a GPU node (on its CPU) with the same model: one is
scraped and traces a share of the requests into a file, the other has --metrics-port
off and no tracing. In every round both pairs get the same requests at the same time,
all due at once, so that each is busy until it has answered the last. The ratio is
that of the answers per second of processor time, and is formed within the round:
both pairs share one processor and take turns on it within milliseconds, so that a
processor whose speed changes is as fast for both. The client has another processor.
"""

import json
import pathlib
import sys
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.serving.client import (  # noqa: E402
    Client, ProcessorTime, at_least_three, first_processor, in_turn, option_parser,
    quartiles, spread, workplace, write_result,
)
from scripts.lib import nodes, repository as repositories  # noqa: E402


def parse_arguments():
    parser = option_parser(__doc__)
    parser.add_argument("--rounds", type=at_least_three, default=5)
    parser.add_argument("--requests", type=int, default=6000, metavar="N",
                        help="per pair and round")
    parser.add_argument("--interval", type=float, default=0.5, metavar="S",
                        help="of scraping (default 0.5)")
    parser.add_argument("--trace-rate", type=int, default=100, metavar="N",
                        help="trace one request in N; 0: none (default 100)")
    parser.add_argument("--items", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--more", action="store_true",
                        help="adds the rounds to those in the file of --json")
    arguments = parser.parse_args()
    if arguments.more and not arguments.json:
        parser.error("--more needs --json")
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


def start(repository, stack, *options, cpu_node_options=()):
    hn = stack.enter_context(nodes.gpu_node(repository, *options))
    # Every request is admitted: a refusal would cost less than an answer.
    cn = stack.enter_context(nodes.cpu_node(
        repository, [hn.address], "--max-queue", 1_000_000, "--max-in-flight",
        1_000_000, *options, *cpu_node_options,
    ))
    return hn, cn


def main():
    arguments = parse_arguments()
    with workplace() as (stack, folder):
        repository = repositories.zoo_repository(folder, "dlrm")
        traces = folder / "traces.jsonl"
        tracing = ()
        if arguments.trace_rate:
            # Requests that overload makes late are not traced beyond the rate.
            tracing = (
                "--trace-config", f"triton,file={traces}",
                "--trace-config", f"rate={arguments.trace_rate}",
                "--trace-config", "failed=false", "--slow-request-ms", 0,
            )
        with first_processor():
            pairs = {
                "scraped": start(repository, stack, cpu_node_options=tracing),
                "off": start(repository, stack, "--metrics-port", "off"),
            }
        clients, processor = {}, {}
        for kind, pair in pairs.items():
            (folder / kind).mkdir()
            clients[kind] = Client(folder / kind, pair[1], "dlrm", arguments.items)
            processor[kind] = ProcessorTime(*pair)
        rounds, scrapes = [], []

        def one_round(seed):
            scraper = Scraper(
                [node.metrics_url for node in pairs["scraped"]], arguments.interval
            )
            for kind in in_turn(pairs, seed):
                processor[kind].lap()
                clients[kind].start_at_once(arguments.requests, seed)
            for kind in pairs:
                report = clients[kind].wait()
                if report["succeeded"] != arguments.requests:
                    sys.exit(f"{kind}: not answered: {report['errors_by_code']}")
            scraper.stop()
            scrapes.extend(scraper.seconds)
            found = {
                kind: arguments.requests / processor[kind].lap() for kind in pairs
            }
            found["ratio"] = found["scraped"] / found["off"]
            return found

        one_round(arguments.seed)
        for number in range(arguments.rounds):
            found = one_round(arguments.seed + number)
            rounds.append(found)
            print(
                f"round {number + 1}: {found['scraped']:.0f} answers per second of "
                f"processor time scraped, {found['off']:.0f} without metrics, "
                f"ratio {found['ratio']:.3f}",
                flush=True,
            )
        if arguments.trace_rate and not traces.stat().st_size:
            sys.exit("no request was traced")
        own = {
            "requests": arguments.requests,
            "items": arguments.items,
            "trace_rate": arguments.trace_rate,
            "scrape_interval_s": arguments.interval,
        }
        if not scrapes:
            sys.exit("no round was longer than --interval")
        if arguments.more and arguments.json.exists():
            before = json.loads(arguments.json.read_text())
            for name in ("requests", "items", "trace_rate", "scrape_interval_s"):
                if before[name] != own[name]:
                    sys.exit(f"{arguments.json} has another {name}: {before[name]}")
            rounds = before["rounds"] + rounds
        result = {
            "benchmark": "metrics_cost",
            **own,
            "scraped_over_off": quartiles([r["ratio"] for r in rounds]),
            "scrape_seconds": quartiles(scrapes),
            "rounds": rounds,
        }
        print(f"ratio {spread(result['scraped_over_off'], 3)}")
        print(f"a scrape takes {1e3 * result['scrape_seconds']['median']:.1f} ms")
        write_result(arguments, result)


if __name__ == "__main__":
    main()
