#!/usr/bin/env python3
"""Measures how an overloaded model affects another model of the same GPU node.

One GPU node (on its CPU unless --gpu-node-options says otherwise) with two
models, real clients and a CPU node for each model. In every round the quiet
model gets the same Poisson schedule twice: alone, and while the other model gets
more requests than the node can execute. The ratio of its p99 is formed within the
round.

If there are enough processors, the GPU node has processors of its own, so that
the ratio shows its scheduler and not the operating system's.
"""

import math
import os
import pathlib
import shlex
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.serving.client import (  # noqa: E402
    Client, at_least_three, in_turn, option_parser, quartiles, workplace, write_result,
)
from scripts.lib import nodes, repository as repositories  # noqa: E402

# Shares of the GPU node's time that the quiet and the loud model ask for.
QUIET_LOAD = 0.2
LOUD_LOAD = 2.0
# Seconds until the node's rules have learnt the load.
SETTLE_S = 2.0


def parse_arguments():
    parser = option_parser(__doc__)
    parser.add_argument(
        "--repository", type=pathlib.Path,
        help="repository with both models, split; default: a DLRM twice, exported here",
    )
    parser.add_argument("--quiet", default="quiet", metavar="NAME")
    parser.add_argument("--loud", default="loud", metavar="NAME")
    parser.add_argument("--quiet-items", type=int, default=64)
    parser.add_argument("--loud-items", type=int, default=256)
    parser.add_argument("--rounds", type=at_least_three, default=5)
    parser.add_argument("--duration", type=float, default=8, metavar="S")
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--gpu-node-options", default="", metavar="TEXT")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.json:
        arguments.json.touch()  # now, not after the rounds
    return arguments


def make_repository(folder):
    exported = repositories.export(
        "dlrm", folder / "dlrm", "--tables-gib", "0.05", preset="default"
    )
    for name in ("quiet", "loud"):
        repositories.add_model(folder / "repository", name, exported / "dlrm.pt2")
    return folder / "repository"


def share_processors(node, instances):
    """Processors for the node and for everything else, if there are enough.

    The node has one processor more than instances: otherwise its connections' threads
    would wait for executions, for a time slice each.
    """
    processors = sorted(os.sched_getaffinity(0))
    own, others = processors[: instances + 1], processors[instances + 1 :]
    if not others:
        return False
    for task in pathlib.Path(f"/proc/{node.process.pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), own)
    os.sched_setaffinity(0, others)  # later processes inherit it
    return True


def p99_of(report):
    """p99 in milliseconds; infinite if too many queries have no answer."""
    if report["errors"] > 0.01 * report["queries"]:
        return math.inf
    return report["latency_ms"]["p99"]


def ratio_of(alone, beside):
    if math.isinf(p99_of(alone)):
        sys.exit(
            f"isolation: {alone['errors']} of {alone['queries']} queries of "
            f"the quiet model failed alone: {alone['errors_by_code']}"
        )
    return p99_of(beside) / p99_of(alone)


def finite(value):
    """For JSON, which has no infinity: null."""
    return None if math.isinf(value) else value


def measure(arguments, repository, folder, stack):
    hn = stack.enter_context(nodes.gpu_node(
        repository, "--instances", arguments.instances,
        *shlex.split(arguments.gpu_node_options),
    ))
    apart = share_processors(hn, arguments.instances)
    quiet, loud = (
        Client(
            folder, stack.enter_context(nodes.cpu_node(repository, [hn.address])),
            name, items,
        )
        for name, items in (
            (arguments.quiet, arguments.quiet_items),
            (arguments.loud, arguments.loud_items),
        )
    )
    quiet_qps = QUIET_LOAD * quiet.capacity(arguments.seed)
    loud_qps = LOUD_LOAD * loud.capacity(arguments.seed)
    print(
        f"quiet: {quiet_qps:.0f} requests/s of {quiet.items} items; loud: "
        f"{loud_qps:.0f} of {loud.items}"
        + ("" if apart else "; no processor apart for the GPU node"),
        flush=True,
    )
    rounds, ratios = [], []
    for number in range(arguments.rounds):
        seed = arguments.seed + number
        found = {}
        for kind in in_turn(("alone", "beside"), number):
            if kind == "beside":
                loud.start(
                    loud_qps, arguments.duration + 2 * SETTLE_S, seed, timeout=1
                )
                time.sleep(SETTLE_S)
            found[kind] = quiet.run(quiet_qps, arguments.duration, seed)
            if kind == "beside":
                found["loud"] = loud.wait()
        ratio = ratio_of(found["alone"], found["beside"])
        ratios.append(ratio)
        rounds.append({"seed": seed, "ratio": finite(ratio), **found})
        print(
            f"round {number + 1}: p99 {found['alone']['latency_ms']['p99']:.2f}"
            f" ms alone, {found['beside']['latency_ms']['p99']:.2f} beside, "
            f"{ratio:.2f} times; {found['beside']['errors']} of "
            f"{found['beside']['queries']} failed; loud: "
            f"{found['loud']['achieved_qps']:.0f}/s answered",
            flush=True,
        )
    return {
        "benchmark": "isolation",
        "processors_apart": apart,
        "instances": arguments.instances,
        "quiet_qps": quiet_qps,
        "loud_qps": loud_qps,
        "clients_were_late": any(
            r[kind]["client_was_late"]
            for r in rounds for kind in ("alone", "beside")
        ),
        "p99_beside_over_alone": quartiles(ratios),
        "rounds": rounds,
    }


def main():
    arguments = parse_arguments()
    with workplace() as (stack, folder):
        repository = arguments.repository or make_repository(folder)
        result = measure(arguments, repository, folder, stack)
    ratio = result["p99_beside_over_alone"]
    print(
        f"p99 beside ÷ alone: {ratio['median']:.2f} "
        f"[{ratio['q25']:.2f}, {ratio['q75']:.2f}]"
        + (
            "; clients were late: the machine is too small for them"
            if result["clients_were_late"] else ""
        )
    )
    result["p99_beside_over_alone"] = {
        name: finite(value) for name, value in ratio.items()
    }
    write_result(arguments, result)


if __name__ == "__main__":
    main()
