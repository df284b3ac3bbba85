"""Each model of the zoo, in both formats, against its eager self."""

import unittest

import torch

from models.zoo import build, export
from models.zoo.inputs import make_inputs
from tests.models.zoo.support import TOLERANCE, exported, folder

NAMES = sorted(build.MODELS)
BATCHES = (1, 2, 33, 270)


class ModelTest(unittest.TestCase):
    def each(self):
        for name in NAMES:
            with self.subTest(model=name):
                yield exported(name)

    def test_both_formats_score_as_the_eager_model(self):
        for model in self.each():
            for batch in BATCHES:
                for bags in ("published", "ragged", "empty"):
                    tensors = model.inputs(batch, bags)
                    wanted = model.scores(tensors)
                    scores = tensors["candidates"].shape[0] if (
                        model.name == "dlrm_v3"
                    ) else batch
                    self.assertEqual(wanted.shape, (scores,))
                    self.assertEqual(wanted.dtype, torch.float32)
                    for suffix in (".pt2", ".pt"):
                        got = model.run(suffix, tensors)
                        self.assertEqual(got.shape, wanted.shape)
                        error = float(
                            (got - wanted).abs().amax() if scores else 0
                        )
                        where = f"{model.name}{suffix} {batch} {bags}"
                        self.assertLessEqual(error, TOLERANCE, where)

    def test_one_lookup_or_step_in_all(self):
        for name in ("dlrm", "din", "two_tower"):
            model = exported(name)
            tensors = model.inputs(3, "empty")
            if name == "din":
                tensors["history_lengths"][1] = 1
            else:
                ids, offsets = {
                    "dlrm": ("ids_4", "offsets_4"),
                    "two_tower": ("history_ids", "history_offsets"),
                }[name]
                tensors[ids] = torch.tensor([2])
                tensors[offsets][-1] = 1
            for suffix in (".pt2", ".pt"):
                torch.testing.assert_close(
                    model.run(suffix, tensors),
                    model.scores(tensors),
                    rtol=0,
                    atol=TOLERANCE,
                )

    def test_input_names_are_those_of_the_description(self):
        for model in self.each():
            described = [item["name"] for item in model.json["inputs"]]
            for suffix in (".pt2", ".pt"):
                slots = model.program(suffix).slots
                self.assertEqual([slot.name for slot in slots], described)

    def test_every_item_decides_its_own_score(self):
        for model in self.each():
            tensors = model.inputs(4, "published")
            wanted = model.scores(tensors)
            changed = dict(tensors)
            name = {
                "din": "item",
                "two_tower": "item_id",
                "dlrm_v3": "candidates",
            }.get(model.name)
            if name is None:
                name = "dense"
                changed[name] = tensors[name].clone()
                changed[name][2] += 1
            else:
                changed[name] = tensors[name].clone()
                changed[name][2] ^= 1
            same = model.scores(changed) == wanted
            wanted = [item != 2 for item in range(len(same))]
            self.assertEqual(same.tolist(), wanted)

    def test_scores_spread_over_zero_to_one(self):
        for model in self.each():
            scores = model.scores(model.inputs(270, "published"))
            self.assertGreater(float(scores.std()), 0.1, model.name)
            self.assertGreater(float(scores.median()), 0.02, model.name)
            self.assertLess(float(scores.median()), 0.98, model.name)

    def test_exports_carry_no_guard_against_batch_one(self):
        for model in self.each():
            guards = model.program(".pt2")._program._guards_code
            for guard in guards:
                # Sums of sizes may differ from 1: a user of DLRM-v3 without
                # history and candidates has nothing to score.
                if " + " not in guard:
                    self.assertNotRegex(guard, r"(!= 1|>= 2)$")

    def test_values_follow_the_seed_alone(self):
        rows = build.choose_rows("dlrm", "tiny")
        model = build.build("dlrm", rows, "tiny", seed=3)
        again = build.build("dlrm", rows, "tiny", seed=3)
        other = build.build("dlrm", rows, "tiny", seed=4)
        self.assertTrue(torch.equal(model.head.weight, again.head.weight))
        self.assertFalse(torch.equal(model.head.weight, other.head.weight))
        table = "tables.2.weight"
        values = build.table_values(model, table, 3)
        same = build.table_values(again, table, 3)
        self.assertTrue(torch.equal(values, same))
        # Neither another seed nor another table repeats the stream.
        for changed in (
            build.table_values(other, table, 4),
            build.table_values(model, "tables.3.weight", 3),
        ):
            self.assertFalse(torch.equal(values, changed))

    def test_zero_share_is_that_of_every_relu(self):
        rows = build.choose_rows("dlrm", "tiny")
        for share in (0.05, 0.5):
            model = build.build("dlrm", rows, "tiny", zero_share=share)
            model.bind(
                {
                    name: build.table_values(model, name, 1)
                    for name in model.table_modules()
                }
            )
            inputs = make_inputs([x.as_json() for x in model.inputs], 4000, seed=7)
            shares = []
            for module in model.modules():
                if isinstance(module, torch.nn.ReLU):
                    module.register_forward_hook(
                        lambda _, __, y: shares.append(float((y == 0).float().mean()))
                    )
            model(**inputs)
            self.assertGreater(len(shares), 3)
            for found in shares:
                self.assertAlmostEqual(found, share, delta=0.02)


