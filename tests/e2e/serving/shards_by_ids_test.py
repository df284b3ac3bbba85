"""Tables whose rows have ids of 64 bits, divided over three CPU nodes.

The oracles are a CPU node with the whole tables and the PyTorch model, which takes the row
number of each id.
"""

import re
import unittest

import torch
from safetensors.torch import save_file

from scripts.lib import delta_push, deltas
from tests.e2e import support

try:
    from tritonclient.utils import InferenceServerException

    from tests.e2e.serving.shard_group import POOLED, SHARDS, TOLERANCE, ShardGroup
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

DIM, ITEMS, SEED = 16, 40, 17
# The first two are divided by a hash of the id; "one" is larger than
# --shard-tables-from and has one owner; "tiny" is at each node; the rows of "plain"
# have no ids.
ROWS = {"sum": 3000, "mean": 3000, "one": 500, "tiny": 20, "plain": 300}
WITH_IDS = ("sum", "mean", "one", "tiny")
# Rows that bags leave out. Of an Embedding it matters to training only.
PADDING = {"sum": 4, "mean": 5, "one": 3}
MORE = 30  # ids that deltas bring to "sum"
LENIENT = ('parameters { key: "out_of_range_ids" value { string_value: "default" } }\n'
           'parameters { key: "lost_shard" value { string_value: "zero" } }\n')


