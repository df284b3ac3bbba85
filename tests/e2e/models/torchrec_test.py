"""TorchRec's models: its inference form (fx trace, torch.jit.script,
torch.jit.freeze), float tables and tables of int8, and torch.export's.

What is jagged runs on the CN, the dense part on the HN; in one process and over
real nodes. Jagged tensors as arguments, and requests that share executions.
"""

import concurrent.futures
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
from typing import Dict

import torch
from safetensors.torch import load_file
from torch import nn

from models.zoo import safetensors_io
from tests.e2e import support
from tests.e2e.serving.batching_test import pulses, summary

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
# Clients of each model at the same time, and requests of each client.
CLIENTS = 6
REQUESTS = 30


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
    lengths[0] = 1  # no id in all is a test of its own
    return {
        "dense": torch.randn(batch, 4, generator=generator),
        "values": torch.randint(ROWS, (int(lengths.sum()),), generator=generator),
        "lengths": lengths,
    }


if not MISSING:

    class Keyed(Dlrm):
        """The jagged features as an argument."""

        def forward(self, dense: torch.Tensor, Features: torchrec.KeyedJaggedTensor):
            pooled = self.tables(Features).values().view(-1, 3, DIM)
            x = self.bottom(dense)
            both = torch.cat([x.unsqueeze(1), pooled], 1)
            dots = torch.bmm(both, both.transpose(1, 2)).flatten(1)
            return torch.sigmoid(self.top(torch.cat([both.flatten(1), dots], 1)))

    class Jagged(nn.Module):
        """A bag per row as an argument, and others by name."""

        def __init__(self):
            super().__init__()
            self.bags = nn.EmbeddingBag(ROWS, DIM, mode="sum", include_last_offset=True)
            self.top = nn.Linear(DIM, 1)

        def forward(
            self, one: torchrec.JaggedTensor, more: Dict[str, torchrec.JaggedTensor]
        ):
            user = more["user"]
            item = more["item"]
            x = self.bags(one.values(), one.offsets())
            y = self.bags(user.values(), user.offsets())
            z = self.bags(item.values(), item.offsets())
            return self.top(x + torch.relu(y * z))


def sample_of(tensors):
    """The tensors for bags of lengths of which no two sums are equal, nor one the
    number of bags: import tells sizes apart by their being different."""
    more = {}
    for place, name in enumerate(name for name in tensors if name.endswith("__lengths")):
        lengths = torch.arange(tensors[name].numel()) % 3
        lengths[0] += 2 + place
        values = name.replace("lengths", "values")
        more[name] = lengths
        more[values] = torch.arange(int(lengths.sum())) % ROWS
    return {**tensors, **more}


def keyed_request(batch, generator):
    tensors = request(batch, generator)
    return {
        "dense": tensors["dense"],
        "Features__values": tensors["values"],
        "Features__lengths": tensors["lengths"],
    }


def jagged_request(batch, generator):
    tensors = {}
    for name in ("one", "more_user", "more_item"):
        lengths = torch.randint(4, (batch,), generator=generator)
        lengths[-1] = 2
        tensors[f"{name}__values"] = torch.randint(
            ROWS, (int(lengths.sum()),), generator=generator
        )
        tensors[f"{name}__lengths"] = lengths
    return tensors


def keyed_arguments(tensors):
    return tensors["dense"], torchrec.KeyedJaggedTensor(
        list(FEATURES), tensors["Features__values"], lengths=tensors["Features__lengths"]
    )


def jagged_arguments(tensors):
    def one(name):
        return torchrec.JaggedTensor(
            tensors[f"{name}__values"], lengths=tensors[f"{name}__lengths"]
        )

    return one("one"), {"user": one("more_user"), "item": one("more_item")}


