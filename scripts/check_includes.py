#!/usr/bin/env python3
"""Fails when a component includes a header of a component that it may not use.

A shared include root cannot enforce the layering, so this reads every #include
of the tree and compares it with ALLOWED, the table of docs/architecture.md.
Also checks that no file includes both LibTorch and Protobuf, and that
third-party headers are included only in their folders.
"""

import argparse
import pathlib
import re
import sys

# component -> components whose headers it may include. A file belongs to the
# longest component that its path begins with.
ALLOWED = {
    "base": {"base"},
    "proto": {"proto"},
    "models": {"models", "proto", "base"},
    # LibTorch's operators, called on the request path and by these importers.
    "runtime/torch": {"runtime/torch", "models", "base"},
    "models/shapes": {"models/shapes", "runtime/torch", "models", "base"},
    "models/torchscript": {
        "models/torchscript", "models/shapes", "runtime/torch", "models", "base",
    },
    # Pure: values in, a plan out.
    "partitioner": {"partitioner", "models", "proto", "base"},
    # Pure: nodes and instances in, decisions out. Its topology and fabric rooms
    # read this machine and label files.
    "placement": {"placement", "scheduling", "base"},
    # Daemons: what the topology says, for the transport.
    "placement/binding": {"placement/binding", "placement", "transport", "base"},
    "runtime": {"runtime", "runtime/torch", "models", "proto", "base"},
    "transport": {"transport", "proto", "base"},
    "scheduling": {"scheduling"},
    "metrics": {"metrics", "base"},
    "tracing": {"tracing", "metrics", "proto", "base"},
    "cpu_node": {
        "cpu_node", "scheduling", "metrics", "tracing", "placement", "placement/binding", "runtime",
        "runtime/torch", "transport", "models", "models/shapes", "proto", "base",
    },
    "gpu_node": {
        "gpu_node", "scheduling", "metrics", "placement", "placement/binding", "runtime",
        "runtime/torch", "transport", "models", "proto", "base",
    },
}
# Rooms of the partitioner that execute models or start nodes, and the reports.
PLANNING = {
    "partitioner/" + room
    for room in ("conditions", "wire", "measure", "verify", "report")
}
for room in PLANNING:
    ALLOWED[room] = PLANNING | {
        "partitioner", "runtime", "transport", "tools/loadgen", "models", "proto",
        "base",
    }
ALLOWED["partitioner/measure"].add("models/shapes")
ALLOWED["tools/loadgen"] = {"tools/loadgen", "runtime", "models", "proto", "base"}
EVERYTHING = set(ALLOWED)
ALLOWED["tools"] = EVERYTHING | {"tools"}
ALLOWED["tests"] = EVERYTHING | {"tools", "tests", "bench"}
ALLOWED["bench"] = EVERYTHING | {"tools", "bench"}

