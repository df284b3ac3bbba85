"""`refract quantize` against the bytes of PyTorch's and FBGEMM's operators."""

import json
import os
import pathlib
import shutil
import tempfile
import unittest

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.e2e import support

try:
    import fbgemm_gpu  # noqa: F401  (registers torch.ops.fbgemm)
except ImportError:
    fbgemm_gpu = None

QUANTIZED = torch.ops.quantized
PREPACK = {
    "fused-8bit": QUANTIZED.embedding_bag_byte_prepack,
    "fused-4bit": QUANTIZED.embedding_bag_4bit_prepack,
    "fused-2bit": QUANTIZED.embedding_bag_2bit_prepack,
}


class Quantize(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-rows-"))
        self.addCleanup(shutil.rmtree, self.folder)
        seed = torch.seed() % 2**32
        print(f"seed {seed}")
        torch.manual_seed(seed)
        self.table = torch.randn(1000, 64) * torch.logspace(-4, 1, 1000)[:, None]
        self.table[17] = 0.25  # a row without range
        self.source = self.folder / "table.safetensors"
        save_file({"t.weight": self.table}, self.source)

    def quantize(self, form, *more):
        out = self.folder / f"{form}.safetensors"
        report = self.folder / f"{form}.json"
        done = support.refract(
            "quantize", self.source, "--format", form, "--out", out,
            "--json", report, *more,
        )
        self.assertIn("error: max", done.stdout)
        (table,) = json.loads(report.read_text())
        self.assertLessEqual(table["max_error_over_bound"], 1)
        with safe_open(out, "pt") as file:
            text = file.metadata()["refract.rows.t.weight"]
        self.assertEqual(text, f"{form} dim=64")
        return load_file(out)["t.weight"], table

    def test_fused_rows_are_pytorchs(self):
        for form, prepack in PREPACK.items():
            with self.subTest(form):
                rows, report = self.quantize(form)
                self.assertTrue(torch.equal(rows, prepack(self.table)))
                # The errors, computed from what PyTorch unpacks.
                name = prepack.__name__.replace("prepack", "unpack")
                back = getattr(QUANTIZED, name)(rows)
                error = (back - self.table).abs()
                self.assertAlmostEqual(
                    report["max_error"], error.max().item(), delta=1e-5
                )
                self.assertAlmostEqual(
                    report["rms_error"], error.square().mean().sqrt().item(),
                    delta=1e-5,
                )

    @unittest.skipIf(fbgemm_gpu is None, "no fbgemm_gpu in this Python")
    def test_inference_rows_are_fbgemms(self):
        for bits in (8, 4, 2):
            with self.subTest(bits):
                # Fused rows with fp16 parameters; TorchRec moves those to the
                # front and pads rows to 16 bytes.
                fused = torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(
                    self.table, bits
                )
                payload = 64 * bits // 8
                first = torch.cat([fused[:, payload:], fused[:, :payload]], 1)
                padded = torch.nn.functional.pad(first, (0, -first.shape[1] % 16))
                rows, _ = self.quantize(f"tbe-int{bits}")
                self.assertTrue(torch.equal(rows, padded))

    def test_plain_rows_are_casts(self):
        for form, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16),
                            ("fp32", torch.float32)):
            with self.subTest(form):
                rows, _ = self.quantize(form)
                self.assertTrue(
                    torch.equal(rows, self.table.to(dtype).view(torch.uint8))
                )

    def test_half_tables(self):
        half = self.table.to(torch.float16)
        save_file({"t.weight": half}, self.source)
        rows, _ = self.quantize("fused-4bit")
        self.assertTrue(
            torch.equal(rows, QUANTIZED.embedding_bag_4bit_prepack(half.float()))
        )

    def test_ids_of_rows_go_with_their_table(self):
        ids = torch.randint(-2**62, 2**62, (5,))
        save_file({"a": torch.ones(5, 3), "b": self.table, "a.ids": ids}, self.source)
        out = self.folder / "out.safetensors"
        for more, names in ((), ["a", "a.ids", "b"]), (("--tensor", "a"), ["a", "a.ids"]):
            support.refract(
                "quantize", self.source, "--format", "fused-8bit", "--out", out, *more)
            written = load_file(out)
            self.assertEqual(sorted(written), names)
            self.assertTrue(torch.equal(written["a.ids"], ids))

    def refuse(self, *arguments, naming):
        out = self.folder / "out.safetensors"
        done = support.refract(
            "quantize", *arguments, "--out", out, check=False
        )
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        for word in naming:
            self.assertIn(str(word), done.stderr)
        self.assertEqual(list(self.folder.glob("out*")), [])

    def test_bad_input_is_named(self):
        source = self.source
        self.refuse(source, "--format", "tbe-fp8", naming=["tbe-fp8", "exponent"])
        self.refuse(source, "--format", "int3", naming=["int3", "fused-2bit"])
        self.refuse(
            source, "--format", "fp16", "--tensor", "u", naming=[source, "tensor u"]
        )
        self.refuse(
            source, "--format", "fp16", "--row-alignment", "24", naming=["alignment 24"]
        )
        self.refuse(
            self.folder / "absent", "--format", "fp16", naming=["absent"]
        )
        self.table[5, 3] = float("nan")
        save_file({"t.weight": self.table, "ids": torch.arange(3)}, source)
        self.refuse(source, "--format", "fp16", naming=[source, "ids", "int64"])
        self.refuse(
            source, "--format", "tbe-int8", "--tensor", "t.weight",
            naming=[source, "t.weight", "row 5", "column 3", "nan"],
        )
        save_file({"t.weight": torch.zeros(3, 7)}, source)
        self.refuse(
            source, "--format", "fused-4bit", naming=["t.weight", "7 elements"]
        )
        save_file({"t.weight": torch.zeros(3, 8)}, source)
        rows = self.folder / "rows.safetensors"
        support.refract("quantize", source, "--format", "tbe-int8", "--out", rows)
        self.refuse(
            rows, "--format", "tbe-int4",
            naming=[rows, "already holds rows of tbe-int8 dim=8"],
        )

    def test_a_pipe_as_out_is_refused(self):
        # A rename onto a device such as /dev/null would remove it.
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        done = support.refract(
            "quantize", self.source, "--format", "fp16", "--out", pipe, check=False
        )
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("pipe is no regular file", done.stderr)
        self.assertTrue(pipe.is_fifo())


if __name__ == "__main__":
    unittest.main()
