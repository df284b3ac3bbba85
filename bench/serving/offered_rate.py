#!/usr/bin/env python3
"""Measures the rate that a load generator can offer with one processor.

`refract bench serving` and an open loop of tritonclient[grpc] in Python take turns
on one processor. Each sends small requests, all of them due at once, to one CPU node
with a tiny model on the other processors, and takes the answers. The rate that a
processor can offer is the number of requests by the CPU time of the generator, so
that other work on the machine does not count. For refract it is the CPU time of
many requests less that of a fifth of them: the start, and making the distinct
requests before a run, do not count either, as they do not for Python, which sends
one request again and again. The ratio is formed within a round.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.serving.client import (  # noqa: E402
    AT_ONCE_PER_S, at_least_three, in_turn, option_parser, quartiles, spread, workplace,
    write_result,
)
from scripts.lib import nodes, repository as repositories  # noqa: E402


def parse_arguments():
    parser = option_parser(__doc__)
    parser.add_argument("--requests", type=int, default=20_000, metavar="N",
                        help="of refract per round; Python sends half as many")
    parser.add_argument("--protocol", choices=("grpc", "http"), default="grpc",
                        help="protocol of refract; Python's client speaks gRPC")
    parser.add_argument("--rounds", type=at_least_three, default=5)
    parser.add_argument("--python-client", metavar="HOST:PORT",
                        help=argparse.SUPPRESS)
    return parser.parse_args()


def python_client(address, count):
    """An open loop of tritonclient: what a user writes in an hour."""
    import numpy
    import tritonclient.grpc as triton

    client = triton.InferenceServerClient(address)
    inputs = []
    for tensor in client.get_model_metadata("m").inputs:
        shape = [1 if dim < 0 else dim for dim in tensor.shape]
        dtype = {"FP32": numpy.float32, "INT64": numpy.int64}[tensor.datatype]
        item = triton.InferInput(tensor.name, shape, tensor.datatype)
        item.set_data_from_numpy(numpy.zeros(shape, dtype))
        inputs.append(item)
    client.infer("m", inputs)
    latencies, errors = [], []

    def send(due):
        def done(result, error):
            if error is not None:
                errors.append(error)
            latencies.append(time.monotonic() - due)

        client.async_infer("m", inputs, done, client_timeout=60)

    cpu = time.process_time()
    begin = time.monotonic()
    for i in range(count):
        due = begin + i / AT_ONCE_PER_S
        delay = due - time.monotonic()
        if delay > 0:
            time.sleep(delay)
        send(due)
    while len(latencies) < count:
        time.sleep(0.001)
    print(json.dumps({
        "rate": count / (time.process_time() - cpu),
        "errors": len(errors),
    }))


def start_pinned(command, processor):
    return subprocess.Popen(
        ["taskset", "--cpu-list", str(processor), *map(str, command)],
        stdout=subprocess.PIPE, text=True,
    )


def finish(process):
    """Output and CPU seconds of a process."""
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{process.args}: exit {process.returncode}")
    return output, usage.ru_utime + usage.ru_stime


def refract_block(address, protocol, count, processor, folder):
    """CPU time is that of `count` requests more than a few."""

    def run(requests):
        report = folder / "report.json"
        _, cpu_s = finish(start_pinned(
            [nodes.program("refract"), "bench", "serving", "--target", address,
             "--protocol", protocol, "--model", "m", "--query-sizes", "fixed:1",
             "--arrivals", "constant", "--qps", AT_ONCE_PER_S, "--duration",
             requests / AT_ONCE_PER_S, "--warmup", 0, "--max-in-flight",
             10 * count, "--timeout", 60, "--memory-mib", 1, "--json", report],
            processor,
        ))
        return cpu_s, json.loads(report.read_text())

    few = max(count // 5, 1)
    little, before = run(few)
    much, report = run(count)
    if before["distinct_requests"] != report["distinct_requests"]:
        sys.exit(f"--requests {count}: too few; the runs made "
                 f"{before['distinct_requests']} and {report['distinct_requests']} "
                 "distinct requests")
    return {"rate": (count - few) / (much - little), "errors": report["errors"]}


def python_block(address, count, processor):
    return json.loads(finish(start_pinned(
        [sys.executable, __file__, "--python-client", address, "--requests", count],
        processor,
    ))[0])


def main():
    arguments = parse_arguments()
    if arguments.python_client:
        return python_client(arguments.python_client, arguments.requests)
    processors = sorted(os.sched_getaffinity(0))
    generator, others = processors[0], processors[1:]
    if not others:
        sys.exit("offered_rate.py needs two processors")
    with workplace() as (stack, folder):
        repository = repositories.zoo_repository(
            folder, "wide_deep", name="m", method="all-cn"
        )
        # Every request is admitted: a refusal would be cheaper for both sides.
        node = stack.enter_context(nodes.cpu_node(
            repository, [], "--max-queue", 1_000_000,
            "--max-in-flight", 1_000_000, "--metrics-port", "off",
        ))
        os.sched_setaffinity(node.process.pid, others)
        for task in pathlib.Path(f"/proc/{node.process.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), others)
        address = (
            node.address if arguments.protocol == "grpc"
            else f"127.0.0.1:{node.http_port}"
        )
        rounds = []
        for i in range(arguments.rounds):
            blocks = {}
            for name in in_turn(("refract", "python"), i):
                blocks[name] = (
                    refract_block(address, arguments.protocol, arguments.requests,
                                  generator, folder)
                    if name == "refract"
                    else python_block(node.address, arguments.requests // 2, generator)
                )
            rounds.append(blocks)
            print(f"round {i + 1}: " + "; ".join(
                f"{name} {blocks[name]['rate']:,.0f} requests/s of CPU time, "
                f"{blocks[name]['errors']} errors"
                for name in ("refract", "python")
            ), flush=True)
    result = {
        "benchmark": "offered_rate",
        "protocol": arguments.protocol,
        "requests": arguments.requests,
        "rounds": rounds,
        "ratio": quartiles(
            [r["refract"]["rate"] / r["python"]["rate"] for r in rounds]),
    }
    for name in ("refract", "python"):
        rate = statistics.median(r[name]["rate"] for r in rounds)
        print(f"{name}: median {rate:,.0f} requests/s of CPU time")
    print(f"refract / Python: {spread(result['ratio'])}")
    write_result(arguments, result)
    return None


if __name__ == "__main__":
    main()
