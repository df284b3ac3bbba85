#!/usr/bin/env python3
"""Tables larger than memory: hit rate and latency beside an all-in-memory run.

One model of 8 tables, ids by Zipf's law. The CPU node runs three times: with
its tables in memory (`--table-memory load`, no limit), and under a memory limit
of a third of the tables with `disk` (row cache and io_uring) and with `map`
(the page cache). The limit is a control group of its own, for which this needs
root; without --limit-mib the row cache alone is a third of the tables.
Scores are compared with PyTorch's before anything is timed. The three nodes are
measured one after the other, each round on the same seeds.

With --neighbour-qps the node serves a second model, whose tables its caches hold,
and each round also measures this model alone and beside the first: workers that
wait for the disk are missing to it. The mode `disk_more_workers` is `disk` with
`--workers 8`.
"""

import contextlib
import json
import os
import pathlib
import re
import sys
import tempfile
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import tritonclient.grpc as triton  # noqa: E402

from bench.serving.client import (  # noqa: E402
    Client, option_parser, quartiles, write_result,
)
from models.zoo import safetensors_io  # noqa: E402
from scripts.lib import nodes, repository as repositories  # noqa: E402

TABLES, MODEL, NEIGHBOUR = 8, "ranker", "neighbour"
NEIGHBOUR_ROWS = 100  # of each table
TOLERANCE = 2e-6  # of scores after a sigmoid
PATTERN_ROWS = 4096 + 7  # written again and again


def parse_arguments():
    parser = option_parser(__doc__)
    parser.add_argument("--mib", type=int, default=3072, help="tables together")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--items", type=int, default=64, help="of a request")
    parser.add_argument("--zipf", type=float, default=1.05)
    parser.add_argument("--qps", type=float, default=20)
    parser.add_argument("--duration", type=float, default=15, help="seconds a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--limit-mib", type=int,
        help="memory limit of the node in `disk` and `map`; the row cache has half of it",
    )
    parser.add_argument("--folder", help="on the disk to measure", default="/var/tmp")
    parser.add_argument(
        "--modes", default="load,disk,map", help="also disk_more_workers",
        type=lambda text: text.split(","),
    )
    parser.add_argument("--neighbour-qps", type=float)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Ranker(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.tables = torch.nn.ModuleList(
            torch.nn.Embedding(2, dim) for _ in range(TABLES)
        )
        self.top = torch.nn.Linear(TABLES * dim, 1)

    def forward(self, ids):
        vectors = [table(ids[:, t]) for t, table in enumerate(self.tables)]
        return torch.sigmoid(self.top(torch.cat(vectors, 1))).squeeze(1)


def own_group():
    """Folder of this process's memory control group (v1 or v2)."""
    text = pathlib.Path("/proc/self/cgroup").read_text()
    path = re.search(r"^\d+:(?:memory)?:(\S+)$", text, re.M).group(1)
    root = pathlib.Path("/sys/fs/cgroup/memory")
    if not root.is_dir():
        root = pathlib.Path("/sys/fs/cgroup")
    return root / path.lstrip("/")


def start_node(stack, mib, *arguments):
    """A CPU node in a control group of `mib` MiB; None: without a limit."""
    if mib is None:
        return stack.enter_context(nodes.cpu_node(*arguments))
    parent = own_group()
    group = pathlib.Path(tempfile.mkdtemp(prefix="refract_bench_", dir=parent))
    stack.callback(group.rmdir)  # after the node's end
    limit = group / "memory.limit_in_bytes"
    if not limit.exists():
        limit = group / "memory.max"
    limit.write_text(str(mib << 20))
    # A process that this one starts is in its group.
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        return stack.enter_context(nodes.cpu_node(*arguments))
    finally:
        (parent / "cgroup.procs").write_text(str(os.getpid()))


def write_tables(path, pattern, rows):
    """The same rows again and again; every block is one of its own."""
    data = memoryview(pattern.numpy()).cast("B")
    row_bytes = len(data) // len(pattern)

    def chunks():
        for first in range(0, rows, PATTERN_ROWS):
            yield data[: min(PATTERN_ROWS, rows - first) * row_bytes]

    safetensors_io.write_streaming(path, [
        (f"tables.{t}.weight", torch.float32, (rows, pattern.shape[1]), chunks())
        for t in range(TABLES)
    ])


def ask(node, ids):
    given = triton.InferInput("ids", list(ids.shape), "INT64")
    given.set_data_from_numpy(ids.numpy())
    client = triton.InferenceServerClient(node.address)
    answer = client.infer(MODEL, [given], client_timeout=120)
    return torch.from_numpy(answer.as_numpy("output_0").copy())


def import_neighbour(dim, items, folder):
    """The same model with small tables."""
    folder.mkdir()
    model = Ranker(dim).eval()
    for table in model.tables:
        table.weight = torch.nn.Parameter(torch.rand(NEIGHBOUR_ROWS, dim))
    ids = torch.randint(0, NEIGHBOUR_ROWS, (items, TABLES))
    torch.export.save(torch.export.export(
        model, (ids,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},)
    ), folder / "model.pt2")
    repositories.refract(
        "import", folder / "model.pt2", "--repo", folder.parent / "repo",
        "--name", NEIGHBOUR, "--no-golden",
    )


