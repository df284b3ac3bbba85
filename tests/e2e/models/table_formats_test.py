"""Tables in row formats, from `refract quantize` to scores.

The oracle is PyTorch's own quantised look-up operators on the same bytes.
"""

import json
import pathlib
import shutil
import tempfile
import unittest

import torch
from safetensors.torch import load_file, save_file

from tests.e2e import support

QUANTIZED = torch.ops.quantized
ROWS, DIM, SEED = 500, 32, 7
# For scores after a sigmoid. The operators fuse a product and a sum that the
# engine rounds apart.
TOLERANCE = 2e-6

PREPACK = {
    "fused-8bit": QUANTIZED.embedding_bag_byte_prepack,
    "fused-4bit": QUANTIZED.embedding_bag_4bit_prepack,
    "fused-2bit": QUANTIZED.embedding_bag_2bit_prepack,
}
LOOK_UP = {
    "fused-8bit": QUANTIZED.embedding_bag_byte_rowwise_offsets,
    "fused-4bit": QUANTIZED.embedding_bag_4bit_rowwise_offsets,
    "fused-2bit": QUANTIZED.embedding_bag_2bit_rowwise_offsets,
}
# The same rows with their parameters in front.
SAME_BYTES = {"tbe-int4": "fused-4bit", "tbe-int2": "fused-2bit"}


class Ranker(torch.nn.Module):
    """A bag of ids and one id per item, of two tables."""

    def __init__(self):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", include_last_offset=True)
        self.one = torch.nn.Embedding(ROWS, DIM)
        self.top = torch.nn.Linear(2 * DIM, 1)

    def forward(self, ids, offsets, one):
        return self.score(self.bag(ids, offsets), self.one(one))

    def score(self, pooled, one):
        return torch.sigmoid(self.top(torch.cat([pooled, one], 1))).squeeze(1)


