#!/usr/bin/env python3
"""Finds the highest rate with p99 within an SLO: Refract beside Triton's Python
backend, with the same model, processors and client.

Needs a Triton server: --tritonserver PATH, or --install, which takes it from PyPI
(package nvidia-pytriton, into artifacts/triton; libpython of this Python must be
installed). Without a server it exits with status 77 and says so. Triton serves the
TorchScript file of the model through a model.py that this script writes, Refract the
whole model on a CPU node. Both run on the processors of --server-cpus, the client on
the others. Their scores for the model's sample are compared before anything is
timed. Rounds take turns, and the ratio is formed within a round.
"""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

from bench.serving.client import (  # noqa: E402
    in_turn, option_parser, quartiles, spread, workplace, write_result,
)
from python.refract.client import Client  # noqa: E402
from scripts.lib import nodes, repository as repositories  # noqa: E402

# Triton's Python backend: one thread per instance, as Refract's workers. Tensors pass
# by DLPack, which copies nothing and works with any release of NumPy.
MODEL_PY = '''\
import json
import os

import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        torch.set_num_threads(1)
        folder = os.path.join(args["model_repository"], args["model_version"])
        self.model = torch.jit.load(os.path.join(folder, "model.pt")).eval()
        config = json.loads(args["model_config"])
        self.inputs = [one["name"] for one in config["input"]]
        self.outputs = [one["name"] for one in config["output"]]

    def execute(self, requests):
        responses = []
        for request in requests:
            arguments = [
                torch.from_dlpack(pb_utils.get_input_tensor_by_name(request, name))
                for name in self.inputs
            ]
            with torch.inference_mode():
                results = self.model(*arguments)
            if not isinstance(results, (tuple, list)):
                results = [results]
            responses.append(
                pb_utils.InferenceResponse(
                    output_tensors=[
                        pb_utils.Tensor.from_dlpack(name, result.contiguous())
                        for name, result in zip(self.outputs, results)
                    ]
                )
            )
        return responses
'''


def parse_arguments():
    parser = option_parser(__doc__)
    parser.add_argument("--tritonserver", help="path of the binary; by default "
                        "the one in PATH")
    parser.add_argument("--install", action="store_true",
                        help="take the server from PyPI where none is found")
    parser.add_argument("--model", default="dlrm")
    parser.add_argument("--preset", default="tiny", choices=("tiny", "default"),
                        help="of the zoo; default: published widths")
    parser.add_argument("--tables-gib", help="size of the tables of preset default")
    parser.add_argument("--query-sizes", default="mlperf")
    parser.add_argument("--slo-ms", type=float, default=25)
    parser.add_argument("--qps", type=float, default=50,
                        help="where the searches begin")
    parser.add_argument("--duration", type=float, default=10, metavar="SECONDS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server-cpus", help="list for taskset; by default half "
                        "of the processors")
    return parser.parse_args()


def config_text(name, inputs, outputs, instances):
    """config.pbtxt of the Python backend. inputs, outputs: [(name, KServe type,
    dims)]."""

    def tensors(kind, described):
        return "\n".join(
            f'{kind} [{{ name: "{tensor}" data_type: TYPE_{datatype} '
            f"dims: {json.dumps(dims)} }}]"
            for tensor, datatype, dims in described
        )

    return (
        f'name: "{name}"\nbackend: "python"\nmax_batch_size: 0\n'
        f"{tensors('input', inputs)}\n{tensors('output', outputs)}\n"
        f"instance_group [{{ kind: KIND_CPU count: {instances} }}]\n"
    )


def write_triton_repository(folder, name, file, inputs, outputs, instances,
                            parameters):
    """parameters: Refract's, so that the client makes the same requests."""
    version = folder / name / "1"
    version.mkdir(parents=True)
    shutil.copy(file, version / "model.pt")
    # The backend's interpreter knows no virtual environment.
    packages = sysconfig.get_paths()["purelib"]
    (version / "model.py").write_text(
        f"import sys\n\nsys.path.append({packages!r})\n{MODEL_PY}"
    )
    text = config_text(name, inputs, outputs, instances)
    for key, value in sorted(parameters.items()):
        text += (
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        )
    (folder / name / "config.pbtxt").write_text(text)


def find_server(path, install):
    """The binary, or None."""
    if path:
        return path if pathlib.Path(path).exists() else None
    target = ROOT / "artifacts" / "triton"
    packaged = target / "pytriton" / "tritonserver" / "bin" / "tritonserver"
    found = shutil.which("tritonserver") or (packaged.exists() and str(packaged))
    if not found and install:
        # Without its dependencies, which are for its Python library.
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
             "--target", target, "nvidia-pytriton"],
            check=True,
        )
        packaged.chmod(0o755)
        found = str(packaged)
    return found or None


