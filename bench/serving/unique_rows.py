#!/usr/bin/env python3
"""Measures the cost of repeated user features between the nodes.

26 tables, of which 13 are user-side: all items of a request have the same ids
in them. Three plans of one model: plain (every tensor as it is), unique rows,
and unique rows with fp16 elements. Bytes are those that the CPU node sent to
the GPU node, per request; times are of the same requests in turn, over the
given transport: of a request, and of the CPU node until the message is ready. Scores are compared with PyTorch's before anything is timed.

--mbit limits each direction of the connections between the nodes, in a network
namespace of this process's own: with the kernel's token buckets (tc, htb) on the
ports of the GPU nodes. It takes root's rights. Clients are not slowed down.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import tritonclient.grpc as triton  # noqa: E402

from bench.serving.client import (  # noqa: E402
    option_parser, quartiles, workplace, write_result,
)
from models.zoo import safetensors_io  # noqa: E402
from scripts.lib import nodes, repository as repositories  # noqa: E402

TABLES, USER_TABLES, MODEL = 26, 13, "ranker"
# Largest difference of scores after a sigmoid, with fp32 and with fp16 rows.
TOLERANCE = {"plain": 2e-6, "unique": 2e-6, "unique_fp16": 2e-3}


def parse_arguments():
    parser = option_parser(__doc__)
    parser.add_argument("--items", type=int, default=270)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--rows", type=int, default=10_000, help="rows of each table")
    parser.add_argument("--transport", default="shm", choices=("shm", "tcp"))
    parser.add_argument("--mbit", type=int, help="limit of each direction, Mbit/s; for tcp")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--requests", type=int, default=10, help="per round")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.mbit and arguments.transport != "tcp":
        parser.error("--mbit needs --transport tcp")
    return arguments


class SlowLink:
    """Token buckets on the loopback of this process's network namespace."""

    IN_NAMESPACE = "REFRACT_BENCH_SLOW_LINK"

    def __init__(self, mbit):
        if self.IN_NAMESPACE not in os.environ:
            os.environ[self.IN_NAMESPACE] = "1"
            os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
        self.run("ip", "link", "set", "lo", "up")
        self.tc("qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb", "r2q", 1000)
        # A burst holds one segment that the loopback hands over as a whole.
        for direction in (1, 2):
            self.tc(
                "class", "add", "dev", "lo", "parent", "1:", "classid",
                f"1:{direction}", "htb", "rate", f"{mbit}mbit", "burst", "64k",
                "cburst", "64k",
            )

    def add(self, port):
        for direction, end in ((1, "dport"), (2, "sport")):
            self.tc(
                "filter", "add", "dev", "lo", "parent", "1:", "protocol", "ip", "u32",
                "match", "ip", end, port, "0xffff", "flowid", f"1:{direction}",
            )

    def tc(self, *arguments):
        self.run("tc", *(str(part) for part in arguments))

    @staticmethod
    def run(*command):
        subprocess.run(command, check=True)


