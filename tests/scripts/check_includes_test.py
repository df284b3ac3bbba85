"""The layering check finds what it must find, and accepts this tree."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "check_includes.py"


def run(root):
    done = subprocess.run(
        [sys.executable, SCRIPT, str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


class CheckIncludes(unittest.TestCase):
    def check(self, path, text):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / path
            file.parent.mkdir(parents=True)
            file.write_text(text)
            return run(folder)

    def test_accepts_this_tree(self):
        code, output = run(ROOT)
        self.assertEqual(code, 0, output)

    def test_refuses_a_component_that_looks_upwards(self):
        code, output = self.check("base/a.cc", '#include "models/graph/graph.h"\n')
        self.assertEqual(code, 1)
        self.assertIn("base may not include models/graph/graph.h", output)

    def test_keeps_the_two_nodes_apart(self):
        code, output = self.check("cpu_node/a.cc", '#include "gpu_node/b.h"\n')
        self.assertEqual(code, 1)
        self.assertIn("gpu_node/b.h", output)

    def test_keeps_libtorch_in_adapters_and_away_from_protobuf(self):
        code, _ = self.check("runtime/a.cc", "#include <ATen/ATen.h>\n")
        self.assertEqual(code, 1)
        code, output = self.check(
            "models/x_torch.cc",
            '#include <ATen/ATen.h>\n#include "proto/graph.pb.h"\n',
        )
        self.assertEqual(code, 1)
        self.assertIn("in one file", output)

    def test_keeps_the_cuda_library_a_leaf(self):
        for include in ('"runtime/program.h"', '"absl/status/status.h"',
                        "<google/protobuf/message.h>"):
            code, output = self.check(
                "runtime/cuda/a.cc", f"#include {include}\n"
            )
            self.assertEqual(code, 1, include)
            self.assertIn("stands alone", output)
        code, output = self.check(
            "runtime/cuda/a.cc",
            '#include <vector>\n#include <mma.h>\n'
            '#include "runtime/cuda/program/program.h"\n',
        )
        self.assertEqual(code, 0, output)

    def test_keeps_grpc_in_the_front_end(self):
        code, _ = self.check("gpu_node/a.cc", "#include <grpcpp/grpcpp.h>\n")
        self.assertEqual(code, 1)
        code, _ = self.check(
            "cpu_node/frontend/a.cc", "#include <grpcpp/grpcpp.h>\n"
        )
        self.assertEqual(code, 0)


if __name__ == "__main__":
    unittest.main()
