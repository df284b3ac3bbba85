"""Ids as trainers lay them out: `refract bench serving` draws them.

Meta's DLRM has a matrix of offsets with a row for each table; the ids are lists or
a matrix. TorchRec has the ids of all tables in one list, and their lengths. DeepCTR
packs ids and dense features into one matrix of floats.
"""

import base64

import json
import pathlib
import shutil
import tempfile
import unittest

import torch
from safetensors.torch import load_file
from torch import nn

from tests.e2e import support
from tests.models.survey import forms
from tests.models.survey.case import Case, dense, ids
from tests.models.survey.interaction import DlrmFeatureMajor, feature_major_inputs

ROWS = (50, 3, 40)
DIM, DENSE = 8, 5


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, DIM, mode="sum", include_last_offset=True)
            for rows in ROWS
        )
        self.out = nn.Linear(DENSE + len(ROWS) * DIM, 1)

    def score(self, x, pooled):
        return torch.sigmoid(self.out(torch.cat([x, *pooled], 1)))


class Jagged(Bags):
    """What torch.export makes of TorchRec's KeyedJaggedTensor."""

    def forward(self, x, values, lengths):
        lengths = lengths.view(len(ROWS), -1)
        sizes = lengths.sum(1).tolist()
        for size in sizes:
            torch._check(size >= 0)
        torch._check(sum(sizes) == values.size(0))
        ends = torch.cat([lengths.new_zeros(len(ROWS), 1), lengths.cumsum(1)], 1)
        pieces = torch.split(values, sizes)
        return self.score(
            x, [table(i, o) for table, i, o in zip(self.tables, pieces, ends.unbind())]
        )


class Matrices(Bags):
    """Meta's DLRM with as many ids in each table."""

    def forward(self, x, offsets, values):
        return self.score(
            x, [table(values[k], offsets[k]) for k, table in enumerate(self.tables)]
        )


class Packed(nn.Module):
    """DeepCTR-Torch: columns of a history, an id and dense features."""

    def __init__(self):
        super().__init__()
        self.history, self.item = nn.Embedding(ROWS[0], DIM), nn.Embedding(ROWS[1], DIM)
        self.out = nn.Linear(2 * DIM + DENSE, 1)

    def forward(self, x):
        history = self.history(x[:, 1:5].long()).mean(1)
        item = self.item(x[:, 5:6].long()).flatten(1)
        return torch.sigmoid(self.out(torch.cat([history, item, x[:, :1], x[:, 6:]], 1)))


def packed_inputs(batch, generator):
    parts = dense(generator, batch, 1), ids(generator, ROWS[0], batch, 4), ids(
        generator, ROWS[1], batch, 1
    ), dense(generator, batch, DENSE - 1)
    return (torch.cat([part.float() for part in parts], 1),)


class Hashed(nn.Module):
    """Ids that arithmetic makes: import cannot tell which integers are valid."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, DIM)

    def forward(self, x):
        return self.table(torch.bitwise_xor(x, 7)).sum(1)


class LastStep(nn.Module):
    """RecBole: the state at the last step of a history, at index length - 1."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ROWS[0], DIM, padding_idx=0)
        self.steps = nn.GRU(DIM, DIM, batch_first=True)

    def forward(self, history, length):
        states, _ = self.steps(self.items(history))
        index = (length - 1).view(-1, 1, 1).expand(-1, -1, DIM)
        return states.gather(1, index).squeeze(1).sum(1)


def history_inputs(batch, generator):
    return ids(generator, ROWS[0], batch, 6), ids(generator, 6, batch) + 1


def jagged_inputs(batch, generator):
    lengths = ids(generator, 4, len(ROWS), batch) + 1
    values = [ids(generator, r, int(n)) for r, n in zip(ROWS, lengths.sum(1))]
    return dense(generator, batch, DENSE), torch.cat(values), lengths.flatten()


def matrix_inputs(batch, generator):
    count = 2 * batch + 1
    values = torch.stack([ids(generator, rows, count) for rows in ROWS])
    ends = torch.arange(batch + 1).expand(len(ROWS), -1) * 2
    return dense(generator, batch, DENSE), ends.contiguous(), values


# A request's tensors → the arguments of forward().
def plain(request):
    return [request[name] for name in ("x", "offsets", "values") if name in request] + [
        request[name] for name in ("lengths",) if name in request
    ]


def with_lists(request):
    return request["x"], request["offsets"], [request[f"ids_{k}"] for k in range(3)]


