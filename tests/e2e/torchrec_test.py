"""TorchRec's inference form: fx trace, torch.jit.script, torch.jit.freeze.

Its jagged tensors become a region on the CN, its dense part runs on the HN;
float tables and tables of int8, in one process and over real nodes.
"""

import contextlib
import io
import logging
import os
import pathlib
import random
import shutil
import tempfile
import unittest
import warnings

import torch
from safetensors.torch import load_file
from torch import nn

from models.zoo import safetensors_io
from tests.e2e import support

MISSING = ""
try:
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        import fbgemm_gpu
        import torchrec
        from torchrec.fx import symbolic_trace
        from torchrec.inference.modules import quantize_embeddings
except ImportError as error:
    MISSING = f"torchrec and fbgemm-gpu-cpu are missing: {error}"
finally:
    logging.disable(logging.NOTSET)

LIBRARIES = [
    argument
    for name in ("py", "tbe_inference", "tbe_training_forward")
    for argument in (
        "--op-library",
        pathlib.Path(fbgemm_gpu.__file__).parent / f"fbgemm_gpu_{name}.so",
    )
] if not MISSING else []
FEATURES = ("user", "item", "context")
ROWS = 50
DIM = 8
SAMPLE = 5
BATCHES = (1, 2, 33, 256)
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


class Dlrm(nn.Module):
    """A DLRM whose jagged features come as plain tensors."""

    def __init__(self):
        super().__init__()
        self.tables = torchrec.EmbeddingBagCollection(
            device=torch.device("cpu"),
            tables=[
                torchrec.EmbeddingBagConfig(
                    name=f"table_{name}",
                    embedding_dim=DIM,
                    num_embeddings=ROWS,
                    feature_names=[name],
                )
                for name in FEATURES
            ],
        )
        self.bottom = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, DIM))
        self.top = nn.Sequential(nn.Linear(4 * DIM + 16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor):
        features = torchrec.KeyedJaggedTensor(
            keys=["user", "item", "context"], values=values, lengths=lengths
        )
        pooled = self.tables(features).values().view(-1, 3, DIM)
        x = self.bottom(dense)
        both = torch.cat([x.unsqueeze(1), pooled], 1)
        dots = torch.bmm(both, both.transpose(1, 2)).flatten(1)
        return torch.sigmoid(self.top(torch.cat([both.flatten(1), dots], 1)))


def request(batch, generator):
    """Lengths lie feature by feature, some bags are empty."""
    lengths = torch.randint(4, (len(FEATURES) * batch,), generator=generator)
    lengths[0] = 1
    return {
        "dense": torch.randn(batch, 4, generator=generator),
        "values": torch.randint(ROWS, (int(lengths.sum()),), generator=generator),
        "lengths": lengths,
    }


@unittest.skipIf(MISSING, MISSING)
class TorchRec(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-torchrec-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.repository = cls.folder / "repo"
        seed = int(os.environ.get("REFRACT_TEST_SEED", random.randrange(2**31)))
        print(f"seed {seed} (repeat with REFRACT_TEST_SEED)")
        cls.generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        cls.models = {}
        for name in ("float32", "int8"):
            module = Dlrm().eval()
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                if name == "int8":
                    module = quantize_embeddings(module, dtype=torch.int8, inplace=True)
                scripted = torch.jit.freeze(torch.jit.script(symbolic_trace(module)))
            cls.models[name] = module
            file = cls.folder / f"{name}.pt"
            torch.jit.save(scripted, str(file))
            sample = cls.folder / "sample.safetensors"
            safetensors_io.write(sample, request(SAMPLE, cls.generator))
            support.refract(
                "import", file, "--repo", cls.repository, "--name", name,
                "--sample", sample, *LIBRARIES,
            )
            support.refract(
                "partition", cls.repository / name, "--method", "heuristic"
            )

    def cases(self, name):
        """(batch, tensors, the module's own answer)"""
        for batch in BATCHES:
            tensors = request(batch, self.generator)
            with torch.no_grad():
                yield batch, tensors, self.models[name](**tensors)

    def check_in_process(self, name):
        cases = list(self.cases(name))
        for mode in ("whole", "split"):
            pairs, outputs = [], []
            for batch, tensors, _ in cases:
                path = self.folder / f"{name}-{batch}.safetensors"
                safetensors_io.write(path, tensors)
                outputs.append(f"{path}.{mode}")
                pairs += ["--inputs", path, "--outputs", outputs[-1]]
            support.refract(
                "run", self.repository / name, "--mode", mode, *pairs, *LIBRARIES
            )
            for (batch, _, wanted), output in zip(cases, outputs):
                (scores,) = load_file(output).values()
                torch.testing.assert_close(
                    scores, wanted, msg=lambda text: f"{mode}, {batch}: {text}",
                    **TOLERANCE,
                )

    def test_float_tables(self):
        self.check_in_process("float32")

    def test_int8_tables(self):
        self.check_in_process("int8")

    def test_dense_part_is_on_the_hn(self):
        for name in self.models:
            out = support.refract("inspect", self.repository / name).stdout
            facts = self.folder / "facts.json"
            support.refract(
                "partition", self.repository / name, "--method", "heuristic",
                "--json", facts,
            )
            self.assertIn("refract.script.default", out)
            text = facts.read_text()
            self.assertIn("aten.linear.default", text)
            plan = support.refract("inspect", self.repository / name).stdout
            self.assertRegex(plan, r"HN +[1-9][0-9]* operators")

    def test_missing_library_names_operator_and_flag(self):
        path = self.folder / "request.safetensors"
        safetensors_io.write(path, request(2, self.generator))
        done = support.refract(
            "run", self.repository / "int8", "--inputs", path,
            "--outputs", f"{path}.out", check=False,
        )
        self.assertEqual(done.returncode, 2)
        for text in ("fbgemm::", "fbgemm_gpu_py.so", "--op-library"):
            self.assertIn(text, done.stderr)

    def test_over_nodes(self):
        try:
            import tritonclient.grpc as triton
        except ImportError as error:
            self.skipTest(f"tritonclient[grpc] is missing: {error}")
        # The HN has none of fbgemm's operators, and no need of them.
        hn = support.gpu_node(self.repository)
        self.addCleanup(hn.close)
        cn = support.cpu_node(self.repository, [hn.address], *LIBRARIES)
        self.addCleanup(cn.close)
        client = triton.InferenceServerClient(cn.address)
        self.addCleanup(client.close)
        support.wait_until(client.is_server_ready, "the CN is ready")
        types = {torch.float32: "FP32", torch.int64: "INT64"}
        for name in self.models:
            for batch, tensors, wanted in self.cases(name):
                inputs = []
                for key, tensor in tensors.items():
                    item = triton.InferInput(key, list(tensor.shape), types[tensor.dtype])
                    item.set_data_from_numpy(tensor.numpy())
                    inputs.append(item)
                answer = client.infer(name, inputs)
                scores = torch.from_numpy(answer.as_numpy("output_0").copy())
                torch.testing.assert_close(
                    scores, wanted, msg=lambda text: f"{name}, {batch}: {text}",
                    **TOLERANCE,
                )


if __name__ == "__main__":
    unittest.main()
