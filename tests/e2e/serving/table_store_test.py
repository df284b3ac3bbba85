"""Where a CPU node keeps tables (--table-memory), and tables whose rows have ids.

The oracle is PyTorch's model on the same tables and row numbers.
"""

import json
import os
import pathlib
import re
import shutil
import tempfile
import unittest
import urllib.request

import torch
from safetensors.torch import load_file, save_file

from scripts.lib import deltas
from tests.e2e import support

try:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    from tests.e2e.kserve_requests import infer_inputs
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

ROWS, DIM, ITEMS, SEED = 5000, 32, 33, 7
# Rows of the model that shows memory: 128 MiB.
MANY_ROWS = 1 << 20
TOLERANCE = 2e-6  # of scores after a sigmoid
MODES = (("map",), ("load",), ("disk", "--row-cache-mib", "1"))


class Ranker(torch.nn.Module):
    """A bag of ids and one id per item, of two tables."""

    def __init__(self, rows=ROWS):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(rows, DIM, mode="sum", include_last_offset=True)
        self.one = torch.nn.Embedding(ROWS, DIM)
        self.top = torch.nn.Linear(2 * DIM, 1)

    def forward(self, ids, offsets, one):
        both = torch.cat([self.bag(ids, offsets), self.one(one)], 1)
        return torch.sigmoid(self.top(both)).squeeze(1)


def make_request(rows=ROWS, items=ITEMS):
    lengths = torch.randint(1, 9, (items,))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return {
        "ids": torch.randint(0, rows, (int(offsets[-1]),)),
        "offsets": offsets,
        "one": torch.randint(0, ROWS, (items,)),
    }


def export(model, request, path):
    batch, count = (torch.export.Dim(n, min=2) for n in ("batch", "count"))
    program = torch.export.export(
        model, tuple(request.values()),
        dynamic_shapes=({0: count}, {0: batch + 1}, {0: batch}),
    )
    torch.export.save(program, path)


