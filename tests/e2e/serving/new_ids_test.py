"""Ids that deltas add to a table and remove from it, with a GPU node and requests beside.

The oracle is the PyTorch model whose table has a row for each id.
"""

import pathlib
import shutil
import tempfile
import threading
import unittest
import urllib.request

import torch
from safetensors.torch import save_file

from scripts.lib import delta_push, deltas
from tests.e2e import support
from tests.e2e.serving import deltas_test
from tests.e2e.serving.deltas_test import DIM, ITEMS, MODEL, ROWS, TOLERANCE

try:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    from tests.e2e.kserve_requests import infer_inputs
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

MORE, MOST, SEED = 30, 10, 11


class NewIds(unittest.TestCase):
    def setUp(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-new-ids-"))
        self.addCleanup(shutil.rmtree, folder)
        torch.manual_seed(SEED)
        self.model = deltas_test.Ranker().eval()
        # Rows of the table as imported, and rows of the ids that come.
        self.ids = torch.randint(-(2**63), 2**63 - 1, (ROWS + MORE,))
        self.rows = torch.cat([self.model.bag.weight.detach(), torch.zeros(MORE, DIM)])
        self.there = torch.arange(ROWS + MORE) < ROWS
        lengths = torch.randint(1, 9, (ITEMS,))
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        count = int(offsets[-1])
        sample = {
            "ids": torch.randint(0, ROWS, (count,)), "offsets": offsets,
            "one": torch.randint(0, ROWS, (ITEMS,)),
        }
        # By place in self.ids: all new ids, and imported ids.
        asked = torch.cat([torch.arange(ROWS, ROWS + MORE), sample["ids"][MORE:]])
        self.asked = {**sample, "ids": asked[torch.randperm(count)]}
        items, ids = (torch.export.Dim(n, min=2) for n in ("items", "count"))
        program = torch.export.export(
            self.model, tuple(sample.values()),
            dynamic_shapes=({0: ids}, {0: items + 1}, {0: items}),
        )
        torch.export.save(program, folder / "model.pt2")
        save_file(sample, folder / "sample.safetensors")
        (folder / "tables").mkdir()
        save_file(
            {"bag.weight": self.rows[:ROWS].clone(), "bag.weight.ids": self.ids[:ROWS].clone(),
             "one.weight": self.model.one.weight.detach()},
            folder / "tables" / "tables.safetensors",
        )
        self.repository = folder / "repo"
        support.add_model(self.repository, MODEL, folder / "model.pt2")
        config = self.repository / MODEL / "config.pbtxt"
        config.write_text(
            config.read_text() + 'parameters { key: "out_of_range_ids.bag.weight" '
            'value { string_value: "default" } }\n'
        )
        self.outbox = deltas.Folder(folder / "outbox", MODEL, 1)
        self.expected = {0: self.scores()}
        self.hn = support.gpu_node(self.repository)
        self.addCleanup(self.hn.close)
        self.start_cn()

    def start_cn(self):
        self.cn = support.cpu_node(
            self.repository, [self.hn.address], "--deltas-poll", "0.02",
            "--deltas-by-request", "--deltas-new-ids", MOST,
        )
        self.addCleanup(self.cn.close)

    def scores(self):
        """Of the request in the state that self.rows and self.there describe."""
        wide = deltas_test.Ranker().eval()
        wide.bag = torch.nn.EmbeddingBag.from_pretrained(
            self.rows, mode="sum", include_last_offset=True
        )
        wide.one, wide.top = self.model.one, self.model.top
        ids = self.asked["ids"]
        missing = ~self.there[ids]
        with torch.no_grad():
            scores = wide(**{**self.asked, "ids": torch.where(missing, 0, ids)})
        return scores, int(missing.sum())

    def ask(self):
        """The sequence in an answer, whose scores must be those of its state."""
        inputs = infer_inputs({**self.asked, "ids": self.ids[self.asked["ids"]]})
        client = triton.InferenceServerClient(self.cn.address)
        answer = client.infer(MODEL, inputs, client_timeout=30)
        parameters = answer.get_response().parameters
        state = (
            parameters["delta_sequence"].int64_param if "delta_sequence" in parameters else 0
        )
        scores, missing = self.expected[state]
        error = torch.from_numpy(answer.as_numpy("output_0").copy()) - scores
        self.assertLessEqual(error.abs().max().item(), TOLERANCE, f"after delta {state}")
        replaced = parameters["replaced_ids"].int64_param if missing else 0
        self.assertEqual(replaced, missing, f"after delta {state}")
        return state

    def change(self, upserted, deleted=(), keep=True):
        """A delta of these places of self.ids in the outbox; its sequence."""
        upserted = torch.tensor(upserted, dtype=torch.int64)
        deleted = torch.tensor(deleted, dtype=torch.int64)
        rows = torch.randn(len(upserted), DIM)
        if keep:
            self.rows[upserted], self.there[upserted] = rows, True
            self.there[deleted] = False
            self.expected[self.outbox.last()[0] + 1] = self.scores()
        return self.outbox.write({"bag.weight": deltas.Rows(
            self.ids[upserted], rows, self.ids[deleted])})

    def push(self):
        return delta_push.push(self.outbox, self.cn.address)

    def await_delta(self, sequence):
        support.wait_until(
            lambda: self.ask() == sequence, f"delta {sequence} is served"
        )

    def new_ids(self):
        with urllib.request.urlopen(self.cn.metrics_url) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("refract_delta_new_ids{"):
                    return float(line.rpartition(" ")[2])
        return None

    def test_new_ids_are_served_with_their_delta(self):
        support.wait_until(lambda: self.ask() == 0, "the node answers")
        # The first MOST of them come; requests see all of these or none.
        seen, failures, ended = [], [], threading.Event()

        def ask_on():
            try:
                while not ended.is_set():
                    seen.append(self.ask())
            except (AssertionError, InferenceServerException) as error:
                failures.append(error)

        threads = [threading.Thread(target=ask_on) for _ in range(2)]
        for thread in threads:
            thread.start()
        first = range(ROWS, ROWS + MOST)
        last = self.change([3, *first], [5, 6])
        self.assertEqual(self.push(), 1)
        self.await_delta(last)
        # Each delta removes the oldest of the new ids and adds another one.
        for i in range(MORE - MOST):
            last = self.change([3, *range(ROWS + i + 1, ROWS + i + MOST + 1)], [ROWS + i])
        self.assertEqual(self.push(), MORE - MOST)
        self.await_delta(last)
        ended.set()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertGreater(len(set(seen)), 2)
        print(f"{len(seen)} answers beside the deltas, of {len(set(seen))} states")
        self.assertEqual(self.new_ids(), MOST)
        # No room: refused before the delta is in the node's folder.
        folder = self.repository / MODEL / "1" / "deltas"
        before = sorted(folder.iterdir())
        self.change([ROWS, ROWS + 1], [ROWS + MORE - 1], keep=False)
        with self.assertRaises(deltas.DeltaError) as raised:
            self.push()
        self.assertIn(
            f"RESOURCE_EXHAUSTED: table 'bag.weight' would have {MOST + 1} new ids; "
            f"--deltas-new-ids allows {MOST}", str(raised.exception),
        )
        self.assertEqual(sorted(folder.iterdir()), before)
        self.assertEqual(self.ask(), last)
        for file in self.outbox.path.glob(f"*{last + 1:020d}*"):
            file.unlink()
        # An id that was there comes back; ids of the import do, too.
        last = self.change([ROWS, 5], [ROWS + MORE - 1])
        self.assertEqual(self.push(), 1)
        # Acknowledged, and perhaps not applied.
        self.cn.kill()
        self.start_cn()
        support.wait_until(lambda: self.ask() is not None, "the node answers")
        self.assertEqual(self.ask(), last)
        self.assertEqual(self.new_ids(), MOST)
        # A merged log leads to the same state.
        deltas.Folder(folder, MODEL, 1).merge()
        self.cn.kill()
        self.start_cn()
        support.wait_until(lambda: self.ask() is not None, "the node answers")
        self.assertEqual(self.ask(), last)
        self.assertEqual(self.new_ids(), MOST)


if __name__ == "__main__":
    unittest.main()
