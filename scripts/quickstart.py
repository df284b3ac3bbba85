#!/usr/bin/env python3
"""Exports, imports, splits, serves, checks and measures one zoo model.

Started by scripts/quickstart.sh after the build. Three systems answer the same
schedule of requests in turn: split over shared memory, split over TCP, and the
same kernels unsplit in one process. Scores are compared with PyTorch's first.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = (
    pathlib.Path(os.environ.get("REFRACT_BUILD_DIR", ROOT / "build" / "release"))
    / "bin"
)
WORK = ROOT / "artifacts" / "quickstart"
LOGS = WORK / "logs"
MODELS = ("dlrm", "dlrm_dcnv2", "wide_deep", "deepfm", "din", "two_tower")
SYSTEMS = ("split, shm", "split, tcp", "unsplit")
# Largest difference to PyTorch, absolute, after the sigmoid.
TOLERANCE = 1e-5
PARITY_REQUESTS = 6
START_TIMEOUT_S = 120
GIB = 1 << 30


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", choices=MODELS, default="dlrm")
    parser.add_argument(
        "--tables-gib",
        type=float,
        help="size of all tables; default: 2, or what memory and disk allow",
    )
    parser.add_argument(
        "--criteo",
        type=pathlib.Path,
        metavar="FILE",
        help="take rows from this file in Criteo's text format",
    )
    parser.add_argument(
        "--qps",
        type=float,
        help="requests per second; default: a third of what one core can do",
    )
    parser.add_argument(
        "--duration", type=float, default=20, help="seconds of each round"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds of each system, in turn"
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="device of the GPU node: cpu, cuda:N, or auto (GPU 0 if there is a GPU, else the CPU)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--check-only", action="store_true", help="check the options and stop"
    )
    arguments = parser.parse_args()
    if arguments.criteo and not arguments.criteo.is_file():
        parser.error(f"--criteo: no file {arguments.criteo}")
    if arguments.tables_gib is not None and arguments.tables_gib <= 0:
        parser.error("--tables-gib must be positive")
    if arguments.rounds < 1 or arguments.duration <= 0:
        parser.error("--rounds and --duration must be positive")
    if arguments.qps is not None and arguments.qps <= 0:
        parser.error("--qps must be positive")
    return arguments


class Failure(Exception):
    """Ends the run with one line."""


def say(text):
    print(f"quickstart: {text}", file=sys.stderr, flush=True)


def run(name, *command):
    """Runs a command with its output in a log; returns the log's text."""
    log = LOGS / f"{name}.log"
    with open(log, "w") as out:
        done = subprocess.run(
            [str(part) for part in command],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            check=False,
        )
    text = log.read_text()
    if done.returncode != 0:
        last = text.strip().splitlines()[-1:] or ["no output"]
        raise Failure(f"{name} failed: {last[0]} (log: {log})")
    return text


def refract(name, *arguments):
    return run(name, BIN / "refract", *arguments)


def available_memory():
    """Available bytes, including page cache that can be dropped."""
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def choose_tables_gib(wanted):
    """2 GiB of tables, or less if memory or disk are short."""
    disk = shutil.disk_usage(WORK).free
    if wanted is not None:
        if wanted * GIB > disk:
            raise Failure(
                f"--tables-gib {wanted:g}: the disk has {disk / GIB:.1f} GiB"
            )
        return wanted
    # The nodes map the same files, so memory holds them once. Half of the
    # memory is left for PyTorch. Latencies mean little when tables do not fit.
    gib = round(min(2.0, available_memory() / 2 / GIB, disk / 2 / GIB), 2)
    if gib < 0.1:
        raise Failure("memory or disk is too short for 0.1 GiB of tables")
    if gib < 2.0:
        say(f"tables of {gib:g} GiB only: memory or disk is short of 2 GiB")
    return gib


