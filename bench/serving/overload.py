#!/usr/bin/env python3
"""Measures the goodput of a CPU node that gets more requests than it can answer.

A CPU node with one worker, a GPU node on its CPU where the model is split, and an
open-loop client whose requests have a deadline. Before and after each load the
node's capacity is measured: its answers per second at 1.3 times the capacity when
requests may take a second. A load is a multiple of the capacity before it. Its
goodput, the answers per second within the deadline, is divided by the mean of the
two capacities beside it. Answers count by the time when they arrive, from when the
queue is full until the load ends.

The nodes share one processor and the client has another, so that a client that
sends more does not slow the nodes down. Other processes of the machine may still
take time from them, so a second ratio is formed in the same way of answers per
second of processor time that the nodes had.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.serving.client import (  # noqa: E402
    Client, ProcessorTime, first_processor, option_parser, quartiles, workplace,
    write_result,
)
from scripts.lib import nodes, repository as repositories  # noqa: E402

# Name in the report: figure of a run, title.
RATIOS = {
    "goodput_over_capacity": ("per_second", "goodput ÷ capacity"),
    "per_processor_second": (
        "per_processor_second",
        "answers per second of processor time ÷ at capacity",
    ),
}


def parse_arguments():
    parser = option_parser(__doc__)
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
    parser.add_argument("--loads", default="1,2,3,5", metavar="LIST",
                        help="multiples of the capacity (default: 1,2,3,5)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", type=float, default=5, metavar="S")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.duration < 2:
        # At the capacity, answers count after the first second.
        parser.error("--duration: at least 2 s")
    arguments.loads = [float(load) for load in arguments.loads.split(",")]
    if arguments.json:
        arguments.json.touch()  # now, not after the rounds
    return arguments


def measure(arguments, repository, folder, stack):
    with first_processor() as apart:
        hn = stack.enter_context(nodes.gpu_node(repository))
        cn = stack.enter_context(
            nodes.cpu_node(repository, [hn.address], "--workers", 1)
        )
    client = Client(folder, cn, arguments.model, arguments.items)
    processor = ProcessorTime(hn, cn)
    deadline = arguments.deadline_ms / 1e3

    def answers(qps, seed, timeout):
        processor.lap()
        report, per_second = client.answered(
            qps, arguments.duration, seed, timeout
        )
        return {
            "per_second": per_second,
            "per_processor_second": report["succeeded"] / processor.lap(),
            "report": report,
        }

    def at_capacity(before, seed):
        return answers(1.3 * before, seed, timeout=1)

    rounds = []
    capacity = client.capacity(arguments.seed)
    for number in range(arguments.rounds):
        seed = arguments.seed + number
        before = at_capacity(capacity, seed)
        loads = []
        for load in arguments.loads:
            capacity = before["per_second"]
            # Between two measurements of the capacity, so that a drift of the
            # machine cancels out.
            found = answers(load * capacity, seed, timeout=deadline)
            after = at_capacity(capacity, seed)
            loads.append({
                "load": load,
                **{
                    ratio: 2 * found[of] / (before[of] + after[of])
                    for ratio, (of, _) in RATIOS.items()
                },
                "before": before, "found": found, "after": after,
            })
            print(
                f"round {number + 1}: {load:g} × {capacity:.0f}/s: "
                f"{found['per_second']:.0f}/s in time, "
                f"{loads[-1]['goodput_over_capacity']:.2f} of the capacity, "
                f"{loads[-1]['per_processor_second']:.2f} per second of "
                f"processor time; "
                f"{found['report'].get('errors_by_code', {})}",
                flush=True,
            )
            before = after
        capacity = before["per_second"]
        rounds.append({"seed": seed, "loads": loads})
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
    with workplace() as (stack, folder):
        repository = arguments.repository or repositories.zoo_repository(
            folder, "dlrm", "--tables-gib", "0.05", name=arguments.model,
            preset="default", method=arguments.method,
        )
        result = measure(arguments, repository, folder, stack)
    for name, (_, title) in RATIOS.items():
        for load, ratio in result[name].items():
            print(
                f"{title} at {load} ×: {ratio['median']:.2f} "
                f"[{ratio['q25']:.2f}, {ratio['q75']:.2f}]"
            )
    write_result(arguments, result)


if __name__ == "__main__":
    main()