class TableFormats(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-formats-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        torch.manual_seed(SEED)
        cls.model = Ranker().eval()
        cls.tables = {
            f"{name}.weight": getattr(cls.model, name).weight.detach()
            * torch.logspace(-2, 0, ROWS)[:, None]
            for name in ("bag", "one")
        }
        cls.source = cls.folder / "float.safetensors"
        save_file(cls.tables, cls.source)
        cls.export()
        cls.requests = [cls.request(batch) for batch in (2, 33)]
        save_file(cls.requests[0], cls.folder / "sample.safetensors")

    @classmethod
    def export(cls):
        stand_ins = Ranker().eval()
        stand_ins.top = cls.model.top
        for module in (stand_ins.bag, stand_ins.one):
            module.weight = torch.nn.Parameter(
                torch.zeros(1).expand(ROWS, DIM), requires_grad=False
            )
        batch = torch.export.Dim("batch", min=2)
        count = torch.export.Dim("count", min=2)
        example = cls.request(4)
        program = torch.export.export(
            stand_ins,
            tuple(example[name] for name in ("ids", "offsets", "one")),
            dynamic_shapes=({0: count}, {0: batch + 1}, {0: batch}),
        )
        cls.file = cls.folder / "model.pt2"
        torch.export.save(program, cls.file)

    @classmethod
    def request(cls, batch):
        lengths = torch.randint(0, 9, (batch,))
        lengths[0] = 3
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        return {
            "ids": torch.randint(0, ROWS, (int(offsets[-1]),)),
            "offsets": offsets,
            "one": torch.randint(0, ROWS, (batch,)),
        }

    def tables_of(self, form):
        """A folder with both tables in `form`."""
        folder = self.folder / f"tables-{form}"
        folder.mkdir(exist_ok=True)
        support.refract(
            "quantize", self.source, "--format", form,
            "--out", folder / "rows.safetensors",
        )
        return folder

    def add(self, name, tables, check=True):
        return support.refract(
            "import", self.file, "--repo", self.folder / "repo", "--name", name,
            "--tables", tables, "--no-golden", "--sample", self.folder / "sample.safetensors",
            check=check,
        )

    def run_mode(self, name, mode):
        pairs = []
        for i, request in enumerate(self.requests):
            save_file(request, self.folder / f"in{i}.safetensors")
            pairs += [
                "--inputs", self.folder / f"in{i}.safetensors",
                "--outputs", self.folder / f"out{i}.safetensors",
            ]
        support.refract("run", self.folder / "repo" / name, "--mode", mode, *pairs)
        return [
            load_file(self.folder / f"out{i}.safetensors")["output_0"]
            for i in range(len(self.requests))
        ]

    def expect_scores(self, name, look_up):
        """`look_up(table, ids, offsets)` is what PyTorch gives."""
        for mode in ("whole", "split", "reference"):
            for request, scores in zip(self.requests, self.run_mode(name, mode)):
                single = torch.arange(len(request["one"]) + 1)
                with torch.no_grad():
                    wanted = self.model.score(
                        look_up("bag.weight", request["ids"], request["offsets"]),
                        look_up("one.weight", request["one"], single),
                    )
                error = (scores - wanted).abs().max().item()
                self.assertLessEqual(error, TOLERANCE, f"{name}, {mode}")

    def test_scores_are_those_of_pytorchs_quantised_operators(self):
        for form in ("fused-8bit", "fused-4bit", "fused-2bit", *SAME_BYTES):
            with self.subTest(form):
                self.add(form, self.tables_of(form))
                self.partition(self.folder / "repo" / form)
                fused = SAME_BYTES.get(form, form)
                rows = {n: PREPACK[fused](t) for n, t in self.tables.items()}

                def look_up(table, ids, offsets):
                    return LOOK_UP[fused](
                        rows[table], ids, offsets, include_last_offset=True
                    )

                self.expect_scores(form, look_up)

    def test_scores_of_int8_rows_with_fp16_parameters(self):
        # PyTorch has no operator for them: decoded from their bytes here.
        tables = self.tables_of("tbe-int8")
        self.add("int8", tables)
        self.partition(self.folder / "repo" / "int8")
        decoded = {}
        for name, rows in load_file(tables / "rows.safetensors").items():
            scale, bias = (
                rows[:, :4].contiguous().view(torch.float16).float().split(1, 1)
            )
            decoded[name] = rows[:, 4 : 4 + DIM].float() * scale + bias
        self.expect_scores("int8", self.bags_of(decoded))

    def partition(self, model):
        support.refract("partition", model, "--method", "heuristic", "--write")

    def bags_of(self, tables):
        def look_up(table, ids, offsets):
            return torch.nn.functional.embedding_bag(
                ids, tables[table], offsets, mode="sum", include_last_offset=True
            )

        return look_up

    def test_halves_of_a_float32_parameter(self):
        for form, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
            wanted = self.bags_of({n: t.to(dtype).float() for n, t in self.tables.items()})
            folder = self.folder / f"plain-{form}"
            folder.mkdir()
            save_file(
                {n: t.to(dtype) for n, t in self.tables.items()},
                folder / "half.safetensors",
            )
            for name, tables in ((f"plain-{form}", folder),
                                 (f"rows-{form}", self.tables_of(form))):
                with self.subTest(name):
                    self.add(name, tables)
                    self.partition(self.folder / "repo" / name)
                    self.expect_scores(name, wanted)

    def test_inspect_shows_format_and_bytes(self):
        self.add("shown", self.tables_of("tbe-int4"))
        model = self.folder / "repo" / "shown"
        report = self.folder / "shown.json"
        text = support.refract("inspect", model, "--json", report).stdout
        self.assertIn("tbe-int4 (32 bytes)", text)
        for table in json.loads(report.read_text())["tables"]:
            self.assertEqual(table["format"], "tbe-int4")
            self.assertEqual(table["row_bytes"], 32)  # 4 + 16, to 16 bytes
            self.assertEqual(table["bytes"], 32 * ROWS)
        # GPUs do not read it, however small it is.
        plan = support.refract(
            "partition", model, "--method", "optimal", "--hn-table-mib", "64"
        ).stdout
        self.assertIn("tables in row formats, which only CPUs read", plan)

    def test_a_changed_row_is_noticed(self):
        self.add("changed", self.tables_of("tbe-int4"))
        rows = self.folder / "repo" / "changed" / "1" / "tables" / "rows.safetensors"
        data = bytearray(rows.read_bytes())
        data[-1] ^= 1
        rows.write_bytes(data)
        done = support.refract(
            "inspect", self.folder / "repo" / "changed", check=False
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("differs from the file that was imported", done.stderr)

    def refuse(self, tensors, metadata, naming):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        path = folder / "bad.safetensors"
        save_file(tensors, path, metadata=metadata)
        done = self.add("bad", folder, check=False)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        for word in (str(path), *naming):
            self.assertIn(word, done.stderr)
        self.assertFalse((self.folder / "repo" / "bad").exists())

    def test_bad_tables_are_named(self):
        name, key = "bag.weight", "refract.rows.bag.weight"
        rows = PREPACK["fused-4bit"](self.tables[name])
        good = {"one.weight": self.tables["one.weight"]}

        def refuse(tensor, text, *naming):
            self.refuse({name: tensor, **good}, {key: text} if text else None, naming)

        refuse(rows, "fused-4bit dim=64", name, "64 elements take 36 bytes", "have 20")
        refuse(rows[:, :-1].contiguous(), "fused-4bit dim=32", name, "have 19")
        refuse(rows[:-1], "fused-4bit dim=32", name, "uint8[499, 20]", "float32[500, 32]")
        refuse(rows, "fused-4bit dim=30", name, "uint8[500, 20]")
        refuse(rows.short(), "fused-4bit dim=32", name, "int16[500, 20]", "uint8 [rows, bytes]")
        refuse(rows, None, name, "uint8[500, 20]", key)
        refuse(rows, "tbe-fp8 dim=32", name, "tbe-fp8", "not served", "exponent")
        refuse(rows, "tbe-pruned dim=32", name, "tbe-pruned", "not served")
        refuse(rows, "int4 dim=32", name, "'int4' is unknown")
        self.refuse(good, {key: "fused-4bit dim=32"}, [key, "no such tensor"])
        # Rows that are cut off at the end of the file.
        folder = self.tables_of("fused-4bit")
        cut = self.folder / "cut"
        cut.mkdir()
        data = (folder / "rows.safetensors").read_bytes()
        (cut / "rows.safetensors").write_bytes(data[:-7])
        done = self.add("bad", cut, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn(str(cut / "rows.safetensors"), done.stderr)


if __name__ == "__main__":
    unittest.main()
