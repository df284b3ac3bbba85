"""Dense weights and rows that change together: scripts/delta.py version.

The oracle is the PyTorch model with the weights and tables of each state.
"""

import os
import pathlib
import shutil
import tempfile
import threading
import unittest
from unittest import mock

import torch
from safetensors.torch import save_file

from scripts.lib import deltas, next_version
from tests.e2e import support
from tests.e2e.serving import deltas_test
from tests.e2e.serving.deltas_test import DIM, ITEMS, MODEL, ROWS, TOLERANCE

try:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    from tests.e2e.kserve_requests import infer_inputs
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

POLL = ("--model-control-mode", "poll", "--repository-poll-secs", "0.2")


class NextVersion(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-next-version-"))
        self.addCleanup(shutil.rmtree, self.folder)
        torch.manual_seed(13)
        self.model = deltas_test.Ranker().eval()
        offsets = torch.arange(0, 3 * ITEMS + 1, 3)
        self.request = {
            "ids": torch.randint(0, ROWS, (3 * ITEMS,)), "offsets": offsets,
            "one": torch.randint(0, ROWS, (ITEMS,)),
        }
        items, ids = (torch.export.Dim(n, min=2) for n in ("items", "count"))
        program = torch.export.export(
            self.model, tuple(self.request.values()),
            dynamic_shapes=({0: ids}, {0: items + 1}, {0: items}),
        )
        torch.export.save(program, self.folder / "model.pt2")
        save_file(self.request, self.folder / "sample.safetensors")
        (self.folder / "tables").mkdir()
        save_file(
            {n: self.model.get_parameter(n).detach() for n in ("bag.weight", "one.weight")},
            self.folder / "tables" / "tables.safetensors",
        )
        self.repository = self.folder / "repo"
        support.add_model(self.repository, MODEL, self.folder / "model.pt2")
        self.expected = {(1, 0): self.scores()}
        self.hn = support.gpu_node(self.repository, *POLL)
        self.addCleanup(self.hn.close)
        self.start_cn()

    def start_cn(self):
        self.cn = support.cpu_node(
            self.repository, [self.hn.address], "--deltas-poll", "0.02", *POLL
        )
        self.addCleanup(self.cn.close)

    def scores(self):
        with torch.no_grad():
            return self.model(**self.request)

    def ask(self):
        """(version, sequence) of an answer, whose scores must be those of this state."""
        inputs = infer_inputs(self.request)
        client = triton.InferenceServerClient(self.cn.address)
        answer = client.infer(MODEL, inputs, client_timeout=30)
        response = answer.get_response()
        sequence = 0
        if "delta_sequence" in response.parameters:
            sequence = response.parameters["delta_sequence"].int64_param
        state = int(response.model_version), sequence
        error = torch.from_numpy(answer.as_numpy("output_0").copy()) - self.expected[state]
        self.assertLessEqual(error.abs().max().item(), TOLERANCE, f"scores of {state}")
        return state

    def rows(self):
        """New values of rows that the request reads."""
        changes = {}
        with torch.no_grad():
            for name, asked in (("bag.weight", "ids"), ("one.weight", "one")):
                ids = self.request[asked].unique()[::2].contiguous()
                rows = torch.randn(len(ids), DIM)
                self.model.get_parameter(name)[ids] = rows
                changes[name] = deltas.Rows(ids, rows)
        return changes

    def delta(self, version, sequence):
        changes = self.rows()
        self.expected[version, sequence] = self.scores()
        folder = deltas.Folder(self.repository / MODEL / str(version) / "deltas", MODEL, version)
        self.assertEqual(folder.write(changes), sequence)
        self.wait_for(version, sequence)

    def next_version(self, version, state, rows=None, check=True, **weights):
        """The version after `version`, which comes with `state`."""
        save_file(weights, self.folder / "weights.safetensors")
        arguments = ["--weights", self.folder / "weights.safetensors"]
        if rows is not None:
            save_file({f"{table}/{part}": getattr(changes, part)
                       for table, changes in rows.items() for part in ("ids", "rows")},
                      self.folder / "rows.safetensors")
            arguments += ["--rows", self.folder / "rows.safetensors"]
        if check:
            with torch.no_grad():
                for name, value in weights.items():
                    self.model.get_parameter(name).copy_(value)
            self.expected[state] = self.scores()
        return support.run(
            support.PYTHON, "scripts/delta.py", "version",
            self.repository / MODEL / str(version), *arguments, "--no-golden", check=check,
        )

    def wait_for(self, *state):
        support.wait_until(lambda: self.ask() == state, f"{state} is served")

    def test_dense_weights_and_rows_become_visible_together(self):
        self.wait_for(1, 0)
        seen, failures, ended = [], [], threading.Event()

        def ask_on():
            try:
                while not ended.is_set():
                    seen.append(self.ask())
            except (AssertionError, InferenceServerException, KeyError) as error:
                failures.append(error)

        threads = [threading.Thread(target=ask_on) for _ in range(2)]
        for thread in threads:
            thread.start()
        self.delta(1, 1)
        self.delta(1, 2)
        before = self.scores()
        rows = self.rows()
        self.next_version(1, (2, 3), rows, **{
            "top.weight": torch.randn(1, 2 * DIM), "top.bias": torch.randn(1)})
        self.assertGreater((self.expected[2, 3] - before).abs().max().item(), 0.01)
        self.wait_for(2, 3)
        self.delta(2, 4)
        # Some of the dense weights alone; the others stay those of version 2.
        self.next_version(2, (3, 4), **{"top.bias": torch.randn(1)})
        self.wait_for(3, 4)
        ended.set()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertLessEqual({(1, 2), (2, 3), (3, 4)}, set(seen))
        print(f"{len(seen)} answers beside the changes, of {sorted(set(seen))}")
        # The tables' bytes are on the disk once.
        (file,) = (self.repository / MODEL / "3" / "tables").glob("tables*.safetensors")
        self.assertEqual(os.stat(file).st_nlink, 3)
        self.cn.kill()
        self.start_cn()
        self.wait_for(3, 4)

    def test_an_import_meanwhile_removes_nothing(self):
        """`refract import` removes folders that killed processes left."""

        def add_other(*_):
            support.add_model(self.repository, "other", self.folder / "model.pt2")

        with mock.patch.object(next_version, "_copy_plan", add_other):
            made = next_version.make(
                self.repository / MODEL / "1", {"top.bias": torch.zeros(1)}, golden=False
            )
        self.assertTrue((made / "graph.pb").is_file())
        self.assertEqual(list((self.repository / MODEL).glob(".tmp-*")), [])

    def test_what_does_not_fit_makes_no_version(self):
        self.wait_for(1, 0)
        weight = {"top.weight": torch.zeros(1, 2 * DIM)}
        ids, rows = torch.tensor([3, ROWS]), torch.ones(2, DIM)
        cases = (
            ({"top.bias": torch.zeros(2)}, None, "tensor top.bias: is float32[2]"),
            ({"other": torch.zeros(2)}, None, "tensor other: the model has no parameter"),
            ({"bag.weight": torch.zeros(ROWS, DIM)}, None, "'bag.weight' is a table"),
            (weight, {"users": deltas.Rows(ids, rows)}, "the model has no table 'users'"),
            (weight, {"one.weight": deltas.Rows(ids, rows)},
             f"table 'one.weight': ids 3 to {ROWS} are not all in [0, {ROWS})"),
            (weight, {"one.weight": deltas.Rows(ids - 1, rows[:, 1:].contiguous())},
             f"table 'one.weight': rows of {DIM - 1}, not {DIM}"),
            (weight, {"one.weight": deltas.Rows(ids - 1, rows * float("nan"))},
             "table 'one.weight': a row has a NaN"),
        )
        for weights, changes, reason in cases:
            with self.subTest(reason):
                done = self.next_version(1, None, changes, check=False, **weights)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(reason, done.stderr)
                self.assertEqual(
                    sorted(f.name for f in (self.repository / MODEL).iterdir()),
                    ["1", "config.pbtxt"],
                )
        self.assertEqual(self.ask(), (1, 0))


if __name__ == "__main__":
    unittest.main()