class Ranker(torch.nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.tables = torch.nn.ModuleList(
            torch.nn.Embedding(rows, dim) for _ in range(TABLES)
        )
        self.top = torch.nn.Sequential(
            torch.nn.Linear(TABLES * dim, 512), torch.nn.ReLU(),
            torch.nn.Linear(512, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1),
        )

    def forward(self, ids):
        vectors = [table(ids[:, t]) for t, table in enumerate(self.tables)]
        return torch.sigmoid(self.top(torch.cat(vectors, 1))).squeeze(1)


def request(arguments, generator):
    ids = torch.randint(
        0, arguments.rows, (arguments.items, TABLES), generator=generator
    )
    ids[:, :USER_TABLES] = ids[0, :USER_TABLES]
    return ids


def sent_bytes(node):
    with urllib.request.urlopen(node.metrics_url) as answer:
        for line in answer.read().decode().splitlines():
            if "sent_bytes" in line and not line.startswith("#"):
                return float(line.rpartition(" ")[2])
    raise AssertionError("no metric of sent bytes")


class Served:
    """A plan with its two nodes."""

    def __init__(self, repository, arguments, stack, link, *flags):
        repositories.refract(
            "partition", repository / MODEL, "--method", "heuristic", "--write",
            *flags,
        )
        hn = stack.enter_context(nodes.gpu_node(repository))
        if link:
            link.add(hn.port)
        self.cn = stack.enter_context(nodes.cpu_node(
            repository, [hn.address], "--transport", arguments.transport
        ))
        self.client = triton.InferenceServerClient(self.cn.address)
        nodes.wait_until(lambda: self.client.is_model_ready(MODEL), "ready")

    def ask(self, ids):
        given = triton.InferInput("ids", list(ids.shape), "INT64")
        given.set_data_from_numpy(ids.numpy())
        answer = self.client.infer(MODEL, [given], client_timeout=60)
        return torch.from_numpy(answer.as_numpy("output_0").copy())

    def on_cpu_node(self):
        """Number of requests, and their seconds on the CPU node before the message."""
        statistics = self.client.get_inference_statistics(MODEL).model_stats[0]
        before = statistics.inference_stats.compute_input
        return before.count, before.ns / 1e9

    def seconds(self, requests):
        """Median of a request, and mean on the CPU node."""
        took = []
        count, busy = self.on_cpu_node()
        for ids in requests:
            began = time.perf_counter()
            self.ask(ids)
            took.append(time.perf_counter() - began)
        later, busier = self.on_cpu_node()
        return sorted(took)[len(took) // 2], (busier - busy) / (later - count)


def measure(arguments, folder, stack, link):
    torch.manual_seed(arguments.seed)
    generator = torch.Generator().manual_seed(arguments.seed)
    model = Ranker(arguments.rows, arguments.dim).eval()
    sample = request(arguments, generator)
    program = torch.export.export(
        model, (sample,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},)
    )
    torch.export.save(program, folder / "model.pt2")
    path = folder / "sample.safetensors"
    safetensors_io.write(path, {"ids": sample})
    served = {}
    for name, flags in (
        ("plain", ("--wire-dtype", "fp32")),
        ("unique", ("--wire-dtype", "fp32", "--sample", path)),
        ("unique_fp16", ("--wire-dtype", "fp16", "--sample", path)),
    ):
        repository = folder / name
        # The sample of an import would give the plain plan unique rows, too.
        repositories.refract(
            "import", folder / "model.pt2", "--repo", repository, "--name", MODEL
        )
        served[name] = Served(
            repository, arguments, stack, link, "--batch", arguments.items, *flags
        )
    checked = request(arguments, generator)
    with torch.no_grad():
        wanted = model(checked)
    result = {"bytes": {}, "max_abs_error": {}}
    for name, plan in served.items():
        plan.ask(checked)
        before = sent_bytes(plan.cn)
        error = (plan.ask(checked) - wanted).abs().max().item()
        result["bytes"][name] = sent_bytes(plan.cn) - before
        result["max_abs_error"][name] = error
        if error > TOLERANCE[name]:
            raise AssertionError(f"{name}: scores are {error} off")
    rounds = []
    for number in range(arguments.rounds):
        requests = [request(arguments, generator) for _ in range(arguments.requests)]
        names = list(served)
        order = names[number % 3 :] + names[: number % 3]
        rounds.append({name: served[name].seconds(requests) for name in order})
    result["p50_ms"] = {
        name: quartiles([r[name][0] * 1e3 for r in rounds]) for name in served
    }
    for name in ("unique", "unique_fp16"):
        result[f"{name}_bytes_over_plain"] = (
            result["bytes"][name] / result["bytes"]["plain"]
        )
        for place, what in enumerate(("p50", "cpu_node")):
            result[f"{name}_{what}_over_plain"] = quartiles(
                [r[name][place] / r["plain"][place] for r in rounds]
            )
    return {
        "benchmark": "unique_rows",
        "items": arguments.items,
        "dim": arguments.dim,
        "transport": arguments.transport,
        "mbit": arguments.mbit,
        "rounds": arguments.rounds,
        **result,
    }


def main():
    arguments = parse_arguments()
    link = SlowLink(arguments.mbit) if arguments.mbit else None
    with workplace() as (stack, folder):
        result = measure(arguments, folder, stack, link)
    print(json.dumps(result, indent=1))
    write_result(arguments, result)


if __name__ == "__main__":
    main()
