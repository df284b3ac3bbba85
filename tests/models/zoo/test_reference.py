"""The reference runner: other people's models, guards, and bad input."""

import unittest

import torch
from safetensors.torch import load_file

from models.zoo import programs, reference, safetensors_io
from tests.models.zoo.support import TOLERANCE, command, exported, folder


class Nested(torch.nn.Module):
    """Inputs and outputs within dictionaries, tuples and lists."""

    def forward(self, features, scale: int):
        total = features["a"] + features["b"][0]
        return {"z": total * scale, "a": (total.sum(1), None)}


class Mixed(torch.nn.Module):
    """Results among which some are no tensors."""

    def forward(self, x: torch.Tensor):
        return x, None, x.size(1), x * 2, x * 3


class OddKeys(torch.nn.Module):
    def forward(self, x):
        return {7: x, "é/": [x * 2]}


class Capitals(torch.nn.Module):
    """Names that torch.export writes in another way."""

    def forward(self, X, Features):
        return X - Features["Price"] * Features["the shop"]


class AcrossRows(torch.nn.Module):
    """Each row's answer depends on the others."""

    def forward(self, x, offsets):
        # torch.export guards sizes that are sums, such as batch + 1.
        return torch.softmax(x.sum(1) + offsets[1:], dim=0)


class Listed(torch.nn.Module):
    """Arguments that a trace cannot have."""

    def forward(
        self,
        xs: list[torch.Tensor],
        y: torch.Tensor,
        k: int,
        scale: float = 3.0,
    ):
        return xs[0] + xs[1], {"k": y * k * scale}


class Keyed(torch.nn.Module):
    """A dictionary beside a tensor whose name begins like its keys."""

    def forward(
        self,
        x: dict[str, torch.Tensor],
        p: tuple[torch.Tensor, torch.Tensor],
        x_c: torch.Tensor,
    ):
        return x["a"] - x["b"] + x_c * (p[0] - p[1])


def save_program(module, args, shapes, name):
    path = folder() / name
    program = torch.export.export(module, args, dynamic_shapes=shapes)
    torch.export.save(program, path)
    return path


def run(path, tensors, *options):
    """Runs the command; returns (exit code, stderr, outputs or None)."""
    inputs, outputs = folder() / "x.safetensors", folder() / "y.safetensors"
    outputs.unlink(missing_ok=True)
    safetensors_io.write(inputs, tensors)
    code, errors = command(
        reference, path, "--inputs", inputs, "--outputs", outputs, *options
    )
    return code, errors, load_file(outputs) if outputs.exists() else None


class CommandTest(unittest.TestCase):
    def test_several_batches_in_one_run(self):
        model = exported("dlrm")
        for suffix in (".pt2", ".pt"):
            pairs, wanted = [], []
            for batch in (1, 5):
                tensors = model.inputs(batch)
                files = [folder() / f"{way}{batch}.safetensors" for way in "xy"]
                safetensors_io.write(files[0], tensors)
                pairs += ["--inputs", files[0], "--outputs", files[1]]
                wanted.append((files[1], model.scores(tensors)))
            code, errors = command(
                reference,
                model.path(suffix),
                *("--tables", model.out / "tables", *pairs),
            )
            self.assertEqual((code, errors), (0, ""))
            for file, scores in wanted:
                torch.testing.assert_close(
                    load_file(file), {"output_0": scores},
                    rtol=0, atol=TOLERANCE,
                )  # fmt: skip

    def test_nested_inputs_and_outputs(self):
        batch = torch.export.Dim("batch")
        a, b = torch.randn(3, 4), torch.randn(3, 4)
        path = save_program(
            Nested(),
            ({"a": a, "b": [b]}, 3),
            ({"a": {0: batch}, "b": [{0: batch}]}, None),
            "nested.pt2",
        )
        code, errors, outputs = run(path, {"features_a": a, "features_b_0": b})
        self.assertEqual((code, errors), (0, ""))
        # Keys name a dictionary's leaves; the one that is None has no tensor.
        self.assertEqual(sorted(outputs), ["a_0", "z"])
        torch.testing.assert_close(outputs["z"], (a + b) * 3)
        torch.testing.assert_close(outputs["a_0"], (a + b).sum(1))

    def test_names_of_results_are_those_of_import(self):
        x = torch.randn(3, 4)
        shapes = ({0: torch.export.Dim("batch")},)
        program = save_program(Mixed(), (x,), shapes, "mixed.pt2")
        script = folder() / "mixed.pt"
        torch.jit.save(torch.jit.script(Mixed()), str(script))
        for path in (program, script):
            code, errors, outputs = run(path, {"x": x})
            self.assertEqual((code, errors), (0, ""))
            torch.testing.assert_close(
                outputs, {"output_0": x, "output_1": x * 2, "output_2": x * 3}
            )
        program = save_program(OddKeys(), (x,), shapes, "odd_keys.pt2")
        code, errors, outputs = run(program, {"x": x})
        self.assertEqual((code, errors), (0, ""))
        torch.testing.assert_close(outputs, {"7": x, "___0": x * 2})

    def test_names_as_forward_spells_them(self):
        batch = {0: torch.export.Dim("batch")}
        x, price, shop = torch.randn(3, 3).unbind()
        path = save_program(
            Capitals(),
            (x, {"Price": price, "the shop": shop}),
            (batch, {"Price": batch, "the shop": batch}),
            "capitals.pt2",
        )
        tensors = {"X": x, "Features_Price": price, "Features_the_shop": shop}
        lower = {name.lower(): tensor for name, tensor in tensors.items()}
        for names in (tensors, lower):
            code, errors, outputs = run(path, names)
            self.assertEqual(code, 0, errors)
            torch.testing.assert_close(outputs["output_0"], x - price * shop)

    def test_scripted_lists_and_numbers(self):
        path = folder() / "listed.pt"
        torch.jit.save(torch.jit.script(Listed()), str(path))
        a, b, y = torch.randn(3, 2, 2).unbind()
        code, errors, outputs = run(
            path, {"xs_0": a, "xs_1": b, "y": y, "k": torch.tensor(2)}
        )
        self.assertEqual((code, errors), (0, ""))
        torch.testing.assert_close(
            outputs, {"output_0": a + b, "output_1": y * 6}
        )


    def test_scripted_dictionaries_and_tuples(self):
        path = folder() / "keyed.pt"
        torch.jit.save(torch.jit.script(Keyed()), str(path))
        a, b, c = torch.randn(3, 2, 2).unbind()
        tensors = {"x_a": a, "x_b": b, "x_c": c, "p_0": a, "p_1": c}
        code, errors, outputs = run(path, tensors)
        self.assertEqual((code, errors), (0, ""))
        torch.testing.assert_close(outputs, {"output_0": a - b + c * (a - c)})
        del tensors["p_1"]
        code, errors, outputs = run(path, tensors)
        self.assertEqual((code, outputs), (2, None))
        self.assertIn("p_1", errors)


