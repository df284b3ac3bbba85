#!/usr/bin/env python3
"""Compares HTTP with binary tensors with gRPC: p50 of the same requests.

One CPU node that runs a whole model. Blocks of requests over HTTP and over gRPC
take turns on one connection each; the ratio is formed within a round, between
the medians of its two blocks. Clients: `lean` sends bytes made before (a socket;
a gRPC stub without Protobuf), so that the server's part counts; `triton` is
tritonclient for both. Both answers are compared first.
"""

import json
import pathlib
import socket
import statistics
import sys
import time

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.serving.client import (  # noqa: E402
    at_least_three, in_turn, option_parser, quartiles, spread, workplace, write_result,
)
from models.zoo import inputs as zoo_inputs  # noqa: E402
from scripts.lib import nodes, repository as repositories  # noqa: E402

DATATYPES = {"float32": "FP32", "int64": "INT64"}
INFER = "/inference.GRPCInferenceService/ModelInfer"


def block_parser(documentation):
    """Options of benchmarks that take_turns()."""
    parser = option_parser(documentation)
    parser.add_argument("--model", default="dlrm")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--items", type=int, default=33)
    parser.add_argument("--rounds", type=at_least_three, default=9)
    parser.add_argument("--requests", type=int, default=300, metavar="N",
                        help="per block")
    return parser


def parse_arguments():
    parser = block_parser(__doc__)
    parser.add_argument("--client", choices=("lean", "triton"), default="lean")
    return parser.parse_args()


def lean_http(node, model, tensors):
    """A function that sends the request and returns the outputs' bytes."""
    raw = b"".join(tensor.tobytes() for tensor in tensors.values())
    text = json.dumps(
        {
            "inputs": [
                {
                    "name": name, "datatype": DATATYPES[tensor.dtype.name],
                    "shape": tensor.shape,
                    "parameters": {"binary_data_size": tensor.nbytes},
                }
                for name, tensor in tensors.items()
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    message = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\n"
        f"Inference-Header-Content-Length: {len(text)}\r\n"
        f"Content-Length: {len(text) + len(raw)}\r\n\r\n"
    ).encode() + text + raw
    sock = socket.create_connection(("127.0.0.1", node.http_port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def field(head, name):
        return int(head.split(name + b": ")[1].split(b"\r\n")[0])

    def call():
        sock.sendall(message)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += sock.recv(1 << 16)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), answer
        length = field(head, b"Content-Length")
        while len(body) < length:
            body += sock.recv(1 << 16)
        return body[field(head, b"Inference-Header-Content-Length"):]

    return call


def lean_grpc(node, model, tensors, credentials=None):
    """As lean_http, over gRPC; `credentials`: of TLS."""
    import grpc
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=model)
    for name, tensor in tensors.items():
        request.inputs.add(
            name=name, datatype=DATATYPES[tensor.dtype.name], shape=tensor.shape
        )
        request.raw_input_contents.append(tensor.tobytes())
    message = request.SerializeToString()
    if credentials is None:
        channel = grpc.insecure_channel(node.address)
    else:
        channel = grpc.secure_channel(node.address, credentials)
    call = channel.unary_unary(INFER)

    def outputs():
        return b"".join(
            service_pb2.ModelInferResponse.FromString(
                call(message)
            ).raw_output_contents
        )

    # Timed without decoding, as lean_http cuts bytes alone.
    outputs.timed = lambda: call(message)
    return outputs


def triton(module, address, model, tensors):
    client = module.InferenceServerClient(address)
    inputs = []
    for name, tensor in tensors.items():
        one = module.InferInput(
            name, list(tensor.shape), DATATYPES[tensor.dtype.name]
        )
        one.set_data_from_numpy(tensor)
        inputs.append(one)
    names = [output["name"] for output in outputs_of(client, model)]

    def call():
        result = client.infer(model, inputs)
        return b"".join(result.as_numpy(name).tobytes() for name in names)

    return call


def outputs_of(client, model):
    metadata = client.get_model_metadata(model)
    if isinstance(metadata, dict):
        return metadata["outputs"]
    return [{"name": output.name} for output in metadata.outputs]


def block(call, requests):
    timed = getattr(call, "timed", call)
    times = []
    for _ in range(requests):
        began = time.perf_counter()
        timed()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def model_and_request(folder, arguments, method="all-cn"):
    """Makes folder/repository with the model, by default whole on the CPU node;
    one request."""
    model = arguments.model
    repository = repositories.zoo_repository(
        folder, model, preset=arguments.preset, method=method
    )
    described = zoo_inputs.read_description(folder / model / f"{model}.json")
    return repository, {
        name: numpy.ascontiguousarray(tensor.numpy())
        for name, tensor in zoo_inputs.make_inputs(
            described["inputs"], arguments.items, 1, bags="ragged"
        ).items()
    }


def take_turns(calls, arguments):
    """Blocks of requests by each of two calls in turn; [{kind: p50, "ratio"}].

    The ratio is that of the first kind to the second, within a round.
    """
    first, second = calls
    for call in calls.values():
        block(call, arguments.requests)
    found = []
    for number in range(arguments.rounds):
        p50 = {
            kind: block(calls[kind], arguments.requests)
            for kind in in_turn(calls, number)
        }
        ratio = p50[first] / p50[second]
        found.append({first: p50[first], second: p50[second], "ratio": ratio})
        print(
            f"round {number + 1}: p50 {first} {1e6 * p50[first]:.0f} us, "
            f"{second} {1e6 * p50[second]:.0f} us, ratio {ratio:.3f}",
            flush=True,
        )
    return found


def main():
    arguments = parse_arguments()
    with workplace() as (stack, folder):
        model = arguments.model
        repository, tensors = model_and_request(folder, arguments)
        node = stack.enter_context(nodes.cpu_node(repository, []))
        if arguments.client == "lean":
            calls = {
                "http": lean_http(node, model, tensors),
                "grpc": lean_grpc(node, model, tensors),
            }
        else:
            import tritonclient.grpc
            import tritonclient.http

            calls = {
                "http": triton(
                    tritonclient.http, f"127.0.0.1:{node.http_port}", model,
                    tensors,
                ),
                "grpc": triton(
                    tritonclient.grpc, node.address, model, tensors
                ),
            }
        if calls["http"]() != calls["grpc"]():
            sys.exit("HTTP and gRPC give different bytes")
        rounds = take_turns(calls, arguments)
        result = {
            "benchmark": "http_cost",
            "client": arguments.client,
            "model": model,
            "items": arguments.items,
            "http_over_grpc_p50": quartiles([r["ratio"] for r in rounds]),
            "rounds": rounds,
        }
        print(f"HTTP / gRPC, p50: {spread(result['http_over_grpc_p50'], 3)}")
        write_result(arguments, result)


if __name__ == "__main__":
    main()
