"""Scores of a served model, compared with expected ones; for check_deb.sh and
check_containers.sh.

    python -m scripts.lib.check_scores PORT MODEL INPUTS EXPECTED

PORT: of a CPU node's HTTP on this machine. INPUTS, EXPECTED: safetensors files.
Prints the largest difference; exit status 1 where it exceeds 1e-5 or is NaN.
"""

import sys

import numpy as np
import tritonclient.http as triton
from safetensors.numpy import load_file
from tritonclient.utils import np_to_triton_dtype

TOLERANCE = 1e-5  # absolute, of scores after the sigmoid


def main(port, model, inputs, expected):
    client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    tensors = []
    for name, array in load_file(inputs).items():
        tensor = triton.InferInput(
            name, list(array.shape), np_to_triton_dtype(array.dtype)
        )
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    answer = client.infer(model, tensors)
    # numpy's maximum of numbers and a NaN is NaN, which is not within TOLERANCE.
    worst = np.max(
        [
            abs(answer.as_numpy(name) - scores).max()
            for name, scores in load_file(expected).items()
        ]
    )
    print(f"largest difference to PyTorch's scores: {worst:.2g}")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
