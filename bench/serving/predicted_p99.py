#!/usr/bin/env python3
"""Compares the p99 that `refract plan` predicts with the p99 of real processes.

A CPU node with one worker on one processor, a GPU node on its CPU on another,
and an open-loop client, which shares the processor of the node that has less
to do. Two runs measure the costs of one
request in each part; `refract plan` predicts from these figures the
latency of one CN and one HN by load, and its knee. Then the nodes get those
loads, and each measured p99 is printed with its prediction.

Prints predicted ÷ measured per load. Other processes on the machine appear in
the measured p99 and in nothing else.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.serving.client import Client  # noqa: E402
from scripts.lib import nodes, repository as repositories  # noqa: E402

# Rates of the runs that measure costs, as parts of the capacity. Requests that
# come rarely find threads asleep and caches cold, as at low load, where these
# delays make up most of p99.
BUSY, ALONE = 0.85, 0.2
# Beyond the 99th percentile a short run has too few requests to tell the nodes'
# own times from a single stall of the machine, and counts them as a stall.
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repository", type=pathlib.Path,
                        help="with the model; without: a DLRM, exported here")
    parser.add_argument("--model", default="dlrm", metavar="NAME")
    parser.add_argument("--items", type=int, default=16, metavar="N",
                        help="per request (default: 16, so that a short run "
                        "has thousands of requests)")
    parser.add_argument("--loads", default="0.2,0.3,0.4,0.5,0.6,0.7,0.8",
                        metavar="LIST", help="parts of the predicted knee")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", type=float, default=8, metavar="S")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.loads = [float(load) for load in arguments.loads.split(",")]
    return arguments


def make_repository(arguments, folder):
    exported = repositories.export(
        "dlrm", folder / "dlrm", "--tables-gib", "0.05", preset="default"
    )
    repositories.add_model(folder / "repository", arguments.model,
                           exported / "dlrm.pt2", method="heuristic")
    return folder / "repository"


def cpu_seconds(process):
    """User and system time of a process and its threads."""
    text = pathlib.Path(f"/proc/{process.pid}/stat").read_text()
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sums(node, metric):
    """Sum and count of a histogram over all its labels but `stage`."""
    text = urllib.request.urlopen(node.metrics_url, timeout=10).read().decode()
    found = {}
    for name, labels, value in re.findall(
        rf"^({metric}_(?:sum|count))\{{(.*)\}} (\S+)$", text, re.M
    ):
        stage = re.search(r'stage="([^"]*)"', labels)
        key = (stage.group(1) if stage else "", name.rpartition("_")[2])
        found[key] = found.get(key, 0.0) + float(value)
    return found


class Costs:
    """Costs of a request.

    A busy run gives the processor time per request: idle threads spin before
    they sleep, so at low load processor time is no cost of requests. A run whose
    requests never meet (those that would are left out) gives the latency without
    queues: its median beyond the processor times is the round trip, its spread
    that of the longer part.
    """

    def __init__(self, client, cn, hn, capacity, duration, seed):
        before = [cpu_seconds(node.process) for node in (cn, hn)]
        executed = self.executions(hn)
        report = client.run(BUSY * capacity, duration, seed)
        cn_cpu, hn_cpu = (
            cpu_seconds(node.process) - cpu
            for node, cpu in zip((cn, hn), before)
        )
        seconds, count = (
            b - a for a, b in zip(executed, self.executions(hn))
        )
        server = report["server_ms"]
        requests = server["requests"]
        # All of a node's processor time per request: the workers' parts, the
        # front end's and the transport's, which share its processor.
        self.execution = 1e3 * seconds / max(count, 1)
        self.hn = max(1e3 * hn_cpu / requests, self.execution)
        self.cn = max(1e3 * cn_cpu / requests,
                      server["cpu_before"] + server["cpu_after"])
        self.post = server["cpu_after"]
        self.pre = self.cn - self.post
        # Twice as long, since its requests are few.
        alone = client.run(ALONE * capacity, 2 * duration, seed + 1,
                           max_in_flight=1)
        self.latency = alone["latency_ms"]
        self.requests = alone["succeeded"]
        self.rest = max(0.0, self.latency["p50"] - self.cn - self.hn)
        self.factors = self.spread()

    @staticmethod
    def executions(hn):
        found = sums(hn, "refract_gpu_node_execution_duration_seconds")
        return found.get(("", "sum"), 0.0), found.get(("", "count"), 0.0)

    def spread(self):
        """Factors of the longer part's time, equally likely, which give the
        quantiles of the latency without queues. Their mean is 1, since the
        processor time is a mean."""
        latency, median = self.latency, self.latency["p50"]
        busy = max(self.cn, self.hn)
        points = [(0.0, median * 0.97)] + [
            (q, latency[name]) for name, q in QUANTILES.items()
        ]
        points.append((1.0, latency["p99"]))
        factors = []
        for i in range(1000):
            at = (i + 0.5) / 1000
            for (q1, a), (q2, b) in zip(points, points[1:]):
                if q1 <= at <= q2:
                    value = a + (b - a) * (at - q1) / (q2 - q1)
                    break
            factors.append(max(0.2, 1 + (value - median) / busy))
        mean = statistics.mean(factors)
        return [factor / mean for factor in factors]


def spec(arguments, costs, slo_ms):
    part = {"node": "here", "memory_gib": 0}
    return {
        "name": "here",
        "nodes": [{"name": "here", "cores": 1, "memory_gib": 1, "gpus": 1,
                   "nic_gbps": 1e6, "price_per_h": 1}],
        "services": [{
            "name": arguments.model,
            "model": {
                "profile": [{
                    "rows": arguments.items, "cn_pre_ms": costs.pre,
                    "cn_post_ms": costs.post, "hn_ms": costs.hn,
                    "up_kib": 0, "down_kib": 0,
                }],
                "round_trip_us": 1e3 * costs.rest,
                # All of the spread is the longer part's.
                "variation": {
                    "cn" if costs.cn > costs.hn else "hn": costs.factors
                },
            },
            "slo": {"p99_ms": slo_ms},
            "traffic": {"queries_per_s": 0.1,
                        "query_sizes": f"fixed:{arguments.items}"},
            "cn": part | {"cores": 1},
            "hn": part | {"cores": 1},
        }],
    }


def predict(arguments, costs, folder):
    slo_ms = max(8 * costs.latency["p50"], 3 * costs.latency["p99"])
    path, answer = folder / "spec.json", folder / "plan.json"
    path.write_text(json.dumps(spec(arguments, costs, slo_ms), indent=1))
    repositories.refract("plan", path, "--json", answer, "--no-sensitivity",
                         "--requests", 50000, timeout=600)
    found = json.loads(answer.read_text())["services"][0]["answer"]
    if (found["cns"], found["hns"]) != (1, 1):
        sys.exit(f"the plan has {found['cns']} CN and {found['hns']} HN")
    return found["knee"], {
        round(point["requests_per_s"] / found["knee"], 2): point
        for point in found["sweep"]
    }


def main():
    arguments = parse_arguments()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(
            stack.enter_context(tempfile.TemporaryDirectory())
        )
        repository = arguments.repository or make_repository(arguments, folder)
        processors = sorted(os.sched_getaffinity(0))
        if len(processors) < 2:
            sys.exit("needs two processors")
        os.sched_setaffinity(0, processors[1:])  # inherited by the HN
        hn = nodes.gpu_node(repository)
        stack.callback(hn.close)
        os.sched_setaffinity(0, processors[:1])
        cn = nodes.cpu_node(repository, [hn.address], "--workers", 1)
        stack.callback(cn.close)
        client = Client(folder, cn, arguments.model, arguments.items)
        client.capacity(arguments.seed)
        if cpu_seconds(cn.process) > cpu_seconds(hn.process):
            os.sched_setaffinity(0, processors[1:])
        capacity = client.capacity(arguments.seed)
        rounds = []
        for number in range(arguments.rounds):
            print(f"round {number + 1}: capacity {capacity:.0f}/s", flush=True)
            for count, load in enumerate(arguments.loads):
                # Costs directly before: a shared machine's speed drifts.
                seed = arguments.seed + 1000 * number + 10 * count
                costs = Costs(client, cn, hn, capacity, arguments.duration,
                              seed)
                knee, sweep = predict(arguments, costs, folder)
                point = sweep[load]
                executed = costs.executions(hn)
                report = client.run(point["requests_per_s"],
                                    arguments.duration, seed + 2)
                seconds, executions = (
                    b - a for a, b in zip(executed, costs.executions(hn))
                )
                measured = report["latency_ms"]["p99"]
                predicted = point["p99_ms"]["mean"]
                rounds.append({
                    "round": number, "load": load,
                    "qps": point["requests_per_s"], "knee": knee,
                    "cn_ms": costs.cn, "hn_ms": costs.hn,
                    "besides_ms": costs.rest,
                    "execution_ms": costs.execution,
                    "execution_ms_then": 1e3 * seconds / max(executions, 1),
                    "predicted_p50_ms": point["p50_ms"]["mean"],
                    "measured_p50_ms": report["latency_ms"]["p50"],
                    "predicted_p99_ms": predicted,
                    "measured_p99_ms": measured,
                    "ratio": predicted / measured,
                    "client_was_late": report["client_was_late"],
                    "failed": report["errors"],
                })
                print(
                    f"  {load:g} × knee, {point['requests_per_s']:.0f}/s: CN "
                    f"{costs.cn:.2f} ms, HN {costs.hn:.2f} ms, besides "
                    f"{costs.rest:.2f} ms; p50 "
                    f"{point['p50_ms']['mean']:.2f} / "
                    f"{report['latency_ms']['p50']:.2f} ms, p99 "
                    f"{predicted:.2f} / {measured:.2f} ms: "
                    f"{predicted / measured:.2f}"
                    + (" (the client was late)"
                       if report["client_was_late"] else ""),
                    flush=True,
                )
    print("predicted ÷ measured p99, median of the rounds:")
    within = True
    for load in arguments.loads:
        ratios = [r["ratio"] for r in rounds if r["load"] == load]
        median = statistics.median(ratios)
        within &= 0.75 <= median <= 1.33
        print(f"  {load:g} × knee: {median:.2f} "
              f"[{min(ratios):.2f}, {max(ratios):.2f}]")
    print("all within [0.75, 1.33]" if within else
          "not all within [0.75, 1.33]")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"benchmark": "predicted_p99", "model": arguments.model,
                        "items": arguments.items, "points": rounds}, indent=2)
            + "\n")


if __name__ == "__main__":
    main()
