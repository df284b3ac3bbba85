"""Row counts, files, inputs and the command lines that write them."""

import json
import re
import unittest

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from models.zoo import build, cli, export, inputs, rows, safetensors_io
from tests.models.zoo.support import SEED, command, exported, folder


class RowsTest(unittest.TestCase):
    PUBLISHED = {"a": 1000, "b": 50, "c": 3}

    def test_scaling(self):
        for options, wanted in [
            ({}, [1000, 50, 3]),
            ({"scale": 0.1}, [100, 5, 3]),
            ({"scale": 0.0101}, [11, 4, 3]),
            ({"scale": 0.01, "min_rows": 20}, [20, 20, 3]),
            ({"scale": 0.5, "max_rows": 100}, [100, 25, 3]),
            ({"scale": 1.0, "max_rows": 2, "min_rows": 2}, [2, 2, 2]),
        ]:
            with self.subTest(**options):
                scaled = rows.scale_rows(self.PUBLISHED, **options)
                self.assertEqual(list(scaled.values()), wanted)

    def test_target_size_is_met_to_one_row_per_field(self):
        for name, model in build.MODELS.items():
            for gib in (0.25, 1, 4):
                with self.subTest(model=name, gib=gib):
                    chosen = build.choose_rows(name, tables_gib=gib)
                    widths = model.presets["default"]
                    built = model(chosen, **widths)
                    missing = gib * rows.GIB - export.table_bytes(built)
                    slack = 4 * model.row_floats(widths) * len(chosen)
                    self.assertGreaterEqual(missing, 0)
                    self.assertLessEqual(missing, slack)

    def test_criteo_fields_are_those_of_mlperf(self):
        self.assertEqual(sum(rows.CRITEO_FIELDS.values()), 204_184_588)
        self.assertEqual(len(rows.CRITEO_FIELDS), 26)

    def test_impossible_sizes_are_refused(self):
        for options in (
            {"tables_gib": 200},
            {"tables_gib": 1e-9},
            {"tables_gib": 1, "max_rows": 10},
            {"tables_gib": 1, "rows_scale": 0.5},
            {"max_rows": 2},
        ):
            with self.subTest(**options), self.assertRaises(cli.InputError):
                build.choose_rows("dlrm", **options)


class SafetensorsTest(unittest.TestCase):
    def test_tables_are_read_by_the_official_library(self):
        for name in build.MODELS:
            model = exported(name)
            for table in model.json["tables"]:
                values = load_file(model.out / table["file"])
                self.assertEqual(list(values), [table["name"]])
                values = values[table["name"]]
                self.assertEqual(
                    values.shape, (table["rows"], table["dim"])
                )
                eager = model.eager.table_modules()[table["name"]].weight
                self.assertTrue(torch.equal(values, eager))

    def test_data_begins_at_a_multiple_of_64(self):
        for length in range(1, 70):
            path = folder() / "aligned.safetensors"
            safetensors_io.write(path, {"x" * length: torch.arange(3)})
            with open(path, "rb") as file:
                size = int.from_bytes(file.read(8), "little")
            self.assertEqual((8 + size) % 64, 0)
            self.assertTrue(
                torch.equal(load_file(path)["x" * length], torch.arange(3))
            )

    def test_every_dtype_and_empty_tensors_survive(self):
        tensors = {
            str(dtype): torch.ones(2, 3).to(dtype)
            for dtype in safetensors_io.DTYPE_NAMES
        }
        tensors["empty"] = torch.empty(0, dtype=torch.int64)
        tensors["scalar"] = torch.tensor(5)
        tensors["transposed"] = torch.arange(6).reshape(2, 3).t()
        path = folder() / "dtypes.safetensors"
        safetensors_io.write(path, tensors)
        for read in (load_file, safetensors_io.read):
            found = read(path)
            self.assertEqual(found.keys(), tensors.keys())
            for name, tensor in tensors.items():
                self.assertEqual(found[name].dtype, tensor.dtype)
                self.assertTrue(torch.equal(found[name], tensor), name)

    def test_chunked_tables_equal_whole_ones(self):
        model = exported("dlrm").eager
        fqn = "tables.1.weight"
        whole = build.table_values(model, fqn, SEED)
        original, build.CHUNK_FLOATS = build.CHUNK_FLOATS, 64
        try:
            self.assertTrue(
                torch.equal(build.table_values(model, fqn, SEED), whole)
            )
        finally:
            build.CHUNK_FLOATS = original

    def test_failed_write_leaves_no_file(self):
        path = folder() / "short.safetensors"
        with self.assertRaises(ValueError):
            safetensors_io.write_streaming(
                path, [("x", torch.float32, (4,), [b"\0" * 8])]
            )
        self.assertEqual(list(folder().glob("short*")), [])


