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

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.serving import http_cost  # noqa: E402
from bench.serving.client import option_parser, quartiles  # noqa: E402
from scripts.lib import nodes  # noqa: E402


def parse_arguments():
    parser = option_parser(__doc__)
    parser.add_argument("--model", default="dlrm")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--items", type=int, default=33)
    parser.add_argument("--link", choices=("tcp", "shm"),
                        help="TLS between CPU node and GPU node over this path")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=300, metavar="N",
                        help="per block")
    arguments = parser.parse_args()
    if arguments.rounds < 3:
        parser.error("--rounds must be at least 3")
    return arguments


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
        hn = nodes.gpu_node(repository, *flags)
        stack.callback(hn.close)
        cn = nodes.cpu_node(
            repository, [hn.address], "--transport", arguments.link, *flags
        )
        stack.callback(cn.close)
        call = http_cost.lean_grpc(cn, arguments.model, tensors)
        nodes.wait_until(call, f"an answer over {kind} connections")
        calls[kind] = call
    return calls


def client_calls(stack, repository, arguments, tensors, cert, key):
    """The same with one CPU node each and TLS for clients."""
    import grpc

    plain = nodes.cpu_node(repository, [])
    stack.callback(plain.close)
    secure = nodes.cpu_node(repository, [], "--tls-cert", cert, "--tls-key", key)
    stack.callback(secure.close)
    credentials = grpc.ssl_channel_credentials(cert.read_bytes())
    return {
        "tls": http_cost.lean_grpc(secure, arguments.model, tensors, credentials),
        "plain": http_cost.lean_grpc(plain, arguments.model, tensors),
    }


def main():
    arguments = parse_arguments()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        repository, tensors = http_cost.model_and_request(
            folder, arguments, "heuristic" if arguments.link else "all-cn"
        )
        cert, key = certificate(folder)
        make_calls = link_calls if arguments.link else client_calls
        calls = make_calls(stack, repository, arguments, tensors, cert, key)
        if calls["tls"]() != calls["plain"]():
            sys.exit("the two nodes give different bytes")
        rounds = http_cost.take_turns(calls, arguments.rounds, arguments.requests)
        result = {
            "benchmark": "tls_cost",
            "model": arguments.model,
            "items": arguments.items,
            "link": arguments.link,
            "tls_over_plain_p50": quartiles([r["ratio"] for r in rounds]),
            "rounds": rounds,
        }
        ratio = result["tls_over_plain_p50"]
        print(
            f"TLS / plain, p50: {ratio['median']:.3f} "
            f"({ratio['q25']:.3f} to {ratio['q75']:.3f})"
        )
        if arguments.json:
            arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