class ShapeTest(unittest.TestCase):
    def default(self, name):
        rows = build.choose_rows(name, max_rows=50, rows_scale=1.0)
        return build.MODELS[name](rows, **build.MODELS[name].presets["default"])

    def linears(self, model, part):
        return [
            (layer.in_features, layer.out_features)
            for layer in getattr(model, part)
            if isinstance(layer, torch.nn.Linear)
        ]

    def test_dlrm_has_mlperf_widths(self):
        model = self.default("dlrm")
        self.assertEqual(
            self.linears(model, "bottom"), [(13, 512), (512, 256), (256, 128)]
        )
        # 128 dense values and 27 * 26 / 2 pairs.
        self.assertEqual(
            self.linears(model, "top"),
            [(479, 1024), (1024, 1024), (1024, 512), (512, 256)],
        )
        self.assertEqual(len(model.tables), 26)
        self.assertEqual(model.tables[0].embedding_dim, 128)

    def test_dcnv2_looks_up_214_rows_per_item(self):
        model = self.default("dlrm_dcnv2")
        self.assertEqual(sum(model.per_item), 214)
        self.assertEqual(len(model.cross.down), 3)
        self.assertEqual(model.cross.down[0].weight.shape, (512, 27 * 128))
        tiny = exported("dlrm_dcnv2")
        tensors = tiny.inputs(10, "published")
        lookups = sum(tensors[f"ids_{i}"].numel() for i in range(26))
        self.assertEqual(lookups, 2140)

    def test_two_tower_has_one_user_and_many_items(self):
        model = exported("two_tower")
        tensors = model.inputs(33)
        for name, tensor in tensors.items():
            if name.startswith("user"):
                self.assertEqual(tensor.shape[0], 1, name)
            elif name.startswith("item"):
                self.assertEqual(tensor.shape[0], 33, name)
        self.assertEqual(tensors["history_offsets"].shape, (2,))

    def test_din_ignores_steps_behind_the_length(self):
        model = exported("din")
        tensors = model.inputs(5)
        tensors["history_lengths"].fill_(2)
        wanted = model.scores(tensors)
        for name in ("history", "history_categories"):
            tensors[name][:, 2:] = 0
        self.assertTrue(torch.equal(model.scores(tensors), wanted))


class OptionTest(unittest.TestCase):
    def test_tables_inside_need_no_table_files(self):
        model = exported("wide_deep", "--tables-inside")
        self.assertFalse((model.out / "tables").exists())
        self.assertIsNone(model.json["tables"][0]["file"])
        tensors = model.inputs(7)
        for suffix in (".pt2", ".pt"):
            torch.testing.assert_close(
                model.run(suffix, tensors),
                model.scores(tensors),
                rtol=0,
                atol=TOLERANCE,
            )

    def test_stand_ins_keep_model_files_small(self):
        # 26 tables of 40,000 rows x 8 floats would be 33 MB.
        rows = dict.fromkeys(build.MODELS["dlrm"].published_rows, 40_000)
        model = build.build("dlrm", rows, "tiny")
        sample = exported("dlrm").inputs(export.SAMPLE_BATCH)
        for suffix, write in [
            (".pt2", export.export_pt2),
            (".pt", export.export_torchscript),
        ]:
            path = folder() / f"large{suffix}"
            write(model, sample, path)
            self.assertLess(path.stat().st_size, 500_000)


if __name__ == "__main__":
    unittest.main()