class Layouts(unittest.TestCase):
    def test_rows_of_offsets_and_lists_of_ids(self):
        self.serve(DlrmFeatureMajor, feature_major_inputs, with_lists, "mean:3")

    def test_rows_of_offsets_and_rows_of_ids(self):
        self.serve(Matrices, matrix_inputs, plain, "fixed:3")

    def test_lengths_of_pieces_of_a_list(self):
        self.serve(Jagged, jagged_inputs, plain, "mean:3")

    def test_columns_of_floats(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-packed-"))
        self.addCleanup(shutil.rmtree, folder)
        (folder / "secret").write_bytes(b"not told to anybody")
        requests = self.serve(
            Packed, packed_inputs, lambda request: [request["x"]], "fixed:1", "--record",
            folder / "trace", "--record-rate", 1, "--record-redact-key", folder / "secret",
        )
        x = torch.cat([request["x"] for request in requests])
        # Ids of whole tables, beside normal features.
        self.assertEqual((x[:, 1:5].min(), x[:, 5].max()), (0, ROWS[1] - 1))
        self.assertGreater(x[:, 1:5].max(), ROWS[1])
        self.assertGreater((x[:, 0] % 1 != 0).sum(), 10)
        self.check_redacted(folder / "trace", requests)

    def test_lengths_of_histories(self):
        requests = self.serve(
            LastStep, history_inputs, lambda r: [r["history"], r["length"]], "fixed:1"
        )
        lengths = torch.cat([request["length"] for request in requests])
        self.assertEqual((lengths.min(), lengths.max()), (1, 6))

    def test_refusals_of_drawn_requests_name_the_option_for_files(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-hashed-"))
        self.addCleanup(shutil.rmtree, folder)
        example = (torch.full((5,), 7),)
        case = Case("m", Hashed, lambda batch, generator: (ids(generator, 1, batch),))
        forms.make(case, "pt2", Hashed().eval(), example, folder / "m.pt2")
        model = folder / "repo/m"
        support.refract("import", folder / "m.pt2", "--repo", model.parent, "--name", "m")
        support.refract("partition", model, "--write")
        node = support.cpu_node(model.parent, [])
        self.addCleanup(node.close)
        for option, command in {
            "--requests": (
                "bench", "serving", "--target", node.address, "--model", "m", "--qps", 9,
            ),
            "--inputs": ("profile", model),
            "--sample": ("partition", model, "--verify", "--verify-rounds", 1),
        }.items():
            done = support.refract(*command, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("'table.weight'", done.stderr)
            self.assertIn(f"the request was drawn, {option} takes", done.stderr)

    def check_redacted(self, trace, requests):
        """Ids in columns of floats are hidden, dense features are kept."""
        sent = {bytes(r["x"][:, 6:].contiguous().numpy()): r["x"] for r in requests}

        def recorded():
            found = []
            for line in trace.read_text().splitlines()[1:]:
                (x,) = json.loads(line)["inputs"]
                x = torch.frombuffer(bytearray(base64.b64decode(x["data"])), dtype=torch.float32)
                x = x.view(-1, 5 + DENSE)
                other = sent.get(bytes(x[:, 6:].contiguous().numpy()))
                if other is not None:
                    found.append((x, other))
            return found

        support.wait_until(recorded, "requests are recorded")
        changed = 0
        for x, other in recorded():
            self.assertTrue(torch.equal(x[:, 0], other[:, 0]))
            changed += (x[:, 1:5] != other[:, 1:5]).sum()
            self.assertTrue(((0 <= x[:, 1:5]) & (x[:, 1:5] < ROWS[0])).all())
            self.assertTrue(((0 <= x[:, 5]) & (x[:, 5] < ROWS[1])).all())
        self.assertGreater(changed, 0)

    def serve(self, build, inputs, arguments, bag_sizes, *flags):
        """The requests that were sent."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-layouts-"))
        self.addCleanup(shutil.rmtree, folder)
        case = Case("m", build, inputs)
        torch.manual_seed(1)
        module = build().eval()
        example = inputs(5, torch.Generator().manual_seed(1))
        forms.make(case, "pt2", module, example, folder / "m.pt2")
        model = folder / "repo/m"
        support.refract("import", folder / "m.pt2", "--repo", model.parent, "--name", "m")
        support.refract("partition", model, "--batch", 3, "--write")
        node = support.cpu_node(model.parent, [], *flags)
        self.addCleanup(node.close)
        requests = []
        for items in (1, 7):
            records = folder / f"records-{items}"
            self.bench(
                node, folder, "--query-sizes", f"fixed:{items}", "--bag-sizes",
                bag_sizes, "--record", records,
            )
            requests += self.check(module, arguments, records, items)
        # A request of the last run again, from its file.
        report = self.bench(
            node, folder, "--requests", records / "request_0.safetensors",
            "--record", folder / "again",
        )
        self.assertEqual(report["distinct_requests"], 1)
        self.check(module, arguments, folder / "again", 7)
        # Drawn requests, and items drawn from one of these requests.
        for source in ((), ("--inputs", records / "request_0.safetensors")):
            support.refract("profile", model, "--batch", "1,4,7", "--repeat", 9, *source)
        return requests

    def bench(self, node, folder, *options):
        path = folder / "report.json"
        support.refract(
            "bench", "serving", "--target", node.address, "--model", "m", "--qps", 100,
            "--duration", 0.4, "--warmup", 0.1, "--json", path, *options,
        )
        report = json.loads(path.read_text())
        self.assertGreater(report["queries"], 0)
        self.assertEqual(report["succeeded"], report["queries"], report)
        return report

    def check(self, module, arguments, records, items):
        """The recorded answers are the module's."""
        requests = sorted(records.glob("request_*.safetensors"))
        self.assertTrue(requests)
        for path in requests:
            answer = path.with_name(path.name.replace("request", "response"))
            (scores,) = load_file(answer).values()
            with torch.no_grad():
                expected = module(*arguments(load_file(path)))
            self.assertEqual(scores.shape[0], items)
            torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-6)
        return [load_file(path) for path in requests]


if __name__ == "__main__":
    unittest.main()