def request_options(arguments, description):
    """Options of the load generator that fit the model's inputs."""
    if arguments.criteo:
        options = ["--criteo", arguments.criteo]
    else:
        # Bags as the exporter describes them: an input that others point at
        # ("of") with one dimension holds the ids of bags.
        options = []
        bags = {i["of"] for i in description["inputs"] if "of" in i}
        sizes = [
            i["per_item"]
            for i in description["inputs"]
            if i["name"] in bags and len(i["shape"]) == 1
        ]
        if sizes:
            options = ["--bag-sizes", "list:" + ",".join(map(str, sizes))]
    # When the columns of a matrix share one table, only the exporter knows
    # which ids belong to which column.
    for item in description["inputs"]:
        if len(item.get("rows", ())) > 1:
            rows = ",".join(map(str, item["rows"]))
            options += ["--rows", f"{item['name']}={rows}"]
    return options


def prepare(arguments):
    """Exports, imports and partitions.

    Returns the two repositories and the load generator's options.
    """
    tables_gib = choose_tables_gib(arguments.tables_gib)
    source = WORK / "model"
    shutil.rmtree(source, ignore_errors=True)
    say(f"exporting {arguments.model} with {tables_gib} GiB of tables")
    run(
        "export", sys.executable, "-m", "models.zoo.export",
        "--model", arguments.model, "--out", source,
        "--formats", "pt2", "--tables-gib", tables_gib,
        "--seed", arguments.seed,
    )
    repositories = {}
    for kind, method in (("split", "heuristic"), ("unsplit", "all-cn")):
        repository = WORK / f"repository-{kind}"
        shutil.rmtree(repository, ignore_errors=True)
        say(f"importing and partitioning ({method})")
        refract(
            f"import-{kind}", "import", source / f"{arguments.model}.pt2",
            "--repo", repository, "--name", arguments.model,
            "--tables", source / "tables",
            "--sample", source / "sample.safetensors", "--link",
        )
        refract(
            f"partition-{kind}", "partition", repository / arguments.model,
            "--method", method, "--write",
        )
        repositories[kind] = repository
    description = json.loads((source / f"{arguments.model}.json").read_text())
    return repositories, request_options(arguments, description)