class InputsTest(unittest.TestCase):
    def test_sample_fits_the_description(self):
        for name in build.MODELS:
            model = exported(name)
            with safe_open(model.out / "sample.safetensors", "pt") as sample:
                found = {key: sample.get_tensor(key) for key in sample.keys()}
            for item in model.json["inputs"]:
                tensor = found.pop(item["name"])
                self.assertEqual(str(tensor.dtype), f"torch.{item['dtype']}")
                self.assertEqual(tensor.dim(), len(item["shape"]))
                if item["kind"] == "ids":
                    first = item.get("first", 0)
                    limit = first + torch.tensor(item["rows"])
                    self.assertTrue(bool((tensor < limit).all()))
                    self.assertTrue(bool((tensor >= first).all()))
            self.assertEqual(found, {})

    def test_skew_makes_few_ids_popular(self):
        model = exported("wide_deep")
        described = model.json["inputs"]
        column = [item["rows"] for item in described if item["kind"] == "ids"]
        self.assertEqual(column[0][0], 200)

        def distinct(skew):
            drawn = inputs.make_inputs(described, 400, SEED, skew=skew)["ids"]
            self.assertLess(int(drawn[:, 0].max()), 200)
            return len(drawn[:, 0].unique())

        self.assertGreater(distinct(0.0), distinct(1.0))
        self.assertGreater(distinct(1.0), distinct(1.5))

    def test_command_writes_what_the_function_makes(self):
        model = exported("din")
        path = folder() / "din_inputs.safetensors"
        code, errors = command(
            inputs,
            model.path(".json"),
            *("--batch", 6, "--seed", 5, "--bags", "ragged", "--out", path),
        )
        self.assertEqual((code, errors), (0, ""))
        wanted = model.inputs(6, seed=5)
        found = load_file(path)
        self.assertEqual(found.keys(), wanted.keys())
        for name in wanted:
            self.assertTrue(torch.equal(found[name], wanted[name]))


class UsageTest(unittest.TestCase):
    def test_bad_usage_is_one_line_and_exit_2(self):
        out = folder() / "unused"
        dlrm = ["--model", "dlrm", "--preset", "tiny"]
        taken = exported("din").out
        broken = folder() / "broken.json"
        broken.write_text("{")
        for module, arguments, word in [
            (export, [], "--model"),
            (export, ["--model", "gru", "--out", out], "gru"),
            (export, [*dlrm, "--out", out, "--formats", "onnx"], "onnx"),
            (export, [*dlrm, "--out", out, "--rows-scale", "2"], "rows-scale"),
            (export, [*dlrm, "--out", out, "--max-rows", "0"], "max-rows"),
            (export, [*dlrm, "--out", out, "--tables-gib", "x"], "tables-gib"),
            (export, [*dlrm, "--out", taken], "din"),
            (export, [*dlrm, "--out", broken], str(broken)),
            (inputs, [broken, "--out", out], str(broken)),
            (inputs, [broken, "--out", out, "--batch", "0"], "--batch"),
        ]:
            with self.subTest(arguments=arguments):
                code, errors = command(module, *arguments)
                self.assertEqual(code, 2)
                self.assertEqual(errors.count("\n"), 1)
                self.assertIn(word, errors)

    def test_description_is_complete(self):
        for name in build.MODELS:
            model = exported(name)
            described = json.loads(model.path(".json").read_text())
            self.assertEqual(described["model"], name)
            self.assertEqual(described["seed"], SEED)
            tables = {table["name"] for table in described["tables"]}
            # Rows that the model computes, not an input.
            read = {
                name
                for name in ("position_table.weight", "time_table.weight")
                if name in tables
            }
            for item in described["inputs"]:
                read.update(item.get("tables", []))
                for extent in item["shape"]:
                    if isinstance(extent, str):
                        self.assertTrue(re.fullmatch(r"\w+(\+1)?", extent))
            self.assertEqual(read, tables)


if __name__ == "__main__":
    unittest.main()
