#!/usr/bin/env python3
"""Latency of requests while versions of a model load and switch.

    scripts/version_switch.py models/ranker --inputs x.safetensors [--seconds 10]

Starts a GPU node and a CPU node on this machine, asks at a fixed rate, and compares
the latencies of two spans: no change of the model, and one load after the other that
pins one of its two newest versions in turn (nothing is kept in memory, so each load
reads its version). A latency counts from the time at which the request was due.
"""

import argparse
import json
import pathlib
import sys
import threading
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from models.zoo import safetensors_io  # noqa: E402
from scripts.lib import nodes  # noqa: E402

KINDS = {"float32": "FP32", "int64": "INT64", "int32": "INT32"}


def inputs_of(triton, path):
    inputs = []
    for name, tensor in safetensors_io.read(path).items():
        array = tensor.numpy()
        given = triton.InferInput(name, array.shape, KINDS[str(array.dtype)])
        given.set_data_from_numpy(array)
        inputs.append(given)
    return inputs


def ask(client, model, inputs, rate, seconds):
    """Latencies in ms, and the number of failures, of an open loop."""
    latencies, failures, answered = [], [], threading.Semaphore(0)
    begin = time.monotonic()
    count = int(rate * seconds)
    for i in range(count):
        due = begin + i / rate
        time.sleep(max(0, due - time.monotonic()))

        def done(result, error, due=due):
            latencies.append((time.monotonic() - due) * 1e3)
            if error is not None:
                failures.append(str(error))
            answered.release()

        client.async_infer(model, inputs, done, client_timeout=30)
    for _ in range(count):
        answered.acquire()
    return np.array(latencies), failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path, help="REPOSITORY/NAME")
    parser.add_argument("--inputs", required=True, help="safetensors file with a request")
    parser.add_argument("--rate", type=float, default=50, help="requests per second")
    parser.add_argument("--seconds", type=float, default=10, help="seconds of each span")
    arguments = parser.parse_args()
    import tritonclient.grpc as triton

    name = arguments.model.name
    versions = sorted(
        int(path.name) for path in arguments.model.iterdir() if path.name.isdigit()
    )[-2:]
    if len(versions) < 2:
        sys.exit(f"{arguments.model}: two versions are needed")
    explicit = ("--model-control-mode", "explicit")
    hn = nodes.gpu_node(arguments.model.parent, *explicit)
    cn = nodes.cpu_node(
        arguments.model.parent, [hn.address], *explicit, "--keep-versions", 0
    )
    try:
        client = triton.InferenceServerClient(cn.address)
        inputs = inputs_of(triton, arguments.inputs)

        def load(version):
            policy = {"version_policy": {"specific": {"versions": [version]}}}
            client.load_model(name, config=json.dumps(policy))

        load(versions[0])
        span = (client, name, inputs, arguments.rate, arguments.seconds)
        ask(*span[:4], 2)  # warm
        steady, failed = ask(*span)
        stop, times = threading.Event(), []

        def switch():
            while not stop.is_set():
                begin = time.monotonic()
                load(versions[(len(times) + 1) % 2])
                times.append(time.monotonic() - begin)

        thread = threading.Thread(target=switch)
        thread.start()
        changing, more = ask(*span)
        stop.set()
        thread.join()
    finally:
        cn.close()
        hn.close()
    result = {"rate": arguments.rate, "changes": len(times), "failed": len(failed + more)}
    result["change_s"] = round(float(np.median(times)), 3)
    for label, values in (("steady", steady), ("changing", changing)):
        for percent in (50, 99):
            result[f"{label}_p{percent}_ms"] = round(
                float(np.percentile(values, percent)), 2
            )
    result["p99_ratio"] = round(
        result["changing_p99_ms"] / result["steady_p99_ms"], 2
    )
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