# Third-party prefixes -> path prefixes whose files may include them.
THIRD_PARTY = {
    r"(torch|ATen|c10|caffe2)/": (r".*_torch(_test)?\.(cc|h)$",),
    r"(grpcpp|grpc)/": (
        r"(cpu_node/frontend|tools|tests|bench)/.*",
        r"partitioner/verify/node_pair\.cc$",
        r"cpu_node/main\.cc$",
    ),
    r"infiniband/|rdma/": (
        r"(transport/verbs|tests|bench)/.*",
    ),
    r"hwloc": (r"placement/topology/hwloc_source\.cc$",),
    r"cuda|cublas|mma\.h": (r"(runtime/cuda|tests|bench)/.*",),
    r"nlohmann/": (
        r"(models|tools|partitioner|placement|cpu_node|gpu_node|tracing)/.*\.cc$",
        # Forward declarations alone.
        r"tools/(bench_json|json_output|profile/profile_report|place/placement_options|simulate/simulate|status/fleet)\.h$",
        r"partitioner/report/split_report\.h$",
        r"base/(json\.(h|cc)|log/log_writer\.cc)$",
        # Held by value.
        r"tools/run/run_report\.h$",
        # Read by .cc files of placement alone.
        r"placement/(topology/json_fields|topology/json_text|report/plan_json|fabric/kubernetes_node|extender/objects)\.h$",
        r"(tests|bench)/.*",
    ),
    r"CLI/": (
        r"tools/.*_(command|options)\.cc$",
        r"tools/(command(_line)?|json_output)\.cc$",
        r"base/log/log_flags\.h$",
        r"base/command_line/.*",
        r"base/process/(model_control_flags|port_or_off|request_memory_flag)\.h$",
        r"base/tls/node_tls_flags\.h$",
        r"metrics/flags\.h$",
        r"(cpu_node|gpu_node|tests|bench)/.*",
    ),
    r"gtest/|gmock/": (r"tests/.*",),
    r"ares(_nameser)?\.h": (r"cpu_node/discovery/dns_resolver\.cc$",),
    r"openssl/": (
        r"base/sha256\.cc$",
        r"base/tls/.*\.cc$",
        r"cpu_node/security/.*\.cc$",
        r"transport/loop/tls_stream\.cc$",
        r"tests/transport/testing/certificates\.h$",
    ),
    r"prometheus/": (r"metrics/exposition\.cc$",),
    r"boost/": (
        r"tests/partitioner/cut/max_flow_test\.cc$",
        r"metrics/(client|server)\.cc$",
        r"cpu_node/http/(connection\.(cc|h)|server\.cc|stream\.h)$",
        r"tools/loadgen/targets/http_.*\.cc$",
    ),
}
# Folders that stand alone: their files include each other and headers of the
# system or of the CUDA toolkit.
LEAVES = ("runtime/cuda/",)
# Except for headers that include nothing of ours themselves.
SHARED_WITH_LEAVES = {"models/operators/element_code.h"}
COMPONENTS = sorted(ALLOWED, key=len, reverse=True)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.M)


def component_of(name):
    """The component that a path belongs to, or None."""
    for component in COMPONENTS:
        if name.startswith(component + "/"):
            return component
    return None


def problems(root):
    for path in sorted(root.rglob("*")):
        if path.suffix not in {".h", ".cc", ".cu", ".cuh"}:
            continue
        rel = path.relative_to(root)
        component = component_of(str(rel))
        if component is None:
            continue
        includes = INCLUDE.findall(path.read_text())
        # The last header of each kind, to name both in the message.
        torch = protobuf = None
        for leaf in LEAVES:
            for bracket, name in includes:
                if (
                    str(rel).startswith(leaf)
                    and not name.startswith(leaf)
                    and name not in SHARED_WITH_LEAVES
                    and (bracket == '"' or "/" in name)
                ):
                    yield f"{rel}: {leaf} stands alone, without {name}"
        if str(rel) in SHARED_WITH_LEAVES and any(b == '"' for b, _ in includes):
            yield f"{rel}: leaves share it, so it may include nothing of ours"
        for _, name in includes:
            included = component_of(name)
            if included and included not in ALLOWED[component]:
                yield f"{rel}: {component} may not include {name}"
            if re.match(r"(torch|ATen|c10)/", name):
                torch = name
            if name.endswith(".pb.h") or name.startswith("google/protobuf"):
                protobuf = name
            for pattern, places in THIRD_PARTY.items():
                if re.match(pattern, name) and not any(
                    re.match(place, str(rel)) for place in places
                ):
                    yield f"{rel}: {name} does not belong here"
        if torch and protobuf:
            yield f"{rel}: {torch} and {protobuf} in one file"
        if path.suffix == ".h" and not any(
            "#ifndef REFRACT_" in line or "#pragma once" in line
            for line in path.read_text().splitlines()[:40]
        ):
            yield f"{rel}: no include guard"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "root",
        nargs="?",
        type=pathlib.Path,
        default=pathlib.Path(__file__).resolve().parent.parent,
        help="root of the tree (default: this checkout)",
    )
    root = parser.parse_args().root
    found = [
        line
        for line in problems(root)
        if not line.startswith(("build/", ".venv/"))
    ]
    for line in found:
        print(line)
    print(f"{len(found)} include problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
