#!/usr/bin/env python3
"""CPU node, GPU node and a client over real verbs, in the virtual machine.

    end_to_end.py [--transport verbs|tcp|shm] [OPTION of run_in_vm…]

Slow steps happen here, before the emulated machine starts: a tiny model is
exported and split, and PyTorch computes the expected answers. The
cases that then run in the guest are in end_to_end_cases.py.
"""

import argparse
import importlib.util
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import guest_image
import guest_machine
from safetensors.torch import load_file

from tests.e2e import support
from tests.rdma_vm.end_to_end_cases import MODEL, write_request

RUN_IN_VM = pathlib.Path(__file__).resolve().parent / "run_in_vm"
# A CPU node sends from a few KiB for them, which goes by WRITE, to several
# hundred KiB, which the GPU node reads.
BATCHES = (1, 2, 7, 33, 150, 270, 1000)
# 50 s on an idle machine.
CASES_LIMIT_S = 900
SKIPPED = 77


def prepare(folder, seed):
    """The model repository and the requests with PyTorch's scores."""
    exported = support.export(MODEL, folder / "export")
    repository = folder / "repo"
    support.add_model(repository, MODEL, exported / f"{MODEL}.pt2")
    pairs, requests = [], []
    for i, batch in enumerate(BATCHES):
        tensors = support.make_inputs(
            exported / f"{MODEL}.json", batch, seed + i
        )
        path = folder / f"{i}.safetensors"
        support.write_tensors(path, tensors)
        pairs += ["--inputs", path, "--outputs", f"{path}.out"]
        requests.append((tensors, f"{path}.out"))
    support.refract("run", repository / MODEL, "--mode", "reference", *pairs)
    for i, (tensors, output) in enumerate(requests):
        (scores,) = load_file(output).values()
        write_request(
            folder / f"request-{i}.npz",
            {name: tensor.numpy() for name, tensor in tensors.items()},
            scores.numpy(),
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--transport", default="verbs")
    arguments, options = parser.parse_known_args()
    if importlib.util.find_spec("tritonclient") is None:
        print("skipped: tritonclient[grpc] is missing")
        return SKIPPED
    try:
        guest_machine.require_qemu()
        guest_image.prepare()
    except guest_image.Unavailable as reason:
        print(f"skipped: {reason}")
        return SKIPPED
    seed = int(os.environ.get("REFRACT_TEST_SEED", random.randrange(2**31)))
    print(f"seed {seed} (repeat with REFRACT_TEST_SEED)", flush=True)
    with tempfile.TemporaryDirectory(prefix="refract-e2e-") as folder:
        folder = pathlib.Path(folder)
        prepare(folder, seed)
        return subprocess.run(
            [
                RUN_IN_VM, "--where", "vm", "--layout", "veth",
                "--memory", "4096", "--timeout", str(CASES_LIMIT_S),
                "--env", f"REFRACT_E2E_FOLDER={folder}",
                "--env", f"REFRACT_E2E_TRANSPORT={arguments.transport}",
                "--env", "REFRACT_START_TIMEOUT_S=180",
                "--env", f"PYTHONPATH={support.SOURCE}",
                "--env", "PYTHONUNBUFFERED=1", *options,
                "--", sys.executable, "-m", "unittest", "-v",
                "tests.rdma_vm.end_to_end_cases",
            ],
            check=False,
        ).returncode  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
