"""Deltas of embedding tables, from scripts/delta.py to scores.

The oracle is the PyTorch model with the changed tables.
"""

import json
import os
import pathlib
import shutil
import tempfile
import threading
import time
import unittest
import urllib.request
from unittest import mock

import torch
from safetensors.torch import save_file

from scripts.lib import delta_push, deltas
from tests.e2e import support
from tests.scripts import delta_sources_test

try:
    import grpc
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    from tests.e2e.kserve_requests import infer_inputs
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

MODEL, ROWS, DIM, ITEMS, SEED = "ranker", 500, 32, 33, 7
TOLERANCE = 2e-6  # of scores after a sigmoid
BURST = 20


class Ranker(torch.nn.Module):
    """A bag of ids and one id per item, of two tables."""

    def __init__(self):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", include_last_offset=True)
        self.one = torch.nn.Embedding(ROWS, DIM)
        self.top = torch.nn.Linear(2 * DIM, 1)

    def forward(self, ids, offsets, one):
        both = torch.cat([self.bag(ids, offsets), self.one(one)], 1)
        return torch.sigmoid(self.top(both)).squeeze(1)


class Deltas(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-deltas-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        torch.manual_seed(SEED)
        cls.model = Ranker().eval()
        lengths = torch.randint(1, 9, (ITEMS,))
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        cls.request = {
            "ids": torch.randint(0, ROWS, (int(offsets[-1]),)),
            "offsets": offsets,
            "one": torch.randint(0, ROWS, (ITEMS,)),
        }
        batch, count = (torch.export.Dim(n, min=2) for n in ("batch", "count"))
        program = torch.export.export(
            cls.model, tuple(cls.request.values()),
            dynamic_shapes=({0: count}, {0: batch + 1}, {0: batch}),
        )
        torch.export.save(program, cls.folder / "model.pt2")
        save_file(cls.request, cls.folder / "sample.safetensors")
        support.add_model(cls.folder / "full", MODEL, cls.folder / "model.pt2")

    def setUp(self):
        # A repository and tables of its own; what each delta's scores are.
        self.repository = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "repo"
        shutil.copytree(self.folder / "full", self.repository)
        self.version = self.repository / MODEL / "1"
        self.deltas = deltas.Folder(self.version / "deltas", MODEL, 1)
        self.tables = {
            name: value.clone()
            for name, value in self.model.state_dict().items()
            if name in ("bag.weight", "one.weight")
        }
        self.expected = {0: self.scores()}
        self.hn = support.gpu_node(self.repository)
        self.addCleanup(self.hn.close)
        self.start_cn()

    def start_cn(self, by_request=True, arguments=()):
        self.cn = support.cpu_node(
            self.repository, [self.hn.address], "--deltas-poll", "0.02",
            *(["--deltas-by-request"] if by_request else []), *arguments,
        )
        self.addCleanup(self.cn.close)
        self.client = triton.InferenceServerClient(self.cn.address)

    def scores(self):
        changed = Ranker().eval()
        changed.load_state_dict({**self.model.state_dict(), **self.tables})
        with torch.no_grad():
            return changed(**self.request)

    def ask(self):
        """The sequence in an answer, whose scores must be those of its state."""
        inputs = infer_inputs(self.request)
        answer = self.client.infer(MODEL, inputs, client_timeout=30)
        parameters = answer.get_response().parameters
        sequence = 0
        if "delta_sequence" in parameters:
            sequence = parameters["delta_sequence"].int64_param
        error = torch.from_numpy(answer.as_numpy("output_0").copy())
        error = (error - self.expected[sequence]).abs().max().item()
        self.assertLessEqual(error, TOLERANCE, f"scores after delta {sequence}")
        return sequence

    def first_answer(self):
        """After a start: no answer may come before the deltas are applied."""
        found = []

        def answered():
            try:
                found.append(self.ask())
            except InferenceServerException:
                return False
            return True

        support.wait_until(answered, "the node answers")
        return found[0]

    def await_delta(self, sequence):
        support.wait_until(
            lambda: self.ask() == sequence, f"delta {sequence} is served"
        )

    def delta(self, command, *arguments):
        return support.run(
            support.PYTHON, "scripts/delta.py", command, self.version, *arguments
        ).stdout

    def change(self, count, folder=None, created=None):
        """New values of `count` rows of both tables, as a delta; its sequence."""
        folder = folder or self.deltas
        changes = {}
        for name, table in self.tables.items():
            # The first ids are among those of the request.
            asked = self.request["one" if name == "one.weight" else "ids"]
            ids = torch.cat([asked, torch.randperm(ROWS)]).unique()[:count]
            ids = torch.cat([asked[:1], ids[ids != asked[0]]])
            table[ids] = torch.randn(len(ids), DIM)
            changes[name] = deltas.Rows(ids, table[ids])
        sequence = folder.last()[0] + 1
        self.expected[sequence] = self.scores()  # known before it is served
        return folder.write(changes, created)

    def metric(self, name):
        with urllib.request.urlopen(self.cn.metrics_url) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name + "{"):
                    return float(line.rpartition(" ")[2])
        return None

    def refused(self, reason):
        support.wait_until(lambda: reason in self.cn.output(), f"'{reason}' is logged")

    def test_scores_are_those_of_the_changed_tables(self):
        self.assertEqual(self.first_answer(), 0)
        # The difference of two checkpoints.
        before, after = self.folder / "before.pt", self.folder / "after.safetensors"
        weights = {**self.model.state_dict(), **self.tables}
        torch.save({"epoch": 1, "model_state_dict": weights}, before)
        for name in self.tables:
            self.tables[name] = self.tables[name].clone()
            self.tables[name][::3] = torch.randn(len(range(0, ROWS, 3)), DIM)
        save_file({**weights, **self.tables, "top.bias": torch.zeros(1)}, after)
        self.expected[1] = self.scores()
        self.assertGreater(
            (self.expected[1] - self.expected[0]).abs().max().item(), 0.01
        )
        printed = self.delta("diff", "--before", before, "--after", after)
        self.assertIn("dense weights differ, which needs a new version", printed)
        self.assertIn("top.bias", printed)
        self.assertIn("bag.weight: 167 rows, 0 deleted", printed)
        self.await_delta(1)
        # Rows of a file; deleted rows are zero.
        ids, deleted = torch.tensor([9, 4]), self.request["one"][:3].unique()
        self.tables["one.weight"][deleted] = 0
        self.tables["bag.weight"][ids] = 7.5
        save_file(
            {
                "bag.weight/ids": ids,
                "bag.weight/rows": self.tables["bag.weight"][ids].half(),  # exactly
                "one.weight/deleted": deleted,
            },
            self.folder / "rows.safetensors",
        )
        self.expected[2] = self.scores()
        self.delta("rows", "--rows", self.folder / "rows.safetensors")
        self.await_delta(2)
        self.assertIn(
            "no row differs", self.delta("diff", "--before", after, "--after", after)
        )
        # delta.py refuses rows that a node would refuse: the node would refuse all
        # later deltas of the version, too.
        rows, nan = torch.zeros(2, DIM), torch.full((2, DIM), float("nan"))
        for table, ids, values, reason in (
            ("users", [1, 2], rows, "no table 'users'; it has bag.weight, one.weight"),
            ("one.weight", [1, ROWS], rows, f"ids 1 to {ROWS} are not all in [0, {ROWS})"),
            ("one.weight", [1, 2], rows[:, 1:], f"rows of {DIM - 1}, not {DIM}"),
            ("one.weight", [1, 2], rows.int(), "rows are torch.int32; wanted float32"),
            ("one.weight", [1, 2], nan, "a row has a NaN"),
        ):
            wrong = self.folder / "wrong.safetensors"
            save_file(
                {f"{table}/ids": torch.tensor(ids), f"{table}/rows": values.contiguous()}, wrong
            )
            done = support.run(
                support.PYTHON, "scripts/delta.py", "rows", self.version, "--rows", wrong,
                check=False,
            )
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(reason, done.stderr)
        self.assertEqual(self.deltas.last()[0], 2)
        for name, value in (
            ("refract_deltas_applied_total", 2),
            ("refract_deltas_refused_total", 0),
            ("refract_delta_rows_total", 2 * 167 + 2 + len(deleted)),
            ("refract_delta_backlog", 0),
            ("refract_delta_sequence", 2),
        ):
            self.assertEqual(self.metric(name), value, name)
        age = self.metric("refract_delta_age_seconds")
        self.assertTrue(0 <= age < 600, age)
        # Both become one delta, which a node that starts reads.
        self.assertIn("2 deltas merged", self.delta("merge"))
        self.assertEqual(len(list(self.deltas.path.glob("*.json"))), 1)
        self.assertEqual(self.ask(), 2)
        self.cn.kill()
        self.start_cn()
        self.assertEqual(self.first_answer(), 2)
        # The clock of this writer is ahead.
        self.assertEqual(self.change(20, created=time.time() + 3600), 3)
        self.await_delta(3)
        self.assertEqual(self.metric("refract_delta_age_seconds"), 0)

    def test_applying_yields_to_requests_and_goes_on(self):
        # A limit that every request exceeds: the share sinks, and not to zero.
        self.cn.kill()
        self.start_cn(arguments=("--deltas-p99-ms", "0.001"))
        self.assertEqual(self.first_answer(), 0)

        def idle_threads():
            tasks = pathlib.Path(f"/proc/{self.cn.process.pid}/task").iterdir()
            return [os.sched_getscheduler(int(task.name)) for task in tasks].count(os.SCHED_IDLE)

        # The thread that reads tables ahead of requests ends soon after the start.
        support.wait_until(lambda: idle_threads() == 1, "only the deltas' thread is idle")
        for sequence in range(1, 4):
            self.assertEqual(self.change(ROWS), sequence)
            for _ in range(120):
                self.ask()
            self.await_delta(sequence)

    def test_deltas_of_trainers(self):
        self.assertEqual(self.first_answer(), 0)
        ids = self.request["one"].unique()
        weight = self.tables["one.weight"]
        weight[ids[::2]] = torch.randn(len(ids[::2]), DIM)
        self.expected[1] = self.scores()
        torch.save({"one": ids[::2]}, self.folder / "ids.pt")
        torch.save(self.tables, self.folder / "weights.pt")
        self.delta("torchrec", "--tracked", self.folder / "ids.pt",
                   "--weights", self.folder / "weights.pt")
        self.await_delta(1)
        if delta_sources_test.pyarrow is None:
            self.skipTest("pyarrow is missing")
        weight[ids] = torch.randn(len(ids), DIM)
        self.expected[2] = self.scores()
        outbox = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        for rank in range(2):
            mine = ids[rank::2]
            delta_sources_test.write(
                outbox / f"delta_step_40_rank_{rank}_of_2.parquet",
                {"items": (mine.tolist(), weight[mine].tolist())}, rank=rank, world=2,
            )
        self.delta("easyrec", outbox, "--rename", "items=one.weight")
        self.await_delta(2)

    def outbox(self):
        """A folder of deltas on a trainer's machine."""
        return deltas.Folder(tempfile.mkdtemp(dir=self.folder), MODEL, 1)

    def test_no_delta_acknowledged_over_grpc_is_lost_by_kill_9(self):
        self.assertEqual(self.first_answer(), 0)
        outbox, known = self.outbox(), 0
        for count in (1, BURST // 2, BURST // 4):
            for _ in range(count):
                self.change(100, outbox)
            printed = self.delta(
                "push", "--folder", outbox.path, "--to", self.cn.address
            )
            self.assertIn(f"{count} deltas of", printed)
            self.cn.kill()  # acknowledged, and perhaps not applied
            known += count
            self.start_cn()
            self.assertEqual(self.first_answer(), known)
        names = {f.name for f in outbox.path.iterdir() if f.name[0] != "."}
        self.assertEqual(
            names, {f.name for f in self.deltas.path.iterdir() if f.name[0] != "."}
        )
        for name in names:
            self.assertEqual(
                (self.deltas.path / name).read_bytes(), (outbox.path / name).read_bytes()
            )
        # Sent again, without rows: after an acknowledgement that was lost, and after a merge.
        with mock.patch.object(delta_push, "append", wraps=delta_push.append) as append:
            self.assertEqual(delta_push.push(outbox, self.cn.address), 0)
        self.assertEqual([len(call.args[2]) for call in append.mock_calls], [0] * known)
        self.deltas.merge()
        self.assertEqual(delta_push.push(outbox, self.cn.address), 0)
        self.assertEqual(self.ask(), known)
        self.change(100, outbox)
        self.assertEqual(delta_push.push(outbox, self.cn.address), 1)
        self.await_delta(known + 1)
        # A folder that has gone is filled again: a start reads nothing else.
        shutil.rmtree(self.deltas.path)
        self.assertEqual(self.ask(), known + 1)
        self.change(100, outbox)
        self.assertEqual(delta_push.push(outbox, self.cn.address), known + 2)
        self.await_delta(known + 2)
        self.cn.kill()
        self.start_cn()
        self.assertEqual(self.first_answer(), known + 2)

    def test_what_does_not_fit_is_refused_over_grpc(self):
        self.assertEqual(self.first_answer(), 0)
        outbox = self.outbox()
        self.change(20, outbox)
        delta_push.push(outbox, self.cn.address)
        self.await_delta(1)
        state, before = outbox.last(), sorted(self.deltas.path.iterdir())
        row = {"one.weight": deltas.Rows([3], torch.ones(1, DIM))}
        nan = {"one.weight": deltas.Rows([3], torch.full((1, DIM), float("nan")))}
        cases = (
            ({"parent": (4, "x")}, row, None, "FAILED_PRECONDITION", "gap: the parent is"),
            ({"parent": (1, "x"), "sequence": 2}, row, None, "FAILED_PRECONDITION",
             "wrong parent"),
            ({"parent": state}, row, -1, "DATA_LOSS", "sha256"),
            ({"parent": state}, nan, None, "INVALID_ARGUMENT", "column 0 is nan"),
            ({"parent": state}, {"users": row["one.weight"]}, None, "NOT_FOUND",
             "no table 'users'"),
        )
        with delta_push.channel(self.cn.address) as channel:
            def send(folder, spoil=None):
                ((sequence, manifest),) = folder.manifests().items()
                rows = bytearray((folder.path / manifest["rows"]["file"]).read_bytes())
                if spoil is not None:
                    rows[spoil] ^= 1
                text = (folder.path / deltas.name_of(sequence)).read_bytes()
                return delta_push.append(channel, text, bytes(rows))

            for options, tables, spoil, code, reason in cases:
                with self.subTest(reason), self.assertRaises(grpc.RpcError) as raised:
                    folder = self.outbox()
                    folder.write(tables, **options)
                    send(folder, spoil)
                self.assertEqual(raised.exception.code().name, code)
                self.assertIn(reason, raised.exception.details())
                self.assertEqual(sorted(self.deltas.path.iterdir()), before)
            other = deltas.Folder(self.outbox().path, "another", 1)
            other.write(row)
            with self.assertRaises(grpc.RpcError) as raised:
                send(other)
            self.assertEqual(raised.exception.code().name, "NOT_FOUND")
            # Two writers: at the same time, and one after the other.
            folder = self.outbox()
            folder.write(row, parent=state)
            with self.deltas.locked(), self.assertRaises(grpc.RpcError) as raised:
                send(folder)
            self.assertEqual(raised.exception.code().name, "ABORTED")
            self.assertIn("another writer", raised.exception.details())
            self.change(20)
            with self.assertRaises(grpc.RpcError) as raised:
                send(folder)
            self.assertEqual(raised.exception.code().name, "FAILED_PRECONDITION")
            self.assertIn("Another writer has added", raised.exception.details())
        self.await_delta(2)
        # A trainer that begins anew, whose deltas the merged one does not have.
        self.deltas.merge()
        fresh = self.outbox()
        fresh.write(row)
        with self.assertRaises(deltas.DeltaError) as raised:
            delta_push.push(fresh, self.cn.address)
        self.assertIn("is not the node's last", str(raised.exception))
        # Without the option a CN takes no deltas by request.
        self.cn.kill()
        self.start_cn(by_request=False)
        self.assertEqual(self.first_answer(), 2)
        with self.assertRaises(deltas.DeltaError) as raised:
            delta_push.push(outbox, self.cn.address)
        self.assertIn("PERMISSION_DENIED: the node takes no deltas", str(raised.exception))

    def test_wrong_deltas_are_refused_by_name_and_change_nothing(self):
        self.assertEqual(self.first_answer(), 0)
        self.change(20)
        self.await_delta(1)
        # Made aside, so that the node meets them as they shall be met.
        aside = deltas.Folder(self.folder / self.id(), MODEL, 1)
        state = self.deltas.last()
        row = {"one.weight": deltas.Rows([3], torch.ones(1, DIM))}

        def bring(sequence, spoil=None):
            (manifest,) = aside.path.glob("*.json")
            rows = aside.path / json.loads(manifest.read_text())["rows"]["file"]
            if spoil is not None:
                data = bytearray(rows.read_bytes())
                data[spoil] ^= 1
                rows.write_bytes(data)
            for file in (rows, manifest):
                shutil.move(file, self.deltas.path / file.name)
            return self.deltas.path / rows.name, self.deltas.path / manifest.name

        cases = (
            ({"parent": (1, "other")}, None, "wrong parent"),
            ({"parent": state}, -1, "sha256"),
            ({"parent": (4, "x")}, None, "gap: its parent is delta 4"),
            ({"parent": state, "tables": {"users": row["one.weight"]}}, None,
             "no table 'users'"),
            ({"parent": state, "tables": {"one.weight": deltas.Rows(
                [3, ROWS], torch.ones(2, DIM))}}, None,
             f"id {ROWS} at position 1 is outside [0, {ROWS})"),
        )
        for number, (changes, spoil, reason) in enumerate(cases, 1):
            with self.subTest(reason):
                tables = changes.pop("tables", row)
                sequence = aside.write(tables, **changes)
                files = bring(sequence, spoil)
                self.refused(reason)
                self.cn.await_log(files[1].name[:26])
                self.assertEqual(self.ask(), 1)
                self.assertEqual(self.metric("refract_deltas_refused_total"), number)
                self.assertEqual(self.metric("refract_delta_backlog"), 1)
                # The manifest goes first: a manifest whose rows are gone would
                # count as refused once more.
                for file in reversed(files):
                    file.unlink()
        self.change(20)
        self.await_delta(2)

    def test_a_folder_that_begins_anew_is_named(self):
        self.assertEqual(self.first_answer(), 0)
        for _ in range(2):
            self.change(20)
        self.await_delta(2)
        for file in self.deltas.path.glob("delta-*"):
            file.unlink()
        self.cn.await_log("delta 2 has been applied and is gone")
        # The writer of an empty folder begins with sequence 1, which the node has passed.
        served = self.expected[2]
        self.change(20)
        self.change(20)
        self.expected[2] = served
        other = self.deltas.last()[1]
        self.cn.await_log(f"delta 2 is '{other}', the applied one was")
        self.assertEqual(self.ask(), 2)

    def test_no_acknowledged_delta_is_lost_by_kill_9(self):
        self.assertEqual(self.first_answer(), 0)
        # A client asks all the time; ask() compares every answer.
        seen, failures, ended = [0], [], threading.Event()

        def ask_on():
            while not ended.is_set():
                try:
                    seen.append(self.ask())
                except InferenceServerException:
                    return  # killed
                except AssertionError as error:
                    failures.append(error)
                    return

        for killed in range(3):
            thread = threading.Thread(target=ask_on)
            thread.start()
            for _ in range(BURST // (killed + 1)):
                self.change(100)
            # Mid-way: some of the deltas are applied, some are not.
            self.cn.kill()
            thread.join()
            self.assertEqual(failures, [])
            self.assertEqual(seen, sorted(seen))
            last = self.deltas.last()[0]
            self.start_cn()
            self.assertEqual(self.first_answer(), last)
            seen = [last]
        print(f"{last} deltas, 3 kills, the last saw delta {last}")


if __name__ == "__main__":
    unittest.main()