class Daemon:
    """A node process; stopped by SIGTERM when the block ends."""

    def __init__(self, name, program, *arguments):
        self.name = name
        self.log_path = LOGS / f"{name}.log"
        self.log = open(self.log_path, "w")
        self.process = subprocess.Popen(
            # No balancer waits to be told.
            [
                str(BIN / program), "--lame-duck", "0", "--metrics-port", "0",
                *map(str, arguments),
            ],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.address = None
        ready = threading.Event()

        def read():
            for line in self.process.stdout:
                found = re.search(r"listening on (\S+)", line)
                if found:
                    self.address = found.group(1)
                    ready.set()
            ready.set()

        threading.Thread(target=read, daemon=True).start()
        if not ready.wait(START_TIMEOUT_S) or self.address is None:
            self.stop()
            raise Failure(f"{name} did not start (log: {self.log_path})")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
        status = self.process.wait()
        self.log.close()
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def start_systems(repositories, device, stack):
    """One HN and three CNs.

    Returns {system: CN} in the order of SYSTEMS, and the device of the HN.
    """
    hn = stack.enter_context(
        Daemon(
            "gpu-node", "refract-gpu-node", "--model-repository",
            repositories["split"], "--host", "127.0.0.1", "--port", 0,
            "--device", device,
        )
    )
    # With --device auto the node decides; its log says what it took.
    device = re.search(r"device ([a-z0-9:]+),", hn.log_path.read_text()).group(1)
    nodes = {}
    for system in SYSTEMS:
        kind = system.partition(",")[0]
        extra = []
        if kind == "split":
            extra = [
                "--gpu-nodes", hn.address,
                "--transport", system.rpartition(" ")[2],
            ]
        nodes[system] = stack.enter_context(
            Daemon(
                "cpu-node-" + system.replace(", ", "-"), "refract-cpu-node",
                "--model-repository", repositories[kind],
                "--grpc-host", "127.0.0.1", "--grpc-port", 0, *extra,
            )
        )
    return nodes, device


def bench(arguments, content, name, node, *more):
    """One run of the load generator; its JSON."""
    output = LOGS / f"{name}.json"
    refract(
        name, "bench", "serving", "--target", node.address,
        "--model", arguments.model, "--query-sizes", "mlperf",
        "--json", output, *content, *more,
    )
    return json.loads(output.read_text())


def record(arguments, content, nodes):
    """Has every system answer the same requests; {system: folder}."""
    folders = {}
    for system, node in nodes.items():
        name = "record-" + system.replace(", ", "-")
        folders[system] = WORK / name
        shutil.rmtree(folders[system], ignore_errors=True)
        bench(
            arguments, content, name, node, "--qps", 5, "--duration", 2,
            "--warmup", 0, "--seed", arguments.seed, "--record",
            folders[system], "--record-count", PARITY_REQUESTS,
        )
    return folders


def check_parity(arguments, content, repositories, nodes, exact):
    """Compares scores with PyTorch's and, bit for bit if `exact`, split with
    unsplit ones.

    Returns the largest difference to PyTorch of each system.
    """
    import numpy as np
    from safetensors.numpy import load_file

    folders = record(arguments, content, nodes)
    unsplit = folders["unsplit"]
    requests = sorted(unsplit.glob("request_*.safetensors"))
    if not requests:
        raise Failure("no request was answered: nothing to compare")
    pairs = []
    for request in requests:
        pairs += ["--inputs", request, "--outputs", f"{request}.torch"]
    refract(
        "reference", "run", repositories["split"] / arguments.model,
        "--mode", "reference", *pairs,
    )
    worst = dict.fromkeys(nodes, 0.0)
    for request in requests:
        truth = load_file(f"{request}.torch")
        response = request.name.replace("request_", "response_")
        expected = load_file(unsplit / response)
        for system, folder in folders.items():
            if not (folder / response).exists():
                raise Failure(f"{system} did not answer request {request.name}")
            if (folder / request.name).read_bytes() != request.read_bytes():
                raise Failure(f"{system} was asked something else: {request}")
            answer = load_file(folder / response)
            for key, scores in truth.items():
                if answer[key].shape != scores.shape:
                    raise Failure(f"{system}: {key} has another shape")
                # Comparisons are false for NaN, so a NaN fails the check.
                error = float(np.abs(answer[key] - scores).max())
                worst[system] = max(worst[system], error)
                if not error <= TOLERANCE:
                    raise Failure(
                        f"{system}: scores differ from PyTorch's by {error} "
                        f"in {request}"
                    )
                if exact and answer[key].tobytes() != expected[key].tobytes():
                    raise Failure(
                        f"{system}: scores are not those of the unsplit "
                        f"system, bit for bit, in {request}"
                    )
    return len(requests), worst


def measure(arguments, content, nodes):
    """{system: [report of each round]}, all at one rate, in turn."""
    qps = arguments.qps
    if qps is None:
        say("finding a rate: unloaded latency of the unsplit system")
        alone = bench(
            arguments, content, "unloaded", nodes["unsplit"], "--qps", 3,
            "--duration", 6,
        )
        # A third of one core: queueing is visible, overload is far away.
        qps = 1 / 3 / (alone["latency_ms"]["mean"] / 1e3)
        qps = max(1.0, round(qps, 1))
    say(
        f"measuring at {qps} queries/s: {arguments.rounds} rounds of "
        f"{arguments.duration:g} s for each of {len(nodes)} systems"
    )
    rounds = {system: [] for system in nodes}
    for i in range(arguments.rounds):
        for system, node in nodes.items():
            name = f"round{i + 1}-" + system.replace(", ", "-")
            # All systems get the same requests in a round; the next round has
            # other table rows, so that no system finds its rows in a cache.
            report = bench(
                arguments, content, name, node, "--qps", qps,
                "--duration", arguments.duration, "--warmup", 2,
                "--seed", arguments.seed + 1 + i,
            )
            rounds[system].append(report)
    return qps, rounds


def transport_bytes(node):
    """(up, down) bytes per request from the CN's closing log lines."""
    # A line per connection, of which a CN may have had several.
    sums = [0, 0, 0]
    pattern = r"(\d+) requests sent, (\d+) bytes up, (\d+) bytes down"
    for found in re.finditer(pattern, node.log_path.read_text()):
        sums = [a + int(b) for a, b in zip(sums, found.groups())]
    if sums[0] == 0:
        return None
    return sums[1] / sums[0], sums[2] / sums[0]


def median(reports, *path):
    values = []
    for report in reports:
        for key in path:
            report = report[key]
        values.append(report)
    return statistics.median(values)


def print_results(qps, rounds, compared, worst, traffic, device):
    print(
        f"\nScores: {compared} requests equal PyTorch's within "
        f"{max(worst.values()):.1e} (allowed {TOLERANCE:.0e})"
        + (
            "; split and unsplit are equal bit for bit.\n"
            if device == "cpu"
            else f"; the GPU node computes on {device}.\n"
        )
    )
    print(
        f"{'':12} {'p50 ms':>8} {'p95 ms':>8} {'p99 ms':>8} {'queries/s':>10} "
        f"{'items/s':>9} {'CN→HN B/req':>12} {'HN→CN B/req':>12}"
    )
    for system, reports in rounds.items():
        way = "".join(
            f" {'-' if count is None else format(count, '.0f'):>12}"
            for count in traffic[system] or (None, None)
        )
        print(
            f"{system:12} "
            f"{median(reports, 'latency_ms', 'p50'):8.2f} "
            f"{median(reports, 'latency_ms', 'p95'):8.2f} "
            f"{median(reports, 'latency_ms', 'p99'):8.2f} "
            f"{median(reports, 'achieved_qps'):10.1f} "
            f"{median(reports, 'items_per_s'):9.0f}{way}"
        )
    print(
        f"\n{'mean ms':12} {'queue':>8} {'CN-pre':>8} {'HN + way':>10} "
        f"{'CN-post':>8}"
    )
    for system, reports in rounds.items():
        print(
            f"{system:12} "
            f"{median(reports, 'server_ms', 'queue'):8.2f} "
            f"{median(reports, 'server_ms', 'cpu_before'):8.2f} "
            f"{median(reports, 'server_ms', 'gpu_and_transport'):10.2f} "
            f"{median(reports, 'server_ms', 'cpu_after'):8.2f}"
        )
    first = rounds[SYSTEMS[0]]
    print(
        f"\nOpen loop, Poisson arrivals at {qps:g} queries/s of 100 to 700 "
        "items (mean 270), latency from the\nscheduled time, medians of "
        f"{len(first)} rounds taken in turn; client to CN "
        f"{median(first, 'request_bytes'):.0f} bytes/request, back "
        f"{median(first, 'response_bytes'):.0f}.\n"
        "Unsplit, the CN runs the whole model where 'HN + way' stands. "
        "Client, CN and HN share this\nmachine's cores: this shows that the "
        "split works and what the crossing costs here,\nnot what separate "
        "machines gain."
    )
    reports = [report for each in rounds.values() for report in each]
    if any(report["client_was_late"] for report in reports):
        print(
            "The load generator itself was short of processor time: "
            "the machine is busy with other work."
        )
    print(f"Logs and JSON: {LOGS}")
    failed = sum(report["errors"] for report in reports)
    if failed:
        raise Failure(f"{failed} requests failed; see {LOGS}")


def main():
    arguments = parse_arguments()
    if arguments.check_only:
        return 0
    os.chdir(ROOT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONPATH"] = str(ROOT)
    LOGS.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    # Nodes are stopped by context managers, so every way out must be an
    # exception.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda n, _: sys.exit(128 + n))
    try:
        repositories, content = prepare(arguments)
        with contextlib.ExitStack() as stack:
            say("starting one GPU node and three CPU nodes")
            nodes, device = start_systems(repositories, arguments.device, stack)
            say("comparing scores with PyTorch's")
            # A GPU sums in another order than the CPU.
            compared, worst = check_parity(
                arguments, content, repositories, nodes, exact=device == "cpu"
            )
            qps, rounds = measure(arguments, content, nodes)
        traffic = {name: transport_bytes(node) for name, node in nodes.items()}
        (WORK / "results.json").write_text(
            json.dumps(
                {
                    "qps": qps,
                    "device": device,
                    "parity": worst,
                    "bytes_per_request": traffic,
                    "rounds": rounds,
                },
                indent=1,
            )
        )
        print_results(qps, rounds, compared, worst, traffic, device)
    except Failure as failure:
        print(f"quickstart: error: {failure}", file=sys.stderr)
        return 1
    say(f"done in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