def row_counts(node):
    with urllib.request.urlopen(node.metrics_url) as answer:
        text = answer.read().decode()
    return {
        result: float(value)
        for result, value in re.findall(
            rf'refract_row_cache_rows_total\{{model="{MODEL}".*result="(\w+)".*\}} (\S+)',
            text
        )
    }


def measure(arguments, folder):
    torch.manual_seed(arguments.seed)
    rows = (arguments.mib << 20) // (TABLES * arguments.dim * 4)
    pattern = torch.rand(PATTERN_ROWS, arguments.dim) - 0.5
    model = Ranker(arguments.dim).eval()
    for table in model.tables:
        table.weight = torch.nn.Parameter(
            torch.zeros(1).expand(rows, arguments.dim), requires_grad=False
        )
    ids = torch.randint(0, rows, (arguments.items, TABLES))
    program = torch.export.export(
        model, (ids,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},)
    )
    torch.export.save(program, folder / "model.pt2")
    (folder / "tables").mkdir()
    write_tables(folder / "tables" / "tables.safetensors", pattern, rows)
    repositories.refract(
        "import", folder / "model.pt2", "--repo", folder / "repo", "--name", MODEL,
        "--tables", folder / "tables", "--link", "--no-golden", timeout=1800,
    )
    with torch.no_grad():
        looked_up = pattern[ids % PATTERN_ROWS].reshape(arguments.items, -1)
        wanted = torch.sigmoid(model.top(looked_up)).squeeze(1)
    if arguments.neighbour_qps:
        import_neighbour(arguments.dim, arguments.items, folder / NEIGHBOUR)
    third = arguments.mib // 3
    limit = arguments.limit_mib
    cache = limit // 2 if limit else third
    result = {
        "table_mib": arguments.mib, "limit_mib": limit, "row_cache_mib": cache,
        "zipf": arguments.zipf, "qps": arguments.qps, "items": arguments.items,
        "neighbour_qps": arguments.neighbour_qps,
        "modes": {},
    }
    for name, bound, flags in (
        ("load", None, ()),
        ("disk", limit, ("--row-cache-mib", cache)),
        ("disk_more_workers", limit, ("--row-cache-mib", cache, "--workers", 8)),
        ("map", limit, ()),
    ):
        if name not in arguments.modes:
            continue
        with contextlib.ExitStack() as stack:
            node = start_node(
                stack, bound, folder / "repo", [], "--table-memory",
                name.partition("_")[0], *flags
            )
            error = (ask(node, ids) - wanted).abs().max().item()
            if error > TOLERANCE:
                raise AssertionError(f"{name}: scores are {error} off")
            client = Client(folder, node, MODEL, arguments.items)
            zipf = f"zipf:{arguments.zipf:g}"
            # Fills caches.
            client.run(arguments.qps, arguments.duration, arguments.seed, ids=zipf)
            found = {"p50_ms": [], "p99_ms": [], "failed": 0}
            before = row_counts(node)
            beside = Client(folder, node, NEIGHBOUR, arguments.items)
            for round_ in range(arguments.rounds):
                seed = arguments.seed + 1 + round_
                if arguments.neighbour_qps:
                    load = arguments.neighbour_qps, arguments.duration, seed
                    alone = beside.run(*load)
                    beside.start(*load)
                report = client.run(arguments.qps, arguments.duration, seed, ids=zipf)
                if arguments.neighbour_qps:
                    for key, measured in (("alone", alone), ("beside", beside.wait())):
                        found.setdefault(f"neighbour_{key}_p99_ms", []).append(
                            measured["latency_ms"]["p99"])
                        found["failed"] += measured["errors"]
                found["p50_ms"].append(report["latency_ms"]["p50"])
                found["p99_ms"].append(report["latency_ms"]["p99"])
                found["failed"] += report["errors"]
            counts = {k: v - before[k] for k, v in row_counts(node).items()}
            for key in [key for key in found if key.endswith("_ms")]:
                found[key] = quartiles(found[key])
            if counts:
                found["hit_rate"] = counts["hit"] / (counts["hit"] + counts["miss"])
            status = pathlib.Path(f"/proc/{node.process.pid}/status").read_text()
            found["rss_mib"] = int(re.search(r"VmRSS:\s+(\d+)", status)[1]) // 1024
            result["modes"][name] = found
            print(f"{name}: {json.dumps(found)}", flush=True)
    return result


def main():
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(
        prefix="refract-disk-", dir=arguments.folder
    ) as folder:
        result = measure(arguments, pathlib.Path(folder))
    write_result(arguments, {"benchmark": "tables_on_disk", **result})


if __name__ == "__main__":
    main()
