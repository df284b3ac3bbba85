"""The repository that bench/serving/triton_backend.py writes for Triton: its
configuration parsed by Triton's own schema, its model.py run with a stand-in for
Triton's utilities."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

import torch

try:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "serving" / "triton_backend.py"
SPEC = importlib.util.spec_from_file_location("triton_backend", SCRIPT)
triton_backend = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(triton_backend)


class Two(torch.nn.Module):
    def forward(self, a, ids):
        return a * 2, ids + 1


class Tensor:
    """As Triton's: torch.from_dlpack() takes it."""

    def __init__(self, name, values):
        self.name, self.values = name, values

    from_dlpack = classmethod(lambda cls, name, values: cls(name, values))

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class TritonBackend(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        a, ids = torch.randn(4, 2), torch.arange(4)
        torch.jit.trace(Two(), (a, ids)).save(str(self.folder / "two.pt"))
        triton_backend.write_triton_repository(
            self.folder / "triton", "two", self.folder / "two.pt",
            [("a", "FP32", [-1, 2]), ("ids", "INT64", [-1])],
            [("x", "FP32", [-1, 2]), ("y", "INT64", [-1])], 3,
            {"batch_symbol": "s0", "ids.ids": "table=t rows=4"},
        )

    def test_triton_reads_the_configuration(self):
        text = (self.folder / "triton" / "two" / "config.pbtxt").read_text()
        config = text_format.Parse(text, model_config_pb2.ModelConfig())
        self.assertEqual(config.backend, "python")
        self.assertEqual(config.max_batch_size, 0)
        self.assertEqual([one.name for one in config.input], ["a", "ids"])
        self.assertEqual(list(config.input[0].dims), [-1, 2])
        self.assertEqual(config.input[1].data_type, model_config_pb2.TYPE_INT64)
        self.assertEqual([one.name for one in config.output], ["x", "y"])
        self.assertEqual(config.instance_group[0].count, 3)
        # The client makes the same requests for both servers.
        self.assertEqual(
            config.parameters["ids.ids"].string_value, "table=t rows=4"
        )

    def test_its_model_answers_as_pytorch_does(self):
        utilities = types.ModuleType("triton_python_backend_utils")
        utilities.Tensor = Tensor
        utilities.get_input_tensor_by_name = lambda request, name: request[name]
        utilities.InferenceResponse = lambda output_tensors: output_tensors
        sys.modules["triton_python_backend_utils"] = utilities
        self.addCleanup(sys.modules.pop, "triton_python_backend_utils")
        names = {}
        exec(triton_backend.MODEL_PY, names)  # as Triton loads it
        model = names["TritonPythonModel"]()
        config = {
            "input": [{"name": "a"}, {"name": "ids"}],
            "output": [{"name": "x"}, {"name": "y"}],
        }
        model.initialize(
            {
                "model_repository": str(self.folder / "triton" / "two"),
                "model_version": "1",
                "model_config": json.dumps(config),
            }
        )
        requests = []
        for rows in (1, 5):
            a, ids = torch.randn(rows, 2), torch.arange(rows)
            requests.append(
                {"a": Tensor("a", a), "ids": Tensor("ids", ids)}
            )
        for request, response in zip(requests, model.execute(requests)):
            x, y = response
            self.assertEqual((x.name, y.name), ("x", "y"))
            self.assertTrue(torch.equal(x.values, 2 * request["a"].values))
            self.assertTrue(torch.equal(y.values, request["ids"].values + 1))

    def test_a_server_of_pytriton_gets_the_process_of_this_python(self):
        home = self.folder / "tritonserver"
        release = "{}.{}".format(*sys.version_info)
        stub = home / "python_backend_stubs" / release / "triton_python_backend_stub"
        for file in (stub, home / "bin/tritonserver", home / "backends/python/lib.so"):
            file.parent.mkdir(parents=True)
            file.write_text(file.name)
        options = triton_backend.backend_options(home / "bin/tritonserver")
        self.assertEqual(options, ["--backend-directory", str(home / "backends")])
        beside = home / "backends" / "python" / stub.name
        self.assertEqual(beside.read_text(), stub.name)
        self.assertTrue(os.access(beside, os.X_OK))
        # Triton's own packages have it in its place.
        shutil.rmtree(home / "python_backend_stubs")
        self.assertEqual(
            triton_backend.backend_options(home / "bin/tritonserver"), []
        )

    def test_without_a_server_it_is_skipped_with_the_reason(self):
        done = subprocess.run(
            [sys.executable, str(SCRIPT), "--tritonserver", "/nowhere"],
            capture_output=True, text=True, timeout=300, check=False,
        )
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("no Triton server", done.stdout)


if __name__ == "__main__":
    unittest.main()