class Ranker(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.sum, self.mean = (torch.nn.EmbeddingBag(
            ROWS[mode], DIM, mode=mode, include_last_offset=True, padding_idx=PADDING[mode])
            for mode in ("sum", "mean"))
        self.one, self.tiny, self.plain = (
            torch.nn.Embedding(ROWS[name], DIM, padding_idx=PADDING.get(name))
            for name in ("one", "tiny", "plain"))
        for name, row in PADDING.items():  # PyTorch makes it zeros
            getattr(self, name).weight.data[row] = 1
        self.top = torch.nn.Linear(5 * DIM, 1)

    def forward(self, sums, means, offsets, one, tiny, plain):
        vectors = torch.cat([
            self.sum(sums, offsets), self.mean(means, offsets), self.one(one),
            self.tiny(tiny), self.plain(plain)], 1)
        return torch.sigmoid(self.top(vectors)).squeeze(1)


TABLES = {"sums": "sum", "means": "mean", "one": "one", "tiny": "tiny", "plain": "plain"}


def make_request(lengths):
    """Row numbers."""
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    count = int(offsets[-1])
    request = {
        "sums": torch.randint(0, ROWS["sum"], (count,)),
        "means": torch.randint(0, ROWS["mean"], (count,)),
        "offsets": offsets,
        **{name: torch.randint(0, ROWS[name], (len(lengths),))
           for name in ("one", "tiny", "plain")},
    }
    for name in ("sums", "means", "one"):
        request[name][::7] = PADDING[TABLES[name]]
    return request


class ShardsByIds(ShardGroup):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(SEED)
        cls.model = Ranker().eval()
        cls.ids = {name: torch.randint(-(2**63), 2**63 - 1, (ROWS[name] + MORE,))
                   for name in WITH_IDS}
        cls.ones = make_request(torch.ones(ITEMS, dtype=torch.int64))
        cls.pooled = make_request(torch.randint(0, 9, (ITEMS,)))
        (cls.folder / "tables").mkdir()
        tensors = {f"{name}.weight": getattr(cls.model, name).weight.detach()
                   for name in ROWS}
        for name in WITH_IDS:
            tensors[f"{name}.weight.ids"] = cls.ids[name][:ROWS[name]].clone()
        save_file(tensors, cls.folder / "tables" / "tables.safetensors")
        batch, count = (torch.export.Dim(n, min=2) for n in ("batch", "count"))
        shapes = ({0: count}, {0: count}, {0: batch + 1}, {0: batch}, {0: batch}, {0: batch})
        cls.start_nodes(cls.model, cls.pooled, shapes, 0.01, LENIENT)

    @classmethod
    def flags(cls, shard):
        # The second shard reads its rows from disk.
        disk = ("--table-memory", "disk", "--row-cache-mib", 1) if shard == 1 else ()
        return ("--deltas-poll", "0.02", "--deltas-by-request", "--deltas-new-ids", MORE,
                "--deltas-folder", cls.folder / f"deltas-{shard}", *disk)

    def by_ids(self, request):
        """The request as clients send it."""
        return {name: self.ids[TABLES[name]][tensor] if TABLES.get(name) in WITH_IDS else tensor
                for name, tensor in request.items()}

    def check(self, requests, model, name="strict"):
        """Requests by rows, of which `model` has all."""
        for request, tolerance in requests:
            wanted, _ = self.ask(self.plain, self.by_ids(request), name)
            with torch.no_grad():
                self.assert_near(wanted, model(**request), TOLERANCE)
            for node in self.nodes:
                scores, parameters = self.ask(node, self.by_ids(request), name)
                self.assertNotIn("lost_ids", parameters)
                self.assert_near(scores, wanted, tolerance)

    def test_1_scores_are_those_of_one_process(self):
        for name in ("strict", "lenient"):
            self.check(((self.ones, 0), (self.pooled, POOLED)), self.model, name)
        for node in self.nodes:
            node.await_log(re.compile("has answered its [1-9] check requests"))

    def test_2_packages_have_their_rows_alone(self):
        total = 0
        for shard in range(SHARDS):
            self.assertIn(f"shard {shard} of 3: ", self.printed)
            total += (self.packages[shard] / "strict" / "1" / "cn_weights.bin").stat().st_size
        # "tiny", "top" and the default rows are in each package.
        row = DIM * 4 + 8
        self.assertLess(total, (sum(ROWS.values()) + SHARDS * ROWS["tiny"]) * row + 3 * 4096)

    def test_3_unknown_ids(self):
        bad = {name: tensor.clone() for name, tensor in self.by_ids(self.pooled).items()}
        unknown = torch.randint(-(2**63), 2**63 - 1, (9,))
        bad["means"][3:12] = unknown
        bad["one"][5] = unknown[0]
        bad["tiny"][7] = unknown[1]
        errors = set()
        for node in (self.plain, *self.nodes):
            with self.assertRaises(InferenceServerException) as caught:
                self.ask(node, {**bad, "tiny": self.by_ids(self.pooled)["tiny"]})
            errors.add(str(caught.exception.message()))
        self.assertEqual(len(errors), 1, errors)
        self.assertIn(f"table 'mean.weight': id {unknown[0]} at position 3 has no row",
                      errors.pop())
        rows = {name: tensor.clone() for name, tensor in self.pooled.items()}
        rows["means"][3:12] = 0
        rows["one"][5] = 0
        rows["tiny"][7] = 0
        for node in (self.plain, *self.nodes):
            scores, parameters = self.ask(node, bad, "lenient")
            self.assertEqual(parameters["replaced_ids"].int64_param, 11)
            with torch.no_grad():
                self.assert_near(scores, self.model(**rows), TOLERANCE)

    def test_4_a_lost_shard(self):
        self.nodes[1].kill()
        node = self.nodes[0]
        support.wait_until(lambda: not self.ready(node), "strict is not ready")
        with self.assertRaises(InferenceServerException) as caught:
            self.ask(node, self.by_ids(self.pooled))
        self.assertIn("shard 1 (127.0.0.1:", str(caught.exception.message()))
        _, parameters = self.ask(node, self.by_ids(self.pooled), "lenient")
        lost = parameters["lost_ids"].int64_param
        both = len(self.pooled["sums"]) + len(self.pooled["means"])
        self.assertGreater(lost, both / 6)
        self.assertLess(lost, both / 2 + ITEMS)
        self.nodes[1].close()
        self.start(1)
        for each in self.nodes:
            self.await_ready(each)
        support.wait_until(
            lambda: "lost_ids" not in self.ask(node, self.by_ids(self.pooled), "lenient")[1],
            "no ids are lost")
        self.check(((self.ones, 0), (self.pooled, POOLED)), self.model)

    def test_5_changed_rows_and_new_ids(self):
        trainer = deltas.Folder(self.folder / "trainer", "strict", 1)
        wide = Ranker().eval()
        wide.load_state_dict(self.model.state_dict())
        wide.sum = torch.nn.EmbeddingBag.from_pretrained(
            torch.cat([wide.sum.weight.detach(), torch.zeros(MORE, DIM)]), mode="sum",
            include_last_offset=True, padding_idx=PADDING["sum"])

        def change(new):
            """Changes half of all rows, the first among them; `new`: ids that come."""
            changes = {}
            with torch.no_grad():
                for name in WITH_IDS:
                    weight = getattr(wide, name).weight
                    rows = torch.cat([torch.tensor([0]),
                                      1 + torch.randperm(ROWS[name] - 1)[:ROWS[name] // 2]])
                    if name == "sum":
                        rows = torch.cat([rows, ROWS[name] + torch.arange(new)])
                    weight[rows] = torch.randn(len(rows), DIM)
                    ids, order = self.ids[name][rows].sort()
                    changes[f"{name}.weight"] = deltas.Rows(ids, weight[rows[order]])
            return trainer.write(changes)

        def push_and_await(sequence):
            for node in (self.plain, *self.nodes):
                delta_push.push(trainer, node.address)
            for node in (self.plain, *self.nodes):
                support.wait_until(
                    lambda: self.sequence(node) == sequence, f"delta {sequence} is served")

        push_and_await(change(0))
        self.check(((self.ones, 0), (self.pooled, POOLED)), wide)
        push_and_await(change(MORE))
        asked = {name: tensor.clone() for name, tensor in self.pooled.items()}
        asked["sums"][:MORE] = ROWS["sum"] + torch.arange(MORE)
        self.check(((self.ones, 0), (asked, POOLED)), wide)
        # An id that goes is unknown again, wherever its row was. Bags still leave out the
        # padding row's.
        gone = torch.tensor([7, 8, 9, ROWS["sum"] + 1, ROWS["sum"] + 2])
        push_and_await(trainer.write({"sum.weight": deltas.Rows(
            torch.tensor([], dtype=torch.int64), torch.zeros(0, DIM),
            self.ids["sum"][torch.cat([gone, torch.tensor([PADDING["sum"]])])].sort().values)}))
        for row in gone:
            request = {name: tensor.clone() for name, tensor in self.ones.items()}
            request["sums"][4] = row
            for node in (self.plain, *self.nodes):
                with self.assertRaisesRegex(
                        InferenceServerException,
                        f"id {self.ids['sum'][row]} at position 4 has no row"):
                    self.ask(node, self.by_ids(request))
        # A shard that comes back has the changed rows.
        self.nodes[0].kill()
        self.nodes[0].close()
        self.start(0)
        for node in self.nodes:
            self.await_ready(node)
        asked["sums"][(asked["sums"] < 10) & (asked["sums"] != PADDING["sum"])] = 20
        asked["sums"][1:3] = 20
        self.check(((asked, POOLED),), wide)

    def sequence(self, node):
        request = {name: tensor.clone() for name, tensor in self.ones.items()}
        request["sums"][:] = 20
        parameters = self.ask(node, self.by_ids(request))[1]
        return parameters["delta_sequence"].int64_param if "delta_sequence" in parameters else 0


if __name__ == "__main__":
    unittest.main()