class TableStore(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-store-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        torch.manual_seed(SEED)
        cls.model = Ranker().eval()
        cls.request = make_request()
        cls.file = cls.folder / "model.pt2"
        export(cls.model, cls.request, cls.file)
        save_file(cls.request, cls.folder / "sample.safetensors")
        cls.tables = {
            name: cls.model.state_dict()[name].clone()
            for name in ("bag.weight", "one.weight")
        }
        # Hashes of 64 bits; one table has its rows numbered.
        cls.ids = torch.randint(-(2**63), 2**63 - 1, (ROWS,))
        assert cls.ids.unique().numel() == ROWS

    def setUp(self):
        self.repository = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "repo"

    def add(self, name, *arguments, check=True, file=None):
        return support.refract(
            "import", file or self.file, "--repo", self.repository, "--name", name,
            "--sample", self.folder / "sample.safetensors", *arguments, check=check,
        )

    def folder_of(self, tensors, name="tables.safetensors"):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        save_file(tensors, folder / name)
        return folder

    def add_with_ids(self, name="hashed"):
        folder = self.folder_of({**self.tables, "bag.weight.ids": self.ids})
        return self.add(name, "--tables", folder)

    def start(self, *mode):
        node = support.cpu_node(
            self.repository, [], "--table-memory", *mode, "--deltas-poll", "0.02"
        )
        self.addCleanup(node.close)
        return node

    def ask(self, node, name, request):
        client = triton.InferenceServerClient(node.address)
        answer = client.infer(name, infer_inputs(request), client_timeout=60)
        scores = torch.from_numpy(answer.as_numpy("output_0").copy())
        return scores, answer.get_response().parameters

    def expect(self, scores, request, tables=None, model=None):
        """`request` has row numbers."""
        model = model or self.model
        if tables is not None:
            changed = Ranker().eval()
            changed.load_state_dict({**model.state_dict(), **tables})
            model = changed
        with torch.no_grad():
            error = (scores - model(**request)).abs().max().item()
        self.assertLessEqual(error, TOLERANCE)

    def metrics(self, node, name):
        """{labels: value}"""
        found = {}
        with urllib.request.urlopen(node.metrics_url) as answer:
            for line in answer.read().decode().splitlines():
                match = re.fullmatch(rf"{name}\{{(.*)\}} (\S+)", line)
                if match:
                    labels = dict(re.findall(r'(\w+)="([^"]*)"', match.group(1)))
                    key = labels.get("memory") or labels.get("result") or "all"
                    found[key] = float(match.group(2))
        return found

    def with_ids(self, request):
        return {**request, "ids": self.ids[request["ids"]]}

    def test_scores_are_pytorchs_wherever_tables_lie(self):
        self.add("plain")
        # Rows in a format as well, of a file of their own.
        source = self.folder_of(self.tables) / "tables.safetensors"
        rows = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        support.refract("quantize", source, "--format", "fp16",
                        "--out", rows / "rows.safetensors")
        self.add("half", "--tables", rows)
        halves = {n: t.half().float() for n, t in self.tables.items()}
        for mode in MODES:
            with self.subTest(mode[0]):
                node = self.start(*mode)
                for items in (2, ITEMS, 700):
                    request = make_request(items=items)
                    scores, _ = self.ask(node, "plain", request)
                    self.expect(scores, request)
                    scores, _ = self.ask(node, "half", request)
                    self.expect(scores, request, halves)
                self.assertEqual(node.stop(), 0)

    def test_inspect_log_and_metric_say_the_bytes(self):
        self.add("plain")
        bytes_of_tables = 2 * ROWS * DIM * 4
        report = self.folder / "inspect.json"
        text = support.refract(
            "inspect", self.repository / "plain", "--json", report
        ).stdout
        self.assertIn("table memory of a CPU node", text)
        memory = json.loads(report.read_text())["table_memory"]
        self.assertEqual(memory["map"]["page_cache_bytes"], bytes_of_tables)
        self.assertEqual(memory["load"]["memory_bytes"], bytes_of_tables)
        self.assertEqual(memory["new_id_bytes"], 0)
        self.add_with_ids()
        support.refract("inspect", self.repository / "hashed", "--json", report)
        memory = json.loads(report.read_text())["table_memory"]
        self.assertEqual(memory["new_id_bytes"], 2 * (DIM * 4 + 96) + 104)
        shutil.rmtree(self.repository / "hashed")
        node = self.start("map")
        found = self.metrics(node, "refract_table_bytes")
        self.assertEqual(found["mapped"], bytes_of_tables)
        self.assertEqual(sum(found.values()), bytes_of_tables)
        node.await_log("2 table(s) of 0.001 GiB are mapped")
        node = self.start("load")
        found = self.metrics(node, "refract_table_bytes")
        self.assertEqual(found["mapped"], 0)
        loaded = found["small_pages"] + found["huge_pages"]
        self.assertEqual(loaded, sum(found.values()))
        self.assertTrue(bytes_of_tables <= loaded <= bytes_of_tables + 256, loaded)
        node.await_log("2 table(s) of 0.001 GiB loaded in")

    def test_memory_of_loaded_and_of_cached_rows(self):
        torch.manual_seed(SEED)
        model = Ranker(MANY_ROWS).eval()
        request = make_request(MANY_ROWS, 200)
        file = self.folder / "large.pt2"
        export(model, request, file)
        save_file(request, self.folder / "large.safetensors")
        support.refract(
            "import", file, "--repo", self.repository, "--name", "large",
            "--no-golden", "--sample", self.folder / "large.safetensors",
        )
        tables = (MANY_ROWS + ROWS) * DIM * 4
        held = {}
        for mode in (("map",), ("load",), ("disk", "--row-cache-mib", "8")):
            node = self.start(*mode)
            for _ in range(3):
                scores, _ = self.ask(node, "large", request)
                self.expect(scores, request, model=model)
            status = pathlib.Path(f"/proc/{node.process.pid}/status").read_text()
            held[mode[0]] = int(re.search(r"RssAnon:\s+(\d+)", status)[1]) * 1024
            if mode[0] == "disk":
                found = self.metrics(node, "refract_row_cache_rows_total")
                ids = 3 * (len(request["ids"]) + len(request["one"]))
                self.assertEqual(found["hit"] + found["miss"], ids)
                # The second and the third time all rows are here.
                self.assertLessEqual(found["miss"], ids / 3)
                self.assertGreater(found["miss"], 0)
                reads = self.metrics(node, "refract_table_reads_total")["all"]
                self.assertLessEqual(reads, found["miss"])
                read = self.metrics(node, "refract_table_read_bytes_total")["all"]
                self.assertEqual(read % 4096, 0)
                self.assertGreaterEqual(read, 4096 * reads)
            node.stop()
        print(f"anonymous memory: {held}, tables {tables}")
        # The bound of the goal, and 8 MiB for threads that the other run had not.
        self.assertGreater(held["load"] - held["map"], 0.9 * tables)
        self.assertLess(held["load"] - held["map"], 1.05 * tables + (8 << 20))
        self.assertLess(held["disk"] - held["map"], 32 << 20)

    def test_rows_are_named_by_ids(self):
        printed = self.add_with_ids()
        self.assertIn("bag.weight by 5000 ids", printed.stdout + printed.stderr)
        # Nodes are checked with ids before they serve, too.
        self.assertIn("answers of PyTorch are recorded", printed.stdout + printed.stderr)
        # Offline the model takes row numbers, as PyTorch does.
        save_file(self.request, self.folder / "in.safetensors")
        for mode in ("whole", "reference"):
            support.refract(
                "run", self.repository / "hashed", "--mode", mode,
                "--inputs", self.folder / "in.safetensors",
                "--outputs", self.folder / "out.safetensors",
            )
            self.expect(load_file(self.folder / "out.safetensors")["output_0"],
                        self.request)
        for mode in MODES:
            with self.subTest(mode[0]):
                node = self.start(*mode)
                request = make_request(items=100)
                scores, parameters = self.ask(node, "hashed", self.with_ids(request))
                self.expect(scores, request)
                self.assertNotIn("replaced_ids", parameters)
                found = self.metrics(node, "refract_table_bytes")
                self.assertGreaterEqual(found["id_indexes"], 16 * ROWS)
                unknown = self.with_ids(request)
                unknown["ids"][7] = 4711
                with self.assertRaises(InferenceServerException) as raised:
                    self.ask(node, "hashed", unknown)
                self.assertIn(
                    "table 'bag.weight': id 4711 at position 7 has no row",
                    raised.exception.message(),
                )
                self.assertEqual(raised.exception.status(),
                                 "StatusCode.INVALID_ARGUMENT")
                node.stop()

    def test_commands_take_ids(self):
        self.add_with_ids()
        version, folder = self.repository / "hashed", self.repository.parent
        given, out = folder / "ids.safetensors", folder / "out.safetensors"
        save_file(self.with_ids(self.request), given)

        def run(*arguments, **kwargs):
            return support.refract("run", version, "--inputs", given, "--outputs", out,
                                   "--by-ids", *arguments, **kwargs)

        for mode in ("whole", "reference"):
            run("--mode", mode)
            self.expect(load_file(out)["output_0"], self.request)
        support.refract("profile", version, "--repeat", 9, "--inputs", given, "--by-ids")
        # Both the drawn requests and the samples are sent to nodes, by ids.
        for arguments in ([], ["--sample", given, "--by-ids"]):
            support.refract("partition", version, "--verify", "--verify-rounds", 2,
                            "--verify-cuts", 1, *arguments)
        unknown = self.with_ids(self.request)
        unknown["ids"][7] = 4711
        save_file(unknown, given)
        failed = run(check=False)
        self.assertEqual(failed.returncode, 2)
        self.assertIn("ids.safetensors: input ids: id 4711 at position 7 has no row in "
                      "table bag.weight", failed.stderr)

        # The recorded answers are PyTorch's for the rows of the drawn ids.
        (ids,) = (version / "1" / "tables").glob("*.safetensors")
        node, record = self.start("map"), folder / "record"
        load = ["bench", "serving", "--target", node.address, "--model", "hashed",
                "--qps", 50, "--duration", 1, "--warmup", 0, "--query-sizes", "fixed:9",
                "--bag-sizes", "fixed:3"]
        support.refract(*load, "--ids", "zipf:1.1", "--table-ids", ids, "--record", record)
        row_of = {id: row for row, id in enumerate(self.ids.tolist())}
        for i in range(4):
            asked = load_file(record / f"request_{i}.safetensors")
            rows = torch.tensor([row_of[id] for id in asked["ids"].tolist()])
            self.assertEqual(len(rows), 27)
            self.expect(load_file(record / f"response_{i}.safetensors")["output_0"],
                        {**asked, "ids": rows})
        failed = support.refract(*load, check=False)
        self.assertIn("has no row", failed.stderr)
        failed = support.refract(
            *load, "--table-ids", self.folder_of({"other.ids": self.ids}) /
            "tables.safetensors", check=False)
        self.assertEqual(failed.returncode, 2)
        self.assertIn("no input of hashed is looked up in a table of these files",
                      failed.stderr)

    def test_unknown_ids_follow_the_policy(self):
        self.add_with_ids()
        config = self.repository / "hashed" / "config.pbtxt"
        text = config.read_text()
        request = make_request()
        given = self.with_ids(request)
        given["ids"][3:6] = torch.tensor([1, 2, 3])
        for policy in ("zero", "default"):
            with self.subTest(policy):
                config.write_text(
                    text + 'parameters { key: "out_of_range_ids.bag.weight" '
                    f'value {{ string_value: "{policy}" }} }}\n'
                )
                node = self.start("map")
                scores, parameters = self.ask(node, "hashed", given)
                changed = {k: v.clone() for k, v in request.items()}
                tables = {n: t.clone() for n, t in self.tables.items()}
                if policy == "default":
                    changed["ids"][3:6] = 0
                else:
                    # A row of zeros that nothing else reads.
                    spare = next(r for r in range(ROWS) if r not in changed["ids"])
                    tables["bag.weight"][spare] = 0
                    changed["ids"][3:6] = spare
                self.expect(scores, changed, tables)
                self.assertEqual(parameters["replaced_ids"].int64_param, 3)
                self.assertEqual(
                    self.metrics(node, "refract_replaced_ids_total")["all"], 3
                )
                node.stop()

    def test_deltas_name_rows_by_ids(self):
        self.add_with_ids()
        # A deleted id has no row: the policy applies.
        config = self.repository / "hashed" / "config.pbtxt"
        config.write_text(
            config.read_text() + 'parameters { key: "out_of_range_ids.bag.weight" '
            'value { string_value: "zero" } }\n'
        )
        for mode in MODES:
            with self.subTest(mode[0]):
                folder = deltas.Folder(
                    self.repository / "hashed" / "1" / "deltas", "hashed", 1
                )
                shutil.rmtree(folder.path, ignore_errors=True)
                node = self.start(*mode)
                tables = {n: t.clone() for n, t in self.tables.items()}
                rows = self.request["ids"].unique()[:20]
                tables["bag.weight"][rows[:15]] = torch.randn(15, DIM)
                tables["bag.weight"][rows[15:]] = 0
                tables["one.weight"][self.request["one"][:4]] = 2.5
                folder.write({
                    "bag.weight": deltas.Rows(
                        self.ids[rows[:15]], tables["bag.weight"][rows[:15]],
                        self.ids[rows[15:]],
                    ),
                    "one.weight": deltas.Rows(
                        self.request["one"][:4].unique(),
                        tables["one.weight"][self.request["one"][:4].unique()],
                    ),
                })
                support.wait_until(
                    lambda: self.metrics(node, "refract_delta_sequence")["all"] == 1,
                    "the delta is applied",
                )
                given = self.with_ids(self.request)
                scores, parameters = self.ask(node, "hashed", given)
                self.expect(scores, self.request, tables)
                deleted = int(torch.isin(given["ids"], self.ids[rows[15:]]).sum())
                self.assertGreater(deleted, 0)
                self.assertEqual(parameters["replaced_ids"].int64_param, deleted)
                # A row number is no id.
                folder.write({"bag.weight": deltas.Rows([5], torch.ones(1, DIM))})
                support.wait_until(
                    lambda: "id 5 at position 0 has no row" in node.output(),
                    "the delta is refused",
                )
                node.stop()

    def test_deltas_add_and_remove_ids(self):
        """The oracle has a row for each id that comes, and a list of ids that are there."""
        self.add_with_ids()
        more, most = 60, 40
        ids = torch.cat([self.ids, torch.randint(-(2**63), 2**63 - 1, (more,))])
        for mode in MODES:
            with self.subTest(mode[0]):
                folder = deltas.Folder(
                    self.repository / "hashed" / "1" / "deltas", "hashed", 1
                )
                shutil.rmtree(folder.path, ignore_errors=True)
                table = torch.cat([self.tables["bag.weight"], torch.zeros(more, DIM)])
                there = torch.arange(ROWS + more) < ROWS
                arguments = (*mode, "--deltas-new-ids", str(most))
                node = self.start(*arguments)

                def change(upserted, deleted, keep=True):
                    rows = torch.randn(len(upserted), DIM)
                    folder.write({"bag.weight": deltas.Rows(
                        ids[upserted], rows, ids[deleted])})
                    if keep:
                        table[upserted], there[upserted] = rows, True
                        there[deleted] = False

                def first_answer():
                    found = []

                    def answered():
                        try:
                            found.append(self.ask(node, "hashed", given)[1])
                        except InferenceServerException:
                            return False
                        return True

                    request = make_request()
                    request["ids"][:] = torch.nonzero(there)[0]
                    given = {**request, "ids": ids[request["ids"]]}
                    support.wait_until(answered, "the node answers")
                    return found[0]["delta_sequence"].int64_param

                def check(sequence):
                    support.wait_until(
                        lambda: self.metrics(node, "refract_delta_sequence")["all"]
                        == sequence, f"delta {sequence} is applied",
                    )
                    request = make_request()
                    alive = torch.nonzero(there).squeeze(1)
                    new = alive[alive >= ROWS]
                    self.assertEqual(
                        self.metrics(node, "refract_delta_new_ids")["all"], len(new)
                    )
                    count = len(request["ids"])
                    request["ids"] = alive[torch.randint(len(alive), (count,))]
                    request["ids"][: len(new)] = new[:count]
                    given = {**request, "ids": ids[request["ids"]]}
                    scores, parameters = self.ask(node, "hashed", given)
                    self.assertNotIn("replaced_ids", parameters)
                    wide = Ranker(ROWS + more).eval()
                    wide.load_state_dict(
                        {**self.model.state_dict(), "bag.weight": table}
                    )
                    with torch.no_grad():
                        error = (scores - wide(**request)).abs().max().item()
                    self.assertLessEqual(error, TOLERANCE)
                    for gone in torch.nonzero(~there).squeeze(1)[:: 7]:
                        given["ids"][5] = ids[gone]
                        with self.assertRaises(InferenceServerException) as raised:
                            self.ask(node, "hashed", given)
                        self.assertIn(
                            f"table 'bag.weight': id {int(ids[gone])} at position 5 "
                            "has no row", str(raised.exception),
                        )

                change(torch.arange(ROWS - 5, ROWS + 30), torch.arange(0))
                check(1)
                # Full: 30 - 10 + 20.
                change(torch.arange(ROWS + 30, ROWS + 50),
                       torch.cat([torch.arange(6), torch.arange(ROWS, ROWS + 10)]))
                check(2)
                change(torch.tensor([ROWS + 55]), torch.tensor([ROWS + 58]), keep=False)
                support.wait_until(
                    lambda: "table 'bag.weight' would have 41 new ids; "
                    "--deltas-new-ids allows 40" in node.output(),
                    "the delta is refused",
                )
                check(2)
                for file in folder.path.glob("*00003*"):
                    file.unlink()
                node.kill()
                node = self.start(*arguments)
                self.assertEqual(first_answer(), 2)
                check(2)
                # Ids come back, and take the places of others.
                change(torch.tensor([2, *range(ROWS, ROWS + 5)]),
                       torch.arange(ROWS + 45, ROWS + 50))
                check(3)
                for sequence in range(4, 34):
                    if sequence % 10 == 0:
                        node.kill()  # some deltas are applied, some are not
                        node = self.start(*arguments)
                        self.assertEqual(first_answer(), sequence - 1)
                        check(sequence - 1)
                    new = torch.arange(ROWS, ROWS + more)
                    out = new[there[new]][torch.randperm(int(there[new].sum()))[:9]]
                    come = new[~there[new]][torch.randperm(int((~there[new]).sum()))[:9]]
                    change(come.sort().values, out.sort().values)
                check(33)
                node.stop()

    def test_bad_ids_are_refused_by_name(self):
        twice = self.ids.clone()
        twice[4000] = twice[13]
        cases = (
            (twice, f"id {int(twice[13])} is at position 13 and again at 4000"),
            (self.ids[:-1].clone(), f"the ids of this table are int64[{ROWS}]"),
            (self.ids.to(torch.int32), f"the ids of this table are int64[{ROWS}]"),
        )
        for tensor, reason in cases:
            with self.subTest(reason):
                folder = self.folder_of(
                    {**self.tables, "bag.weight.ids": tensor}, "bad.safetensors"
                )
                done = self.add("bad", "--tables", folder, check=False)
                self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                self.assertIn("bad.safetensors: tensor bag.weight.ids", done.stderr)
                self.assertIn(reason, done.stderr)
        folder = self.folder_of(self.tables)
        path = folder / "ids.safetensors"
        save_file({"bag.weight.ids": self.ids}, path)
        os.truncate(path, path.stat().st_size - 100)
        done = self.add("bad", "--tables", folder, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("ids.safetensors: tensor bag.weight.ids", done.stderr)
        self.assertIn("truncated", done.stderr)

    def test_a_row_that_the_disk_does_not_give_fails_its_request(self):
        self.add("cut", "--no-golden", "--tables", self.folder_of(self.tables))
        (file,) = (self.repository / "cut" / "1" / "tables").iterdir()
        node = self.start("disk", "--row-cache-mib", "1")
        request = make_request(items=8)
        # bag.weight is first in the file; its last rows go with the rest.
        os.truncate(file, ROWS * DIM * 4 // 2)
        with self.assertRaises(InferenceServerException) as raised:
            self.ask(node, "cut", request)
        for word in ("table 'bag.weight': row ", str(file.name), "the file ends"):
            self.assertIn(word, raised.exception.message())
        kept = {"ids": torch.arange(10), "offsets": torch.tensor([0, 4, 10])}
        with self.assertRaises(InferenceServerException) as raised:
            self.ask(node, "cut", {**kept, "one": torch.tensor([1, 2])})
        self.assertIn("table 'one.weight': row 1", raised.exception.message())
        self.assertIsNone(node.process.poll())


if __name__ == "__main__":
    unittest.main()
