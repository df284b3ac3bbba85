"""Deltas of TorchEasyRec and of TorchRec's ModelDeltaTracker (scripts/delta.py).

Parquet files are written here by pyarrow with the schema that TorchEasyRec writes.
The tracker is TorchRec's own, in a model that TorchRec trains.
"""

import contextlib
import io
import logging
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import unittest
import warnings

import numpy
import torch
from safetensors.torch import save_file

from scripts import delta
from scripts.lib import delta_sources, deltas, next_version

ROOT = pathlib.Path(__file__).resolve().parents[2]
# tests/warm_python.py under ctest.
PYTHON = os.environ.get("REFRACT_PYTHON", sys.executable)
DIM = 4

try:
    import pyarrow
    import pyarrow.parquet
except ImportError:
    pyarrow = None

MISSING = ""
try:
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        import torchrec
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.model_tracker.model_delta_tracker import (
            ModelDeltaTrackerTrec,
        )
except ImportError as error:
    MISSING = f"fbgemm-gpu-cpu is missing: {error}"
finally:
    logging.disable(logging.NOTSET)


def metadata(**changes):
    found = {
        "schema_version": "2",
        "dynamic_key_encoding": "UINT64_BIT_PATTERN_IN_SIGNED_INT64",
        "invalid_key": "-1",
        "dump_generation": "g1",
    }
    found.update(changes)
    return {
        f"tzrec.delta_embedding.{key}": value
        for key, value in found.items() if value is not None
    }


def write(file, tables, step=40, rank=0, world=1, drop=(), change=None, meta=None):
    """A file as TorchEasyRec writes it; `tables`: {fqn: (ids, rows)}."""
    columns = {name: [] for name in (
        "global_step", "rank", "world_size", "embedding_name", "embedding_role",
        "feature_name", "table_fqn", "key_id", "embedding",
    )}
    for fqn, (ids, rows) in tables.items():
        for id, row in zip(ids, rows):
            values = (step, rank, world, fqn.rpartition(".")[2], "ebc", "f", fqn, id, row)
            for column, value in zip(columns.values(), values):
                column.append(value)
    types = {
        "global_step": pyarrow.int64(), "rank": pyarrow.int32(),
        "world_size": pyarrow.int32(), "key_id": pyarrow.int64(),
        "embedding": pyarrow.list_(pyarrow.float32()),
        **(change or {}),
    }
    fields = [
        (name, types.get(name, pyarrow.string())) for name in columns if name not in drop
    ]
    columns.update(
        {name: ["UPSERT"] * len(columns["key_id"]) for name in types if name not in columns}
    )
    fields += [(name, type) for name, type in types.items() if name not in dict(fields)
               and name not in drop]
    schema = pyarrow.schema(fields, metadata=meta or metadata())
    table = pyarrow.table({name: columns[name] for name, _ in fields}, schema=schema)
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, file)


