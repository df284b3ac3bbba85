"""Models and inputs for the end-to-end tests, and the processes of nodes.py."""

import os
import random
import socket
import sys

from models.zoo import inputs as zoo_inputs
from models.zoo import safetensors_io
from scripts.lib.nodes import GPU, SOURCE, cpu_node, gpu_node, program, wait_until
from scripts.lib.repository import add_model, export, refract, run, start_once

# For scripts that import PyTorch: warm_python.py under ctest.
PYTHON = os.environ.get("REFRACT_PYTHON", sys.executable)
MODELS = ("dlrm", "dlrm_dcnv2", "wide_deep", "deepfm", "din", "two_tower")


def make_inputs(description_file, batch, seed, bags="ragged"):
    """One request of a zoo model as {name: torch tensor}."""
    described = zoo_inputs.read_description(description_file)["inputs"]
    return zoo_inputs.make_inputs(described, batch, seed, bags=bags)


def add_wide_deep(folder):
    """A repository in `folder` whose model "m" is wide_deep, whole on CPU nodes; it
    and a request of 5 items."""
    source = export("wide_deep", folder / "wide_deep")
    add_model(folder / "repo", "m", source / "wide_deep.pt2", method="all-cn")
    return folder / "repo", make_inputs(source / "wide_deep.json", 5, 7)


def write_tensors(path, tensors):
    safetensors_io.write(path, tensors)


def free_ports(count):
    """Ports of loopback at which nothing listens. Linux gives none of them to the
    other tests' connections, nor to a program that asks for any port: those are the
    ports from 32768 on, unless the machine is set otherwise."""
    ports = []
    while len(ports) < count:
        port = random.randrange(10000, 32768)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports
