#!/usr/bin/env python3
"""Compares the p99 that `refract plan` predicts with the p99 of real processes.

A CPU node with one worker on one processor, a GPU node on its CPU on another,
and an open-loop client, which shares the processor of the node that has less
to do. Each round runs the nodes at one calibration load and at every measured
load. The traces of the calibration load are the model's costs (`model.traces`
of a spec): `refract plan` predicts p99 at the measured rates and the knee from
them alone.

Prints predicted ÷ measured p99 of all rounds together, and the range of the
measured p99 of single rounds. Rounds are kept in --samples, so that several
short calls add up (on a machine that must not be occupied for long).
"""

import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.serving.client import (  # noqa: E402
    Client, ProcessorTime, option_parser, workplace, write_result,
)
from scripts.lib import nodes, repository as repositories  # noqa: E402

# The calibration load, as a part of the capacity: queues are short, and a few
# seconds have hundreds of requests.
CALIBRATION = 0.4
# The objective of the knee ÷ the predicted p99 of a request that never waits.
OBJECTIVE = 4
# An objective that never binds: p99 at a rate is asked for.
MOST_MS = 5000
MS = 1e-6  # of the nanoseconds of traces


def parse_arguments():
    parser = option_parser(__doc__)
    parser.add_argument("--repository", type=pathlib.Path,
                        help="repository with the model; default: a DLRM, exported here")
    parser.add_argument("--model", default="dlrm", metavar="NAME")
    parser.add_argument("--items", type=int, default=64, metavar="N",
                        help="items per request (default: 64)")
    parser.add_argument("--loads", default="0.2,0.3,0.4,0.5,0.6,0.7",
                        metavar="LIST", help="rates to measure, as parts of the capacity")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", type=float, default=6, metavar="S",
                        help="seconds of each load in each round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=10_000, metavar="N",
                        help="simulated requests of a prediction, of each of 3 "
                        "seeds (default: 10000)")
    parser.add_argument("--samples", type=pathlib.Path, metavar="FOLDER",
                        help="add rounds to those in this folder")
    arguments = parser.parse_args()
    arguments.loads = [float(load) for load in arguments.loads.split(",")]
    return arguments


def request_ms(line):
    """Milliseconds of a trace's request; None: no GPU node executed it."""
    spans = {
        span["name"]: span
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    }
    if "hn_execute" not in spans:
        return None
    request = spans["request"]
    return MS * (int(request["endTimeUnixNano"])
                 - int(request["startTimeUnixNano"]))


class Pair:
    """A CN and an HN, whose requests are all traced, and their client."""

    def __init__(self, stack, arguments, folder, repository):
        processors = sorted(os.sched_getaffinity(0))
        if len(processors) < 2:
            sys.exit("needs two processors")
        self.traces = folder / "traces.jsonl"
        os.sched_setaffinity(0, processors[1:])  # inherited by the HN
        self.hn = stack.enter_context(nodes.gpu_node(repository, "--instances", 1))
        os.sched_setaffinity(0, processors[:1])
        self.cn = stack.enter_context(nodes.cpu_node(
            repository, [self.hn.address], "--workers", 1,
            "--trace-config", f"triton,file={self.traces}",
            "--trace-config", "rate=1",
        ))
        self.folder = folder
        self.client = Client(folder, self.cn, arguments.model, arguments.items)
        self.client.run(50, 1, arguments.seed)
        # The client shares the processor of the node with less to do.
        if ProcessorTime(self.cn).sum() > ProcessorTime(self.hn).sum():
            os.sched_setaffinity(0, processors[1:])
        self.read = 0

    def run(self, qps, duration, seed):
        """Report, latencies in milliseconds, and lines of traces of a run."""
        self.new_traces()
        table = self.folder / "latencies.csv"
        report = self.client.run(qps, duration, seed, csv=table)
        rows = [line.split(",") for line in table.read_text().split()][1:]
        latencies = [float(row[3]) for row in rows if row[4] == "OK"]
        time.sleep(0.3)  # the node writes traces after the answers
        return report, latencies, self.new_traces()

    def new_traces(self):
        if not self.traces.exists():
            return []
        with open(self.traces, encoding="utf-8") as file:
            file.seek(self.read)
            text = file.read()
        # The node may be in the middle of a line; its rest is read with the
        # next call.
        end = text.rfind("\n") + 1
        self.read += len(text[:end].encode())
        return [line for line in text[:end].split("\n") if line]