class Sources(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = pathlib.Path(held.name)
        self.random = numpy.random.default_rng(7)

    def version(self):
        """As on the machine of a trainer, where the version itself is not."""
        return self.folder / "repo" / "ranker" / "1"

    def delta(self, command, version, *arguments, status=0):
        folder = ("--folder", version / "deltas")
        ran = subprocess.run(
            [PYTHON, "scripts/delta.py", command, *map(str, (version, *arguments, *folder))],
            cwd=ROOT, text=True, capture_output=True,
        )
        self.assertEqual(ran.returncode, status, ran.stderr)
        return ran.stdout if status == 0 else ran.stderr

    def rows(self, count):
        return self.random.standard_normal((count, DIM)).astype(numpy.float32)


@unittest.skipIf(pyarrow is None, "pyarrow is missing")
class EasyRec(Sources):
    def read(self, *paths, **options):
        return list(delta_sources.easyrec(paths or [self.folder], **options))

    def refused(self, reason, *paths, **options):
        with self.assertRaises(deltas.DeltaError) as raised:
            self.read(*paths, **options)
        self.assertIn(reason, str(raised.exception))

    def test_steps_become_deltas_in_order(self):
        version, outbox = self.version(), self.folder / "outbox"
        one, two = self.rows(3), self.rows(2)
        write(outbox / "delta_embedding_step_40.parquet", {
            "ebc.embedding_bags.user": ([9, 2, 5], one),
            "ec.embeddings.item": ([1, 0], two),
        })
        write(outbox / "delta_embedding_step_9.parquet",
              {"ebc.embedding_bags.user": ([9], self.rows(1))}, step=9)
        printed = self.delta("easyrec", version, outbox, "--rename", "item=items")
        self.assertIn("step 9: delta 1", printed)
        self.assertIn("step 40: delta 2", printed)
        folder = deltas.Folder(version / "deltas", "ranker", 1)
        first, second = (folder.read(m) for m in folder.manifests().values())
        self.assertEqual(list(first), ["ebc.embedding_bags.user.weight"])
        users, items = second["ebc.embedding_bags.user.weight"], second["items"]
        self.assertEqual(users.ids.tolist(), [2, 5, 9])
        self.assertTrue(torch.equal(users.rows, torch.from_numpy(one[[1, 2, 0]])))
        self.assertEqual(items.ids.tolist(), [0, 1])
        self.assertTrue(torch.equal(items.rows, torch.from_numpy(two[[1, 0]])))
        again = self.delta("easyrec", version, outbox, "--after", 40)
        self.assertIn("no step after 40", again)
        self.assertEqual(len(folder.manifests()), 2)

    def test_ranks_of_a_step_become_one_delta(self):
        shared, own = self.rows(2), self.rows(1)
        outbox = self.folder / "step_40"
        name = "delta_embedding_step_40_rank_{}_of_3.parquet"
        write(outbox / name.format(0), {"u": ([3, 7], shared)}, rank=0, world=3)
        self.refused("the file of rank 1 of 3 is missing")
        # A table that all ranks have whole: each writes the rows that it touched.
        write(outbox / name.format(1), {"u": ([7, 8], [shared[1], own[0]])}, rank=1, world=3)
        write(outbox / name.format(2), {}, rank=2, world=3)  # no row changed
        ((step, tables),) = self.read()
        self.assertEqual(step, 40)
        self.assertEqual(tables["u.weight"].ids.tolist(), [3, 7, 8])
        self.assertTrue(torch.equal(
            tables["u.weight"].rows, torch.from_numpy(numpy.concatenate([shared, own]))
        ))
        write(outbox / name.format(1), {"u": ([7], self.rows(1))}, rank=1, world=3)
        self.refused("table 'u.weight': id 7 is there twice with different rows")
        write(outbox / name.format(1), {}, rank=1, world=3, meta=metadata(dump_generation="g2"))
        self.refused("are of two dumps")

    def test_hashed_keys_keep_their_bits(self):
        key = (1 << 63) + 12345  # a uint64, stored as its bit pattern
        write(self.folder / "d_step_1.parquet", {"u": ([key - (1 << 64), 5], self.rows(2))}, 1)
        ((_, tables),) = self.read()
        self.assertEqual([id % (1 << 64) for id in tables["u.weight"].ids.tolist()], [key, 5])

    def test_what_does_not_fit_is_refused_by_name(self):
        good = {"u": ([1, 2], self.rows(2))}
        nan = self.rows(2)
        nan[1, 3] = numpy.nan
        cases = (
            ("schema_version is '3'; this version reads '2'", good,
             {"meta": metadata(schema_version="3")}),
            ("its metadata have no", good, {"meta": metadata(schema_version=None)}),
            ("column 'key_id' is missing", good, {"drop": ("key_id",)}),
            ("column 'key_id' is int32; wanted int64", good,
             {"change": {"key_id": pyarrow.int32()}}),
            ("column 'embedding' is list<element: double>", good,
             {"change": {"embedding": pyarrow.list_(pyarrow.float64())}}),
            ("table 'u': row of id 2: column 3 is nan", {"u": ([1, 2], nan)}, {}),
            ("id 1 is there twice with different", {"u": ([1, 1], self.rows(2))}, {}),
            ("the row of id 2 has 3 elements, that of id 1 has 4",
             {"u": ([1, 2], [[1.0] * 4, [1.0] * 3])}, {}),
            ("key_id -1 is that of no row", {"u": ([-1, 2], self.rows(2))}, {}),
            ("column 'embedding' has nulls", {"u": ([1, 2], [[1.0] * 4, None])}, {}),
        )
        file = self.folder / "d_step_40.parquet"
        for reason, tables, options in cases:
            with self.subTest(reason):
                write(file, tables, **options)
                self.refused(reason)
                self.refused(file.name if "twice" not in reason else "id 1")
        file.write_bytes(file.read_bytes()[:-9])
        self.refused("no parquet file, or damaged")
        self.refused("no file or folder", self.folder / "nothing")
        version = self.version()
        self.assertIn("delta.py:", self.delta("easyrec", version, file, status=2))
        self.assertFalse((version / "deltas").exists())

    def test_only_upserts_are_read(self):
        file = self.folder / "d_step_40.parquet"
        write(file, {"u": ([1], self.rows(1))}, change={"operation": pyarrow.string()})
        self.assertEqual(len(self.read()), 1)
        table = pyarrow.parquet.read_table(file)
        at = table.schema.get_field_index("operation")
        table = table.set_column(at, "operation", [["DELETE"]])
        pyarrow.parquet.write_table(table, file)
        self.refused("operation 'DELETE'; this version reads UPSERT")


class Tracked(Sources):
    def test_ids_of_a_file_and_rows_of_a_checkpoint(self):
        version, weight = self.version(), torch.from_numpy(self.rows(10))
        torch.save({"ebc.embedding_bags.user": torch.tensor([7, 1, 7])}, self.folder / "ids.pt")
        save_file({"ebc.embedding_bags.user.weight": weight}, self.folder / "w.safetensors")
        printed = self.delta("torchrec", version, "--tracked", self.folder / "ids.pt",
                             "--weights", self.folder / "w.safetensors")
        self.assertIn("ebc.embedding_bags.user.weight: 2 rows", printed)
        folder = deltas.Folder(version / "deltas", "ranker", 1)
        (manifest,) = folder.manifests().values()
        rows = folder.read(manifest)["ebc.embedding_bags.user.weight"]
        self.assertEqual(rows.ids.tolist(), [1, 7])
        self.assertTrue(torch.equal(rows.rows, weight[[1, 7]]))

    def test_what_does_not_fit_is_refused_by_name(self):
        weights = {"u.weight": torch.from_numpy(self.rows(10)), "b": torch.ones(3)}
        bad = {"u.weight": weights["u.weight"].clone()}
        bad["u.weight"][4, 2] = float("inf")
        for reason, unique, given in (
            ("'v': the weights have no tensor 'v.weight'", {"v": torch.tensor([1])}, weights),
            ("id 10 is outside the 10 rows", {"u": torch.tensor([1, 10])}, weights),
            ("'u': no tensor of ids", {"u": torch.tensor([1.5])}, weights),
            ("tensor 'b' is no table", {"b": torch.tensor([1])}, weights),
            ("row of id 4: column 2 is inf", {"u": torch.tensor([4])}, bad),
        ):
            with self.subTest(reason), self.assertRaises(deltas.DeltaError) as raised:
                delta_sources.tracked(unique, given)
            self.assertIn(reason, str(raised.exception))
        (self.folder / "junk.pt").write_bytes(b"junk")
        with self.assertRaises(deltas.DeltaError):
            delta_sources.load_tracked(self.folder / "junk.pt")

    def test_local_ids_of_a_part_of_the_rows(self):
        tables = delta_sources.tracked(
            {"u": torch.tensor([0, 2])}, {"u.weight": torch.ones(3, DIM)},
            names={"u": "users"}, offsets={"u": 100},
        )
        self.assertEqual(tables["users"].ids.tolist(), [100, 102])


@unittest.skipIf(MISSING, MISSING)
class TorchRec(Sources):
    """What a tracker says after steps of training, against the tables themselves."""

    def setUp(self):
        super().setUp()
        store = torch.distributed.FileStore(str(self.folder / "store"), 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)

    def test_rows_that_training_changed(self):
        torch.manual_seed(7)
        tables = [
            torchrec.EmbeddingBagConfig(
                name=name, embedding_dim=DIM, num_embeddings=50, feature_names=[f"f_{name}"]
            )
            for name in ("user", "item")
        ]
        ebc = torchrec.EmbeddingBagCollection(device=torch.device("cpu"), tables=tables)

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.ebc = ebc

            def forward(self, features):
                return self.ebc(features).values()

        model = torchrec.distributed.DistributedModelParallel(
            Model(), device=torch.device("cpu"), sharders=[EmbeddingBagCollectionSharder()]
        )
        tracker = ModelDeltaTrackerTrec(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

        def weights():
            return {
                name: delta_sources._local(name, value).detach().clone()
                for name, value in model.state_dict().items()
            }

        def step(ids):
            tracker.step()  # before the batch, as TorchRec's trainer does
            features = torchrec.KeyedJaggedTensor.from_lengths_sync(
                ["f_user", "f_item"], torch.tensor(ids), torch.tensor([2, 1, 1, 2])
            )
            optimizer.zero_grad()
            model(features).square().sum().backward()
            optimizer.step()

        before = weights()
        step([3, 9, 3, 4, 4, 11])
        step([3, 20, 21, 0, 4, 1])
        after = weights()
        found = delta_sources.tracked(tracker.get_unique(), model.state_dict())
        self.assertEqual(len(found), 2)
        wanted = deltas.changed_rows(before, after)
        self.assertEqual(set(found), set(wanted))
        for table, rows in found.items():
            self.assertEqual(rows.ids.tolist(), wanted[table].ids.tolist())
            self.assertTrue(torch.equal(rows.rows, wanted[table].rows))
        # The next read has only what came since, also by way of a file.
        step([40, 41, 42, 43, 44, 45])
        torch.save(tracker.get_unique(), self.folder / "unique.pt")
        unique = delta_sources.load_tracked(self.folder / "unique.pt")
        found = delta_sources.tracked(unique, model.state_dict())
        self.assertEqual(
            [rows.ids.tolist() for rows in found.values()], [[40, 41, 42], [43, 44, 45]]
        )


class Folders(unittest.TestCase):
    def test_a_full_disk_leaves_the_last_delta(self):
        with tempfile.TemporaryDirectory() as path:
            folder = deltas.Folder(path, "m", 1)
            folder.write({"t": deltas.Rows([1], torch.ones(1, 4))})
            before = sorted(os.listdir(path))
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
            try:
                with self.assertRaisesRegex(deltas.DeltaError, f"^{path}/delta-.*: File too large"):
                    folder.write({"t": deltas.Rows([2], torch.ones(1, 4))})
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            self.assertEqual(sorted(os.listdir(path)), before)

    def test_a_damaged_manifest_is_named(self):
        with tempfile.TemporaryDirectory() as path:
            folder = deltas.Folder(path, "m", 1)
            folder.write({"t": deltas.Rows([1], torch.ones(1, 4))})
            manifest = pathlib.Path(path) / deltas.name_of(1)
            for text in (manifest.read_text()[:40], "[]", '{"id": "x"}'):
                manifest.write_text(text)
                for call in (folder.manifests, folder.last, folder.merge):
                    with self.assertRaises(deltas.DeltaError) as raised:
                        call()
                    self.assertIn(str(manifest), str(raised.exception))


class Checkpoints(unittest.TestCase):
    def test_what_is_no_checkpoint_is_named(self):
        with tempfile.TemporaryDirectory() as path:
            for name in ("x.pt", "x.safetensors"):
                file = pathlib.Path(path) / name
                file.write_bytes(b"junk")
                with self.assertRaises(deltas.DeltaError) as raised:
                    delta.read_checkpoint(file)
                self.assertIn(str(file), str(raised.exception))
            # A trainer's own dictionary around the state dict.
            torch.save({"epoch": 1, "net": {"t": torch.ones(1)}}, file)
            file = file.rename(file.with_suffix(".pt"))
            with self.assertRaises(deltas.DeltaError) as raised:
                delta.read_checkpoint(file)
            self.assertIn("no tensors", str(raised.exception))


class ChangedRows(unittest.TestCase):
    def test_tables_that_cannot_be_compared_are_named(self):
        table = torch.randn(5, 4)
        before = {"t": table, "top.weight": torch.zeros(1, 4), "top.bias": torch.zeros(1)}
        for after in (table.half(), torch.cat([table, table])):
            for known in (None, {"t": (5, 4, "float32")}):
                with self.assertRaises(deltas.DeltaError) as raised:
                    deltas.changed_rows(before, {**before, "t": after}, known=known)
                self.assertIn(f"'t' is no table of one shape and dtype in both: {table.dtype}",
                              str(raised.exception))
        other = {f"module.{name}": value for name, value in before.items()}
        with self.assertRaises(deltas.DeltaError) as raised:
            deltas.changed_rows(other, other, known={"t": (5, 4, "float32")})
        self.assertIn("no table of the version: it has t, they have module.t",
                      str(raised.exception))

    def test_dense_weights_are_left_out(self):
        before = {"t": torch.zeros(5, 4), "top.weight": torch.zeros(1, 4)}
        after = {"t": torch.ones(5, 4), "top.weight": torch.ones(1, 4)}
        found = deltas.changed_rows(before, after, known={"t": (5, 4, "float32")})
        self.assertEqual(set(found), {"t"})

    def test_rows_that_nodes_would_refuse_are_refused(self):
        rows = {"t": deltas.Rows([1], torch.ones(1, 4))}
        next_version.check(rows, {"t": (5, 4, "float16")})
        with self.assertRaises(deltas.DeltaError) as raised:
            next_version.check(rows, {"t": (5, 4, "float64")})
        self.assertIn("'t' cannot change: it is of float64", str(raised.exception))

    def test_rows_with_ids_are_matched_by_id(self):
        torch.manual_seed(5)
        every = torch.randint(-(2**63), 2**63 - 1, (300,))
        rows = torch.randn(300, 4)
        changed = rows.clone()
        changed[::7, 2] += 1
        old, new = torch.randperm(250), torch.randperm(250) + 50
        before = {"t": rows[old], "t.ids": every[old]}
        after = {"t": changed[new], "t.ids": every[new]}
        found = deltas.changed_rows(before, after)
        self.assertEqual(set(found), {"t"})
        wanted = {
            int(every[i]): changed[i].tolist()
            for i in range(50, 300) if i >= 250 or i % 7 == 0
        }
        got = dict(zip(found["t"].ids.tolist(), found["t"].rows.tolist()))
        self.assertEqual(got, wanted)
        self.assertEqual(sorted(found["t"].deleted.tolist()), sorted(every[:50].tolist()))
        order = torch.randperm(250)
        again = {"t": before["t"][order], "t.ids": before["t.ids"][order]}
        self.assertEqual(deltas.changed_rows(before, again), {})
        with self.assertRaisesRegex(deltas.DeltaError, "tensor 't' and its ids"):
            deltas.changed_rows(before, {**again, "t.ids": every[:3]})


if __name__ == "__main__":
    unittest.main()