def check_in_process(model, cases):
    """Runs an imported model whole and split. cases: (batch, tensors, answer)"""
    for mode in ("whole", "split"):
        pairs, outputs = [], []
        for batch, tensors, _ in cases:
            path = model.parent.parent / f"{model.name}-{batch}.safetensors"
            safetensors_io.write(path, tensors)
            outputs.append(f"{path}.{mode}")
            pairs += ["--inputs", path, "--outputs", outputs[-1]]
        support.refract("run", model, "--mode", mode, *pairs, *LIBRARIES)
        for (batch, _, wanted), output in zip(cases, outputs):
            (scores,) = load_file(output).values()
            torch.testing.assert_close(
                scores,
                wanted,
                msg=lambda text: f"{model.name}, {mode}, {batch}: {text}",
                **TOLERANCE,
            )


@unittest.skipIf(MISSING, MISSING)
class Arguments(unittest.TestCase):
    """Objects of TorchRec's classes as arguments of forward()."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-torchrec-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.repository = cls.folder / "repo"
        seed = int(os.environ.get("REFRACT_TEST_SEED", random.randrange(2**31)))
        print(f"seed {seed} (repeat with REFRACT_TEST_SEED)")
        cls.generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        keyed = Keyed().eval()
        jagged = Jagged().eval()
        # name: module, request, arguments made of it
        cls.models = {
            "keyed": (keyed, keyed_request, keyed_arguments),
            "exported": (keyed, keyed_request, keyed_arguments),
            "jagged": (jagged, jagged_request, jagged_arguments),
        }
        for name, (module, make, arguments) in cls.models.items():
            sample = sample_of(make(SAMPLE, cls.generator))
            path = cls.folder / f"{name}.sample.safetensors"
            safetensors_io.write(path, sample)
            file = cls.folder / f"{name}.{'pt2' if name == 'exported' else 'pt'}"
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                if name == "exported":
                    cls.export(module, arguments(sample), file)
                else:
                    script = symbolic_trace(module) if name == "keyed" else module
                    frozen = torch.jit.freeze(torch.jit.script(script))
                    torch.jit.save(frozen, str(file))
            keys = ["--keys", f"Features={','.join(FEATURES)}"]
            support.refract(
                "import", file, "--repo", cls.repository, "--name", name,
                "--no-golden", "--sample", path, *LIBRARIES, *(keys if name == "keyed" else []),
            )
            support.refract("partition", cls.repository / name, "--method", "heuristic", "--write")

    @staticmethod
    def export(module, arguments, file):
        any_size = {0: torch.export.Dim.DYNAMIC}
        logging.disable(logging.WARNING)
        try:
            program = torch.export.export(
                module, arguments,
                dynamic_shapes=(any_size, [any_size, None, any_size, None, None, None]),
            )
            torch.export.save(program, file)
        finally:
            logging.disable(logging.NOTSET)

    def cases(self, name, batches=BATCHES):
        """(batch, tensors, the module's own answer)"""
        module, make, arguments = self.models[name]
        for batch in batches:
            tensors = make(batch, self.generator)
            with torch.no_grad():
                yield batch, tensors, module(*arguments(tensors))

    def test_in_process(self):
        for name in self.models:
            check_in_process(self.repository / name, list(self.cases(name)))

    def test_one_id_in_all_or_none(self):
        for name in ("keyed", "exported"):
            module, _, arguments = self.models[name]
            for ids in (1, 0):
                cases = []
                for batch in BATCHES:
                    lengths = torch.zeros(len(FEATURES) * batch, dtype=torch.int64)
                    lengths[batch] = ids
                    tensors = {
                        "dense": torch.randn(batch, 4, generator=self.generator),
                        "Features__values": torch.arange(ids) + 3,
                        "Features__lengths": lengths,
                    }
                    with torch.no_grad():
                        cases.append((batch, tensors, module(*arguments(tensors))))
                check_in_process(self.repository / name, cases)

    def test_missing_keys_and_parts_are_named(self):
        def refusal(model, sample, *more):
            done = support.refract(
                "import", self.folder / f"{model}.{'pt2' if model == 'exported' else 'pt'}",
                "--repo", self.folder / "refused", "--name", "m", "--no-golden", "--sample", sample,
                *LIBRARIES, *more, check=False,
            )
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            return done.stderr

        sample = self.folder / "keyed.sample.safetensors"
        self.assertIn("--keys Features=KEY,KEY,...", refusal("keyed", sample))
        self.assertIn(
            '--keys names the argument "features", which',
            refusal("keyed", sample, "--keys", "Features=user,item,context",
                    "--keys", "features=user"),
        )
        for text in ("Features", "Features=", "Features=user,,item", "=user"):
            self.assertIn("wanted ARGUMENT=KEY", refusal("keyed", sample, "--keys", text))
        self.assertIn(
            "Features is given twice",
            refusal("keyed", sample, "--keys", "Features=user", "--keys", "Features=item"),
        )
        self.assertIn(
            "an export has its keys",
            refusal("exported", sample, "--keys", "Features=user,item,context"),
        )
        tensors = keyed_request(SAMPLE, self.generator)
        del tensors["Features__values"]
        partial = self.folder / "partial.safetensors"
        safetensors_io.write(partial, tensors)
        self.assertIn(
            "the example request (--sample FILE) has no Features__values",
            refusal("keyed", partial, "--keys", "Features=user,item,context"),
        )

    def test_rows_of_the_dense_part_are_known(self):
        for name in ("keyed", "exported"):
            out = support.refract("inspect", self.repository / name, *LIBRARIES).stdout
            self.assertIn("rows on the HN: requests may be split and merged", out)
        # A size that the export knows by a name of its own.
        self.assertRegex(out, r"Features__lengths +int64 +\[3\*\w+\]")

    def test_requests_of_many_clients_share_executions(self):
        try:
            import tritonclient.grpc as triton

            from tests.e2e.kserve_requests import infer_inputs
        except ImportError as error:
            self.skipTest(f"tritonclient[grpc] is missing: {error}")
        hn = support.gpu_node(self.repository, "--batching-window-us", 20000)
        self.addCleanup(hn.close)
        cn = support.cpu_node(self.repository, [hn.address], *LIBRARIES)
        self.addCleanup(cn.close)
        with triton.InferenceServerClient(cn.address) as client:
            support.wait_until(client.is_server_ready, "the CN is ready")
        cases = {
            name: list(self.cases(name, (1, 2, 3, 7))) for name in ("keyed", "exported")
        }

        def one(name, client_index):
            with triton.InferenceServerClient(cn.address) as client:
                for i in range(REQUESTS):
                    own = cases[name]
                    batch, tensors, wanted = own[(client_index + i) % len(own)]
                    answer = client.infer(name, infer_inputs(tensors))
                    scores = torch.from_numpy(answer.as_numpy("output_0").copy())
                    torch.testing.assert_close(
                        scores, wanted, msg=lambda text: f"{name}, {batch}: {text}",
                        **TOLERANCE,
                    )

        with concurrent.futures.ThreadPoolExecutor(2 * CLIENTS) as pool, pulses(hn):
            running = [
                pool.submit(one, name, i) for name in cases for i in range(CLIENTS)
            ]
            for done in running:
                done.result()
        self.assertEqual(hn.stop(), 0, hn.output())
        for name in cases:
            counts = summary(hn, name)
            self.assertEqual(counts["failed"], 0, counts)
            self.assertEqual(counts["succeeded"], CLIENTS * REQUESTS, counts)
            self.assertGreater(counts["merged"], 0, counts)


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
                "--no-golden", "--sample", sample, *LIBRARIES,
            )
            support.refract(
                "partition", cls.repository / name, "--method", "heuristic",
                "--write",
            )

    def cases(self, name):
        """(batch, tensors, the module's own answer)"""
        for batch in BATCHES:
            tensors = request(batch, self.generator)
            with torch.no_grad():
                yield batch, tensors, self.models[name](**tensors)

    def check_in_process(self, name):
        check_in_process(self.repository / name, list(self.cases(name)))

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

            from tests.e2e.kserve_requests import infer_inputs
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
        for name in self.models:
            for batch, tensors, wanted in self.cases(name):
                answer = client.infer(name, infer_inputs(tensors))
                scores = torch.from_numpy(answer.as_numpy("output_0").copy())
                torch.testing.assert_close(
                    scores, wanted, msg=lambda text: f"{name}, {batch}: {text}",
                    **TOLERANCE,
                )


if __name__ == "__main__":
    unittest.main()
