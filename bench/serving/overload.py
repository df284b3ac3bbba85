#!/usr/bin/env python3
"""Measures the goodput of a CPU node that gets more requests than it can answer.

A CPU node with one worker, a GPU node on its CPU where the model is split, and an
open-loop client whose requests have a deadline. Each round measures the node's
capacity (the most requests answered per second when requests may take a second)
and then the requests answered within their deadlines at multiples of it. The
ratio goodput ÷ capacity is formed within the round.

The nodes share one processor and the client has another, so that a client that
sends more does not slow the nodes down. Other processes of the machine may still
take time from them, so a second ratio is formed of answers per second of processor
time that the nodes had: at a load ÷ at the capacity, with a second to answer.
"""

import argparse
import contextlib
import json
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.serving.client import Client, ProcessorTime, quartiles  # noqa: E402
from scripts.lib import nodes, repository as repositories  # noqa: E402

RATIOS = {
    "goodput_over_capacity": "goodput ÷ capacity",
    "per_processor_second": "answers per second of processor time ÷ at capacity",
}


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--repository", type=pathlib.Path,
        help="repository with the model; default: a DLRM, exported here",
    )
    parser.add_argument("--model", default="dlrm", metavar="NAME")
    parser.add_argument("--method", default="all-cn",
                        help="plan of the DLRM exported here (default: all-cn, "
                        "so that the CPU node is the bottleneck)")
    parser.add_argument("--items", type=int, default=256, metavar="N")
    parser.add_argument("--deadline-ms", type=float, default=100, metavar="MS")
    parser.add_argument("--loads", default="1,1.5,2,3", metavar="LIST",
                        help="multiples of the capacity (default: 1,1.5,2,3)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", type=float, default=5, metavar="S")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.loads = [float(load) for load in arguments.loads.split(",")]
    if arguments.json:
        arguments.json.touch()  # now, not after the rounds
    return arguments


def make_repository(arguments, folder):
    exported = repositories.export(
        "dlrm", folder / "dlrm", "--tables-gib", "0.05", preset="default"
    )
    repositories.add_model(
        folder / "repository", arguments.model, exported / "dlrm.pt2",
        method=arguments.method,
    )
    return folder / "repository"


def measure(arguments, repository, folder, stack):
    processors = sorted(os.sched_getaffinity(0))
    apart = len(processors) > 1
    if apart:
        os.sched_setaffinity(0, processors[:1])  # inherited by the nodes
    hn = nodes.gpu_node(repository)
    stack.callback(hn.close)
    cn = nodes.cpu_node(repository, [hn.address], "--workers", 1)
    stack.callback(cn.close)
    if apart:
        os.sched_setaffinity(0, processors[1:])
    client = Client(folder, cn, arguments.model, arguments.items)
    processor = ProcessorTime(hn, cn)
    deadline = arguments.deadline_ms / 1e3
    rounds = []
    for number in range(arguments.rounds):
        seed = arguments.seed + number
        capacity = client.capacity(seed)
        found = {"seed": seed, "capacity": capacity, "loads": []}

        def answers_per_processor_second(load, timeout):
            processor.lap()
            report = client.run(
                load * capacity, arguments.duration, seed, timeout=timeout
            )
            return report, report["succeeded"] / processor.lap()

        _, unhurried = answers_per_processor_second(1, timeout=1)
        for load in arguments.loads:
            report, answers = answers_per_processor_second(load, deadline)
            found["loads"].append({
                "load": load,
                "goodput_over_capacity": report["achieved_qps"] / capacity,
                "per_processor_second": answers / unhurried,
                "report": report,
            })
            print(
                f"round {number + 1}: {load:g} × {capacity:.0f}/s: "
                f"{report['achieved_qps']:.0f}/s in time, "
                f"{report['achieved_qps'] / capacity:.2f} of the capacity, "
                f"{answers / unhurried:.2f} per second of processor time; "
                f"{report.get('errors_by_code', {})}",
                flush=True,
            )
        rounds.append(found)
    return {
        "benchmark": "overload",
        "model": arguments.model,
        "items": arguments.items,
        "deadline_ms": arguments.deadline_ms,
        "processors_apart": apart,
        **{
            ratio: {
                f"{load:g}": quartiles([r["loads"][i][ratio] for r in rounds])
                for i, load in enumerate(arguments.loads)
            }
            for ratio in RATIOS
        },
        "rounds": rounds,
    }


def main():
    arguments = parse_arguments()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(
            stack.enter_context(tempfile.TemporaryDirectory())
        )
        repository = arguments.repository or make_repository(arguments, folder)
        result = measure(arguments, repository, folder, stack)
    for name, title in RATIOS.items():
        for load, ratio in result[name].items():
            print(
                f"{title} at {load} ×: {ratio['median']:.2f} "
                f"[{ratio['q25']:.2f}, {ratio['q75']:.2f}]"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