def backend_options(binary):
    """Options that a server of nvidia-pytriton needs. The package has a process of
    the Python backend for each release of Python, of which the backend looks for
    one beside itself."""
    home = pathlib.Path(binary).resolve().parents[1]
    stubs = home / "python_backend_stubs"
    if not stubs.is_dir():
        return []
    release = ".".join(map(str, sys.version_info[:2]))
    stub = stubs / release / "triton_python_backend_stub"
    if not stub.exists():
        sys.exit(f"{stubs}: no Python backend for Python {release}")
    beside = home / "backends" / "python" / stub.name
    shutil.copy(stub, beside)
    beside.chmod(0o755)
    return ["--backend-directory", str(home / "backends")]


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_until_ready(process, http_port, log):
    """Until all models of the server are ready; ends with its log where it fails."""
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{http_port}/v2/health/ready"
            if urllib.request.urlopen(url).status == 200:
                return
        time.sleep(0.1)
    sys.exit(f"Triton did not become ready:\n{log.read_text()[-4000:]}")


def check_scores(sample, addresses, model):
    """Servers must give the same scores for the same request."""
    scores = [
        next(iter(Client(address).infer(model, sample).outputs.values()))
        for address in addresses
    ]
    if not numpy.allclose(*scores, rtol=0, atol=1e-5):
        sys.exit(f"the servers' scores differ: {scores}")


def describe(address, model):
    """Inputs, outputs and parameters, as a CPU node tells them."""
    with urllib.request.urlopen(f"http://{address}/v2/models/{model}") as answer:
        metadata = json.load(answer)
    with urllib.request.urlopen(
        f"http://{address}/v2/models/{model}/config"
    ) as answer:
        config = json.load(answer)

    def tensors(kind):
        return [
            (one["name"], one["datatype"], [int(d) for d in one["shape"]])
            for one in metadata[kind]
        ]

    return tensors("inputs"), tensors("outputs"), {
        key: value["string_value"]
        for key, value in config.get("parameters", {}).items()
    }


def main():
    arguments = parse_arguments()
    binary = find_server(arguments.tritonserver, arguments.install)
    if binary is None:
        print("skipped: no Triton server; --tritonserver names one, --install gets one")
        sys.exit(77)
    options = backend_options(binary)
    cpus = sorted(os.sched_getaffinity(0))
    server_cpus = arguments.server_cpus or ",".join(
        map(str, cpus[: max(1, len(cpus) // 2)])
    )
    workers = len(server_cpus.split(","))
    with workplace() as (stack, folder):
        name = arguments.model
        size = ["--tables-gib", arguments.tables_gib] if arguments.tables_gib else []
        exported = repositories.export(
            name, folder / name, "--tables-inside", *size, preset=arguments.preset
        )
        repositories.add_model(
            folder / "refract", name, exported / f"{name}.pt", method="all-cn"
        )

        @contextlib.contextmanager
        def refract_server():
            with nodes.cpu_node(folder / "refract", [], "--workers", workers) as node:
                subprocess.run(
                    ["taskset", "-acp", server_cpus, str(node.process.pid)],
                    check=True, stdout=subprocess.DEVNULL,
                )
                yield node.address, f"127.0.0.1:{node.http_port}"

        log = stack.enter_context(open(folder / "triton.log", "w", encoding="utf-8"))

        @contextlib.contextmanager
        def triton_server():
            ports = [free_port() for _ in range(3)]
            process = subprocess.Popen(
                [
                    "taskset", "-c", server_cpus, binary,
                    "--model-repository", str(folder / "triton"),
                    "--grpc-port", str(ports[0]), "--http-port", str(ports[1]),
                    "--metrics-port", str(ports[2]), *options,
                ],
                stdout=subprocess.DEVNULL, stderr=log,
            )
            try:
                wait_until_ready(process, ports[1], folder / "triton.log")
                yield f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"
            finally:
                process.terminate()
                process.wait()

        with refract_server() as (_, http):
            inputs, outputs, parameters = describe(http, name)
        write_triton_repository(
            folder / "triton", name, exported / f"{name}.pt", inputs, outputs,
            workers, parameters,
        )

        sample = load_file(exported / "sample.safetensors")
        with refract_server() as (own, _), triton_server() as (other, _):
            check_scores(sample, [own, other], name)

        def highest_rate(server, seed):
            with server() as (address, _):
                report = folder / "report.json"
                repositories.refract(
                    "bench", "serving", "--target", address, "--model", name,
                    "--qps", arguments.qps, "--duration", arguments.duration,
                    "--slo-ms", arguments.slo_ms, "--find-max", "--seed", seed,
                    "--query-sizes", arguments.query_sizes, "--wait", 120,
                    "--json", report, timeout=3600,
                )
                return json.loads(report.read_text())["max_qps"]

        servers = {"refract": refract_server, "triton": triton_server}
        rounds = []
        for number in range(arguments.rounds):
            found = {}
            for kind in in_turn(servers, number):
                found[kind] = highest_rate(servers[kind], number + 1)
            found["ratio"] = found["refract"] / found["triton"]
            rounds.append(found)
            print(
                f"round {number + 1}: Refract {found['refract']:.1f}/s, Triton "
                f"{found['triton']:.1f}/s, ratio {found['ratio']:.2f}",
                flush=True,
            )
        ratio = quartiles([found["ratio"] for found in rounds])
        print(
            f"highest rate with p99 <= {arguments.slo_ms:g} ms, Refract / "
            f"Triton's Python backend: {spread(ratio)}"
        )
        write_result(arguments, {
            "benchmark": "triton_backend",
            "model": name,
            "slo_ms": arguments.slo_ms,
            "refract_over_triton": ratio,
            "rounds": rounds,
        })


if __name__ == "__main__":
    main()
