"""Models and inputs for the end-to-end tests, and the processes of nodes.py."""

from models.zoo import inputs as zoo_inputs
from models.zoo import safetensors_io
from scripts.lib.nodes import GPU, SOURCE, cpu_node, gpu_node, program, wait_until
from scripts.lib.repository import add_model, export, refract, run

MODELS = ("dlrm", "dlrm_dcnv2", "wide_deep", "deepfm", "din", "two_tower")


def make_inputs(description_file, batch, seed, bags="ragged"):
    """One request of a zoo model as {name: torch tensor}."""
    described = zoo_inputs.read_description(description_file)["inputs"]
    return zoo_inputs.make_inputs(described, batch, seed, bags=bags)


def write_tensors(path, tensors):
    safetensors_io.write(path, tensors)