def calibrate(pair, qps, duration, seed, file):
    """Keeps the traces of a run, and the time of a request outside them."""
    report, latencies, lines = pair.run(qps, duration, seed)
    file.write_text("".join(f"{line}\n" for line in lines))
    inside = [ms for ms in map(request_ms, lines) if ms is not None]
    # gRPC and the client, outside the CN's own spans.
    client = statistics.median(latencies) - statistics.median(inside)
    return {"traces": file.name, "client_ms": max(0.0, client),
            "late": report["client_was_late"]}


def measure(arguments, kept, samples):
    with workplace() as (stack, folder):
        repository = arguments.repository or repositories.zoo_repository(
            folder, arguments.model, "--tables-gib", "0.05", preset="default"
        )
        pair = Pair(stack, arguments, folder, repository)
        if "capacity" not in kept:
            kept["capacity"] = pair.client.capacity(arguments.seed)
            kept["processor"] = processor()
        capacity = kept["capacity"]
        print(f"capacity {capacity:.0f}/s", flush=True)
        for _ in range(arguments.rounds):
            number = len(kept["rounds"])
            seed = arguments.seed + 100 * number
            one = {"calibrations": [], "loads": {}}
            for count, load in enumerate(arguments.loads):
                # Again and again within a round, since the speed of a machine
                # drifts.
                if count % 3 == 0:
                    one["calibrations"].append(calibrate(
                        pair, CALIBRATION * capacity, arguments.duration,
                        seed + 50 + count,
                        samples / f"traces-{number}-{count}.jsonl"))
                report, latencies, _ = pair.run(
                    load * capacity, arguments.duration, seed + count)
                if report["errors"]:
                    sys.exit(f"failed requests: {report['errors']}")
                one["loads"][f"{load:g}"] = latencies
                print(f"round {number}: {load * capacity:.0f}/s, p99 "
                      f"{quantile(latencies, 0.99):.1f} ms", flush=True)
            kept["rounds"].append(one)


def processor():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    found = {}
    for line in text.split("\n"):
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return (f"{found.get('model name', 'unknown')}, family "
            f"{found.get('cpu family')}, model {found.get('model')}")


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, math.ceil(q * len(values)) - 1)]


def costs(kept, samples):
    """The `model` of a spec."""
    runs = [run for one in kept["rounds"] for run in one["calibrations"]]
    return {"traces": {
        "files": [str((samples / run["traces"]).resolve()) for run in runs],
        "client_us": 1e3 * statistics.median(
            run["client_ms"] for run in runs),
    }}


def spec(kept, samples, qps, slo_ms):
    part = {"node": "here", "memory_gib": 0, "cores": 1}
    return {
        "name": "here",
        "nodes": [{"name": "here", "cores": 1, "memory_gib": 1, "gpus": 1,
                   "nic_gbps": 1e6, "price_per_h": 1}],
        "services": [{
            "name": kept["model"].replace("_", "-"),
            "model": costs(kept, samples),
            "slo": {"p99_ms": slo_ms},
            "traffic": {"queries_per_s": qps,
                        "query_sizes": f"fixed:{kept['items']}"},
            "cn": part,
            # The GPU node runs without --batching-window-us.
            "hn": part | {"batching_window_us": "off"},
        }],
    }


def plan(kept, samples, qps, slo_ms, folder):
    path, answer = folder / "spec.json", folder / "plan.json"
    path.write_text(json.dumps(spec(kept, samples, qps, slo_ms)))
    repositories.refract("plan", path, "--json", answer, "--no-sensitivity",
                         "--requests", kept["simulated"], "--seeds", 3,
                         timeout=600)
    return json.loads(answer.read_text())["services"][0]["answer"]


def compare(kept, samples):
    """Predicted and measured p50 and p99 by load."""
    points = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        alone = plan(kept, samples, 0.01, MOST_MS, folder)
        idle = alone["at_design_rate"]["p99_ms"]["mean"]
        knee = plan(kept, samples, 0.01, OBJECTIVE * idle, folder)["knee"]
        loads = {load for one in kept["rounds"] for load in one["loads"]}
        for load in sorted(loads, key=float):
            qps = float(load) * kept["capacity"]
            found = plan(kept, samples, qps, MOST_MS, folder)
            if (found["cns"], found["hns"]) != (1, 1):
                print(f"{qps:.0f}/s needs more than one CN and one HN")
                continue
            rounds = [one["loads"][load] for one in kept["rounds"]
                      if load in one["loads"]]
            measured = [value for latencies in rounds for value in latencies]
            single = [quantile(latencies, 0.99) for latencies in rounds]
            point = {
                "requests_per_s": qps, "part_of_knee": qps / knee,
                "requests": len(measured),
                "single_rounds_p99_ms": single,
            }
            for key, q in (("p50", 0.5), ("p99", 0.99)):
                predicted = found["at_design_rate"][f"{key}_ms"]["mean"]
                real = quantile(measured, q)
                point |= {f"predicted_{key}_ms": predicted,
                          f"measured_{key}_ms": real,
                          f"{key}_ratio": predicted / real}
            points.append(point)
    return OBJECTIVE * idle, knee, points


def main():
    arguments = parse_arguments()
    with workplace(arguments.samples) as (_, samples):
        run(arguments, samples)


def run(arguments, samples):
    table = samples / "samples.json"
    kept = {"model": arguments.model, "items": arguments.items, "rounds": []}
    if table.exists():
        kept = json.loads(table.read_text())
        if (kept["model"], kept["items"]) != (arguments.model,
                                              arguments.items):
            sys.exit(f"{table}: has rounds of {kept['model']}, "
                     f"{kept['items']} items")
    if arguments.rounds:
        measure(arguments, kept, samples)
        table.write_text(json.dumps(kept))
    kept["simulated"] = arguments.requests
    if arguments.samples and not arguments.json:
        return
    objective, knee, points = compare(kept, samples)
    print(f"{kept['model']}, {kept['items']} items, {len(kept['rounds'])} "
          f"rounds, {kept['processor']}; knee {knee:.0f}/s at p99 ≤ "
          f"{objective:.0f} ms")
    print("rate/s, of knee: p50 predicted ÷ measured, p99 predicted ÷ "
          "measured [p99 of single rounds], ms")
    for point in points:
        single = point["single_rounds_p99_ms"]
        print(f"{point['requests_per_s']:7.0f}  "
              f"{point['part_of_knee']:.2f}: "
              f"{point['p50_ratio']:.2f}  "
              f"{point['predicted_p99_ms']:.1f} ÷ "
              f"{point['measured_p99_ms']:.1f} = {point['p99_ratio']:.2f} "
              f"[{min(single):.1f}, {max(single):.1f}]")
    within = [0.75 <= point["p99_ratio"] <= 1.33 for point in points
              if point["part_of_knee"] <= 0.8]
    print(f"{sum(within)} of {len(within)} points up to 80 % of the knee are "
          "within [0.75, 1.33]")
    if arguments.json:
        revision = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, text=True,
            capture_output=True, check=False).stdout.strip()
        write_result(arguments, {
            "benchmark": "predicted_p99", "revision": revision,
            "processor": kept["processor"], "model": kept["model"],
            "items": kept["items"], "rounds": len(kept["rounds"]),
            "objective_p99_ms": objective, "knee_per_s": knee,
            "points": points,
        })


if __name__ == "__main__":
    main()