class Bags(torch.nn.Module):
    """A history with offsets of batch + 1."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.EmbeddingBag(
            50, 4, mode="sum", include_last_offset=True
        )
        self.top = torch.nn.Linear(6, 1)

    def forward(self, dense, hist, hist_offsets):
        bags = self.table(hist, hist_offsets)
        return torch.sigmoid(self.top(torch.cat([dense, bags], dim=1)))


def bags_request(batch):
    return {
        "dense": torch.randn(batch, 2),
        "hist": torch.arange(3 * batch),
        "hist_offsets": 3 * torch.arange(batch + 1),
    }


class GuardTest(unittest.TestCase):
    def test_automatic_sizes_take_a_batch_of_one(self):
        auto = torch.export.Dim.AUTO
        module = Bags().eval()
        path = save_program(
            module,
            tuple(bags_request(5).values()),
            ({0: auto}, {0: auto}, {0: auto}),
            "auto.pt2",
        )
        for batch in (1, 2, 7):
            tensors = bags_request(batch)
            code, errors, outputs = run(path, tensors)
            self.assertEqual((code, errors), (0, ""))
            torch.testing.assert_close(
                outputs["output_0"], module(**tensors).detach()
            )
        wrong = bags_request(1) | {"hist_offsets": torch.tensor([0, 1, 3])}
        self.assertEqual(run(path, wrong)[0], 2)

    def test_a_bad_request_leaves_the_others_their_outputs(self):
        model = exported("wide_deep")
        good = [model.inputs(2), model.inputs(3)]
        bad = good[0] | {"dense": good[0]["dense"][:, :5]}
        pairs, outputs = [], []
        for number, tensors in enumerate((good[0], bad, good[1])):
            files = [folder() / f"{way}of{number}.safetensors" for way in "xy"]
            files[1].unlink(missing_ok=True)
            safetensors_io.write(files[0], tensors)
            pairs += ["--inputs", files[0], "--outputs", files[1]]
            outputs.append(files[1])
        code, errors = command(
            reference, model.path(".pt2"), "--tables", model.out / "tables", *pairs
        )
        self.assertEqual(code, 2)
        self.assertIn("1 of 3 requests failed", errors)
        self.assertIn("xof1.safetensors", errors)
        self.assertFalse(outputs[1].exists())
        for file, tensors in ((outputs[0], good[0]), (outputs[2], good[1])):
            torch.testing.assert_close(
                load_file(file)["output_0"], model.scores(tensors), rtol=0, atol=TOLERANCE
            )

    def test_batch_of_one_runs_past_the_usual_guard(self):
        for name in ("dlrm", "din", "wide_deep"):
            model = exported(name, "--plain-guards")
            for bags in ("published", "ragged"):
                tensors = model.inputs(1, bags)
                torch.testing.assert_close(
                    model.run(".pt2", tensors),
                    model.scores(tensors),
                    rtol=0,
                    atol=TOLERANCE,
                )

    def test_plain_guards_do_refuse_a_batch_of_one(self):
        program = exported("dlrm", "--plain-guards").program(".pt2")._program
        tensors = exported("dlrm").inputs(1)
        with self.assertRaisesRegex(AssertionError, "Guard failed.*!= 1"):
            program.module()(**tensors)

    def test_rows_that_depend_on_each_other_stay_refused(self):
        batch = torch.export.Dim("batch")
        path = save_program(
            AcrossRows(),
            (torch.randn(3, 4), torch.zeros(4)),
            ({0: batch}, {0: batch + 1}),
            "across.pt2",
        )
        many = {"x": torch.randn(5, 4), "offsets": torch.zeros(6)}
        code, errors, outputs = run(path, many)
        self.assertEqual((code, errors), (0, ""))
        self.assertAlmostEqual(float(outputs["output_0"].sum()), 1, places=5)
        one = {"x": torch.randn(1, 4), "offsets": torch.zeros(2)}
        code, errors, outputs = run(path, one)
        self.assertEqual(code, 2)
        self.assertIn("depend on each other", errors)
        self.assertIsNone(outputs)

    def test_padding_repeats_the_end_of_every_batch_axis(self):
        model = exported("dlrm", "--plain-guards")
        program = model.program(".pt2")
        tensors = model.inputs(1, "published")
        leaves = reference.gather(program.slots, tensors, "test")
        sizes = program._sizes(leaves)
        doubled = {s: 2 if size == 1 else size for s, size in sizes.items()}
        for slot, leaf in zip(program.slots, leaves):
            padded = programs._pad(leaf, slot.shape, doubled)
            if slot.name == "dense":
                self.assertTrue(torch.equal(padded[0], padded[1]))
            elif slot.name.startswith("offsets"):
                self.assertEqual(padded.tolist(), [0, leaf[-1], leaf[-1]])


class BadInputTest(unittest.TestCase):
    def check(self, path, tensors, words, *options):
        code, errors, outputs = run(path, tensors, *options)
        self.assertEqual(code, 2, errors)
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertIsNone(outputs)
        for word in words:
            self.assertIn(word, errors)

    def test_wrong_inputs_are_named(self):
        model = exported("wide_deep")
        tables = ["--tables", model.out / "tables"]
        good = model.inputs(4)
        big = good["ids"].clone()
        big[1, 1] = 10**6
        for suffix in (".pt2", ".pt"):
            path = model.path(suffix)
            for tensors, word in [
                ({"dense": good["dense"]}, "input ids is missing"),
                (good | {"more": torch.ones(1)}, "no input more"),
                (good | {"ids": big}, "x.safetensors"),
                (good | {"dense": good["dense"][:3]}, "x.safetensors"),
                (good | {"dense": good["dense"][:, :5]}, "x.safetensors"),
            ]:
                with self.subTest(suffix=suffix, word=word):
                    self.check(path, tensors, [word], *tables)
        # Only a .pt2 says dtypes.
        double = good | {"dense": good["dense"].double()}
        self.check(
            model.path(".pt2"), double, ["dense", "torch.float64"], *tables
        )

    def test_wrong_tables_are_named(self):
        model = exported("wide_deep")
        tensors = model.inputs(2)
        values = safetensors_io.read_folder(model.out / "tables")
        rows = values["wide.3.weight"]
        for change, words in [
            ({"wide.3.weight": rows[:-1]}, ["wide.3.weight", "wants"]),
            ({"wide.3.weight": rows.double()}, ["wide.3.weight", "float64"]),
            ({"wide.99.weight": rows}, ["no parameter wide.99.weight"]),
            ({"wide.3.weight": None}, ["wide.3.weight has no values"]),
        ]:
            changed = {
                name: value
                for name, value in (values | change).items()
                if value is not None
            }
            other = folder() / "other_tables"
            other.mkdir(exist_ok=True)
            safetensors_io.write(other / "all.safetensors", changed)
            for suffix in (".pt2", ".pt"):
                with self.subTest(suffix=suffix, words=words):
                    self.check(
                        model.path(suffix), tensors, words, "--tables", other
                    )

    def test_damaged_and_foreign_files_are_named(self):
        model = exported("wide_deep")
        tensors = model.inputs(2)
        for suffix in (".pt2", ".pt"):
            whole = model.path(suffix).read_bytes()
            for name, data in [
                ("truncated", whole[: len(whole) // 2]),
                ("empty", b""),
                ("foreign", b"label,1,2,3\n" * 100),
            ]:
                path = folder() / f"{name}{suffix}"
                path.write_bytes(data)
                self.check(path, tensors, [path.name])
        self.check(folder() / "missing.pt2", tensors, ["missing.pt2"])
        self.check(
            model.path(".pt2"), tensors, ["nowhere"], "--tables", "nowhere"
        )

    def test_damaged_inputs_are_named(self):
        model = exported("wide_deep")
        inputs = folder() / "damaged.safetensors"
        inputs.write_bytes(b"\xff" * 40)
        code, errors = command(
            reference,
            model.path(".pt"),
            *("--tables", model.out / "tables", "--inputs", inputs),
            *("--outputs", folder() / "y.safetensors"),
        )
        self.assertEqual(code, 2)
        self.assertIn("damaged.safetensors", errors)


if __name__ == "__main__":
    unittest.main()
