#!/usr/bin/env python3
"""Compares TLS with plain connections: p50 of the same requests.

Two CPU nodes with certificates made for the run: without --link they run the same
whole model, and one of them serves gRPC with TLS; with --link they run a split
model, each with a GPU node of its own that computes on the CPU, and one pair uses
TLS between its nodes, over tcp or shm. Blocks of requests to both take turns on one
connection each, which is open before anything is timed; the ratio is formed within
a round, between the medians of its two blocks. The client sends bytes made before.
Both answers are compared first.
"""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.serving import http_cost  # noqa: E402
from bench.serving.client import quartiles, spread, workplace, write_result  # noqa: E402
from scripts.lib import nodes  # noqa: E402


def parse_arguments():
    parser = http_cost.block_parser(__doc__)
    parser.add_argument("--link", choices=("tcp", "shm"),
                        help="TLS between CPU node and GPU node over this path")
    return parser.parse_args()


def certificate(folder):
    """Paths of a certificate for 127.0.0.1 and of its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
            "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", key, "-out", cert,
        ],
        check=True, capture_output=True,
    )
    return cert, key


def link_calls(stack, repository, arguments, tensors, cert, key):
    """A call by TLS, and a plain one, through a CPU node and a GPU node each."""
    calls = {}
    for kind, flags in (
        ("tls", ("--node-tls-cert", cert, "--node-tls-key", key,
                 "--node-tls-ca", cert)),
        ("plain", ()),
    ):
        hn = stack.enter_context(nodes.gpu_node(repository, *flags))
        cn = stack.enter_context(nodes.cpu_node(
            repository, [hn.address], "--transport", arguments.link, *flags
        ))
        call = http_cost.lean_grpc(cn, arguments.model, tensors)
        nodes.wait_until(call, f"an answer over {kind} connections")
        calls[kind] = call
    return calls


def client_calls(stack, repository, arguments, tensors, cert, key):
    """The same with one CPU node each and TLS for clients."""
    import grpc

    plain = stack.enter_context(nodes.cpu_node(repository, []))
    secure = stack.enter_context(
        nodes.cpu_node(repository, [], "--tls-cert", cert, "--tls-key", key)
    )
    credentials = grpc.ssl_channel_credentials(cert.read_bytes())
    return {
        "tls": http_cost.lean_grpc(secure, arguments.model, tensors, credentials),
        "plain": http_cost.lean_grpc(plain, arguments.model, tensors),
    }


def main():
    arguments = parse_arguments()
    with workplace() as (stack, folder):
        repository, tensors = http_cost.model_and_request(
            folder, arguments, "heuristic" if arguments.link else "all-cn"
        )
        cert, key = certificate(folder)
        make_calls = link_calls if arguments.link else client_calls
        calls = make_calls(stack, repository, arguments, tensors, cert, key)
        if calls["tls"]() != calls["plain"]():
            sys.exit("the two nodes give different bytes")
        rounds = http_cost.take_turns(calls, arguments)
        result = {
            "benchmark": "tls_cost",
            "model": arguments.model,
            "items": arguments.items,
            "link": arguments.link,
            "tls_over_plain_p50": quartiles([r["ratio"] for r in rounds]),
            "rounds": rounds,
        }
        print(f"TLS / plain, p50: {spread(result['tls_over_plain_p50'], 3)}")
        write_result(arguments, result)


if __name__ == "__main__":
    main()
