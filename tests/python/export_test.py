"""refract.export: what it writes, what it refuses, and how much memory it takes."""

import pathlib
import resource
import subprocess
import sys
import tempfile
import tomllib
import unittest

import numpy
import torch
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import refract  # noqa: E402

ROWS, DIM = 300, 8


class Ranker(torch.nn.Module):
    def __init__(self, device="cpu"):
        super().__init__()
        self.user = torch.nn.Embedding(ROWS, DIM, device=device)
        self.bag = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum")
        self.top = torch.nn.Linear(DIM, 1)

    def forward(self, user, ids, offsets, features):
        x = self.user(user) + self.bag(ids, offsets) + features["scale"]
        return torch.sigmoid(self.top(x)).squeeze(1)


def sample():
    return {
        "user": torch.arange(4),
        "ids": torch.arange(9),
        "offsets": torch.tensor([0, 2, 2, 5]),
        "features": {"scale": torch.randn(4, DIM)},
    }


class Export(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "model"

    def refused(self, *words, model=None, arguments=None, error=ValueError, **options):
        with self.assertRaises(error) as caught:
            refract.export(model or Ranker().eval(), arguments or sample(), self.out, **options)
        for word in words:
            self.assertIn(word, str(caught.exception))
        if error is not FileExistsError:
            self.assertEqual(list(self.out.parent.iterdir()), [], "something was left")

    def test_tables_and_sample_are_beside_the_model(self):
        model = Ranker().eval()
        before = {name: id(value) for name, value in model.named_parameters()}
        self.assertEqual(refract.export(model, sample(), self.out), self.out)
        for name in ("user", "bag"):
            tables = load_file(self.out / "tables" / f"{name}.weight.safetensors")
            self.assertEqual(list(tables), [f"{name}.weight"])
            torch.testing.assert_close(
                tables[f"{name}.weight"], getattr(model, name).weight.detach(), rtol=0, atol=0
            )
        written = load_file(self.out / "sample.safetensors")
        self.assertEqual(set(written), {"user", "ids", "offsets", "features_scale"})
        program = torch.export.load(self.out / "model.pt2")
        self.assertEqual(program.state_dict["user.weight"].untyped_storage().nbytes(), 4)
        self.assertEqual({n: id(v) for n, v in model.named_parameters()}, before)

    def test_values_may_come_in_pieces_or_from_a_mapped_file(self):
        pieces = [torch.randn(n, DIM, dtype=torch.bfloat16) for n in (100, 1, 199)]
        mapped = numpy.memmap(self.out.parent / "bag", numpy.float32, "w+", shape=(ROWS, DIM))
        mapped[:] = numpy.random.default_rng(1).random((ROWS, DIM), numpy.float32)
        refract.export(
            Ranker("meta").eval(), sample(), self.out,
            tables={"user.weight": iter(pieces), "bag.weight": mapped},
        )
        for name, values in (
            ("user.weight", torch.cat(pieces)), ("bag.weight", torch.tensor(mapped))
        ):
            table = load_file(self.out / "tables" / f"{name}.safetensors")[name]
            self.assertEqual(table.dtype, values.dtype)
            self.assertTrue(torch.equal(table, values))

    def test_a_table_of_two_modules_has_both_names(self):
        model = Ranker("meta").eval()
        model.bag.weight = model.user.weight
        values = torch.randn(ROWS, DIM)
        refract.export(
            model, sample(), self.out, tables={"user.weight": iter(values.split(7))}
        )
        for name in ("user.weight", "bag.weight"):
            table = load_file(self.out / "tables" / f"{name}.safetensors")[name]
            self.assertTrue(torch.equal(table, values))

    def test_a_table_needs_values_that_fit(self):
        meta = Ranker("meta").eval()
        good = torch.zeros(ROWS, DIM)
        self.refused("user.weight", "no values", model=meta)
        for values, words in [
            (good[:-1], ("300 rows", "only 299")),
            (iter([good, good]), ("300 rows", "more")),
            (good[:, 1:], ("row 0", "[300, 7]")),
            (iter([good[:10], good[10:].half()]), ("row 10", "float16")),
            (good.double(), ("float64",)),
            (iter([]), ("only 0",)),
            ("user.npy", ("its values",)),
        ]:
            with self.subTest(words=words):
                self.refused("user.weight", *words, model=meta, tables={"user.weight": values})
        self.refused("no parameter 'usr.weight'", tables={"usr.weight": good})
        self.refused("top.bias", "not [rows, columns]", tables={"top.bias": good})

    def test_tables_of_other_floats_keep_their_type(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            with self.subTest(dtype):
                model = torch.nn.Sequential(torch.nn.Embedding(ROWS, DIM, dtype=dtype)).eval()
                out = self.out.with_name(str(dtype))
                refract.export(model, (torch.arange(4),), out)
                values = load_file(out / "tables" / "0.weight.safetensors")["0.weight"]
                self.assertTrue(torch.equal(values, model[0].weight))
                stand_in = torch.export.load(out / "model.pt2").state_dict["0.weight"]
                self.assertEqual(stand_in.dtype, dtype)
                with self.assertRaises(ValueError) as raised:
                    refract.export(model, (torch.arange(4),), self.out,
                                   tables={"0.weight": torch.zeros(ROWS, DIM)})
                self.assertIn("float32, not", str(raised.exception))

    def test_other_mistakes_are_named(self):
        self.refused("eval()", model=Ranker())
        self.refused("top.weight", "meta", model=_with_top_on_meta())
        fixed = torch.nn.Sequential(torch.nn.Embedding(ROWS, DIM), torch.nn.Unflatten(0, (2, 2)))
        self.refused(
            "'input'", "constant 4", "dynamic_shapes",
            model=fixed.eval(), arguments=(torch.arange(4),),
        )
        self.refused("'features_scale'", "float", arguments={**sample(), "features": {"scale": 1.0}})
        self.out.mkdir()
        (self.out / "old").touch()
        self.refused("not an empty folder", error=FileExistsError)

    def test_versions_agree(self):
        cmake = (ROOT / "CMakeLists.txt").read_text()
        self.assertIn(f"project(refract VERSION {refract.__version__} ", cmake)
        project = tomllib.loads((ROOT / "python" / "pyproject.toml").read_text())["project"]
        self.assertEqual(project["name"], "refract")

    def test_a_table_of_half_a_gibibyte_takes_little_memory(self):
        # In a process of its own: the peak of this one may be anything.
        done = subprocess.run(
            [sys.executable, __file__, "--peak", str(self.out)],
            capture_output=True, text=True, check=True, env={"OMP_NUM_THREADS": "1"},
        )
        size = (self.out / "tables" / "weight.safetensors").stat().st_size
        self.assertGreaterEqual(size, 1 << 29)
        self.assertLess(int(done.stdout), 128 << 20, "bytes that the peak grew by")


def _with_top_on_meta():
    model = Ranker().eval()
    model.top.to("meta")
    return model


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(out):
    """Prints by how much the peak grows from a small export to a large one."""
    def export(rows, folder):
        model = torch.nn.Embedding(rows, 64, device="meta").eval()
        piece = torch.zeros(1 << 12, 64)
        pieces = (piece for _ in range(rows >> 12))
        refract.export(model, (torch.arange(4),), folder, tables={"weight": pieces})

    export(1 << 12, out.with_name("small"))
    before = peak_bytes()
    export(1 << 21, out)
    print(peak_bytes() - before)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        measure(pathlib.Path(sys.argv[2]))
    else:
        unittest.main()
