"""Tables divided over three CPU nodes, from partition and packages to scores.

The oracles are a CPU node with the whole tables and the PyTorch model.
"""

import re
import shutil
import unittest
import urllib.request

import torch
from safetensors.torch import load_file, save_file

from scripts.lib import delta_push, deltas
from tests.e2e import support
from tests.e2e.certificates import Certificates

try:
    from tritonclient.utils import InferenceServerException

    from tests.e2e.serving.shard_group import POOLED, SHARDS, TOLERANCE, ShardGroup
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

DIM, ITEMS, SEED = 16, 40, 5
# The one table above a third of all rows is divided by rows; the others stay
# whole, the largest goes to the first shard, and so on.
ROWS = {"mean": 3000, "one": 500, "sum": 300, "max": 200}
OWNED = {  # shard → table → rows
    0: {"mean": (0, 1000), "one": (0, 500)},
    1: {"mean": (1000, 2000), "sum": (0, 300)},
    2: {"mean": (2000, 3000), "max": (0, 200)},
}
LENIENT = 'parameters { key: "lost_shard" value { string_value: "zero" } }\n'


class Ranker(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for mode in ("sum", "mean", "max"):
            setattr(self, mode, torch.nn.EmbeddingBag(
                ROWS[mode], DIM, mode=mode, include_last_offset=True))
        self.one = torch.nn.Embedding(ROWS["one"], DIM)
        self.top = torch.nn.Linear(4 * DIM, 1)

    def forward(self, sums, means, maxima, offsets, one):
        vectors = torch.cat([
            self.sum(sums, offsets), self.mean(means, offsets),
            self.max(maxima, offsets), self.one(one)], 1)
        return torch.sigmoid(self.top(vectors)).squeeze(1)


def make_request(lengths):
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    count = int(offsets[-1])
    return {
        "sums": torch.randint(0, ROWS["sum"], (count,)),
        "means": torch.randint(0, ROWS["mean"], (count,)),
        "maxima": torch.randint(0, ROWS["max"], (count,)),
        "offsets": offsets,
        "one": torch.randint(0, ROWS["one"], (len(lengths),)),
    }


class Shards(ShardGroup):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(SEED)
        cls.model = Ranker().eval()
        cls.ones = make_request(torch.ones(ITEMS, dtype=torch.int64))
        cls.pooled = make_request(torch.randint(0, 9, (ITEMS,)))
        batch, count = (torch.export.Dim(n, min=2) for n in ("batch", "count"))
        shapes = ({0: count}, {0: count}, {0: count}, {0: batch + 1}, {0: batch})
        cls.start_nodes(cls.model, cls.pooled, shapes, 0, LENIENT)

    @staticmethod
    def metrics(node):
        with urllib.request.urlopen(node.metrics_url, timeout=30) as page:
            return page.read().decode()

    def expected(self, request, without=None):
        """PyTorch's scores; `without`: the shard whose rows are zeros."""
        model = Ranker().eval()
        model.load_state_dict(self.model.state_dict())
        with torch.no_grad():
            if without is not None:
                for table, (begin, end) in OWNED[without].items():
                    getattr(model, table).weight[begin:end] = 0
            return model(**request)

    def check_scores(self):
        for request, tolerance in ((self.ones, 0), (self.pooled, POOLED)):
            wanted, _ = self.ask(self.plain, request)
            for node in self.nodes:
                for name in ("strict", "lenient"):
                    scores, parameters = self.ask(node, request, name)
                    self.assertNotIn("lost_ids", parameters)
                    self.assert_near(scores, wanted, tolerance)
                    self.assert_near(scores, self.expected(request), TOLERANCE)

    def test_scores_are_those_of_one_process(self):
        self.check_scores()

    @unittest.skipIf(shutil.which("openssl") is None, "openssl is missing")
    def test_shards_with_tls_and_without(self):
        certificates = Certificates(self.folder)
        certificates.root("root")
        certificates.issue("node", "root")
        flags = [
            part for flag, file in (
                ("cert", "node.crt"), ("key", "node.key"), ("ca", "root.crt"))
            for part in (f"--node-tls-{flag}", self.folder / file)]
        hn = support.gpu_node(self.whole, *flags)
        self.addCleanup(hn.close)
        peers = self.free_peers()
        nodes = []
        for shard, repository in enumerate(self.repositories):
            nodes.append(support.cpu_node(
                repository, [hn.address], *flags, "--transport", "tcp",
                "--shard", shard, "--shard-peers", peers))
            self.addCleanup(nodes[-1].close)
        for node in nodes:
            self.await_ready(node)
            scores, _ = self.ask(node, self.pooled)
            self.assert_near(scores, self.expected(self.pooled), TOLERANCE)
        log = nodes[0].output()
        self.assertGreaterEqual(
            log.count("connected over tcp, certificate /CN=node"), SHARDS - 1)
        # A shard without TLS is refused by the others.
        nodes[2].close()
        plain = support.cpu_node(
            self.repositories[2], [self.hn.address],
            "--shard", 2, "--shard-peers", peers)
        self.addCleanup(plain.close)
        support.wait_until(
            lambda: "the peer does not use TLS" in nodes[0].output(), "refused")
        self.assertFalse(self.ready(nodes[0]))

    def start_group(self, *arguments, repositories=None):
        """Three more shards, with an argument list for each."""
        peers = self.free_peers()

        def start(shard):
            node = support.cpu_node(
                (repositories or self.repositories)[shard], [self.hn.address],
                "--shard", shard, "--shard-peers", peers,
                *(part[shard] if isinstance(part, list) else part
                  for part in arguments))
            self.addCleanup(node.close)
            return node

        return [start(shard) for shard in range(SHARDS)], start

    def test_changed_rows(self):
        folders = [self.folder / f"deltas{n}" for n in range(SHARDS + 1)]
        flags = ("--deltas-poll", "0.02", "--deltas-by-request", "--deltas-folder")
        nodes, start = self.start_group(*flags, folders)
        plain = support.cpu_node(
            self.whole, [self.hn.address], *flags, folders[SHARDS])
        self.addCleanup(plain.close)
        nodes.append(plain)
        for node in nodes:
            self.await_ready(node)
        trainer = deltas.Folder(self.folder / "trainer", "strict", 1)
        model = Ranker().eval()
        model.load_state_dict(self.model.state_dict())

        def change():
            changes = {}
            with torch.no_grad():
                for name, rows in ROWS.items():
                    weight = getattr(model, name).weight
                    ids = torch.randperm(rows)[:rows // 2]
                    ids, deleted = ids[9:], ids[:9]
                    weight[ids] = torch.randn(len(ids), DIM)
                    weight[deleted] = 0
                    changes[f"{name}.weight"] = deltas.Rows(ids, weight[ids], deleted)
            return trainer.write(changes)

        def sequence(node):
            parameters = self.ask(node, self.pooled)[1]
            if "delta_sequence" not in parameters:
                return 0
            return parameters["delta_sequence"].int64_param

        def check(which):
            for request, tolerance in ((self.ones, 0), (self.pooled, POOLED)):
                wanted, _ = self.ask(plain, request)
                with torch.no_grad():
                    self.assert_near(wanted, model(**request), TOLERANCE)
                for node in which:
                    self.assert_near(self.ask(node, request)[0], wanted, tolerance)

        for number in (1, 2):
            self.assertEqual(change(), number)
            for node in nodes[:2]:
                delta_push.push(trainer, node.address)
            support.wait_until(
                lambda: all(
                    f'refract_delta_sequence{{model="strict",version="1"}} {number}\n'
                    in self.metrics(node) for node in nodes[:2]),
                "two shards have the delta")
            # Shard 2 has not: an answer names the oldest state that it used.
            self.assertEqual(sequence(nodes[0]), number - 1)
            for node in nodes[2:]:
                delta_push.push(trainer, node.address)
            for node in nodes:
                support.wait_until(
                    lambda: sequence(node) == number, f"delta {number} is served")
            check(nodes[:SHARDS])

        # Each shard refuses what one of them cannot apply, also in rows of others.
        for table, ids, value, reason in (
                ("mean", [0, 2500], float("nan"), "row of id 0"),
                ("mean", [2500], float("inf"), "row of id 2500"),
                ("mean", [3000], 1.0, "id 3000 at position 0 is outside"),
                ("max", [3], float("nan"), "row of id 3")):
            rows = torch.full((len(ids), DIM), value)
            trainer.write({f"{table}.weight": deltas.Rows(torch.tensor(ids), rows)})
            for node in nodes:
                with self.assertRaisesRegex(deltas.DeltaError, reason):
                    delta_push.push(trainer, node.address)
            (trainer.path / deltas.name_of(3)).unlink()
        # A shard that was lost comes back with the changed rows.
        nodes[1].kill()
        nodes[1].close()
        nodes[1] = start(1)
        for node in nodes[:SHARDS]:
            self.await_ready(node)
            support.wait_until(lambda: sequence(node) == 2, "the shard is back")
        check(nodes[:SHARDS])

    def start_right_group(self, *flags):
        """A group of nodes whose scores are those of a node with whole tables."""
        nodes, _ = self.start_group(*flags)
        for node in nodes:
            self.await_ready(node)
        for request, tolerance in ((self.ones, 0), (self.pooled, POOLED)):
            wanted, _ = self.ask(self.plain, request)
            for node in nodes:
                self.assert_near(self.ask(node, request)[0], wanted, tolerance)
        return nodes

    def test_rows_are_read_from_disk(self):
        nodes = self.start_right_group(
            "--table-memory", "disk", "--row-cache-mib", "1")
        # A shard reads its own rows alone.
        for shard, node in enumerate(nodes):
            rows = sum(end - begin for begin, end in OWNED[shard].values())
            node.await_log(f"of {rows * DIM * 4} bytes are read from disk")
            self.assertNotIn("refract_table_reads_total{model=\"strict\",version=\"1\"} 0\n",
                             self.metrics(node))

    def test_own_rows_are_loaded(self):
        nodes = self.start_right_group("--table-memory", "load")
        # Also the shard that has the whole version loads its own rows alone.
        for shard, node in enumerate(nodes):
            rows = sum(end - begin for begin, end in OWNED[shard].values())
            loaded = [
                float(line.split()[-1]) for line in self.metrics(node).splitlines()
                if line.startswith("refract_table_bytes{") and '"strict"' in line
                and '_pages"' in line
            ]
            self.assertEqual(len(loaded), 2)
            self.assertEqual(sum(loaded), rows * DIM * 4)

    def test_golden_requests(self):
        for node in self.nodes:
            for name in ("strict", "lenient"):
                node.await_log(re.compile(
                    f"model '{name}' version 1 at GPU node .* has answered its [1-9] "
                    "check requests"))
        # Packages with a wrong recorded answer: their nodes do not serve the version.
        repositories = [*self.repositories]
        for shard in range(SHARDS - 1):
            repositories[shard] = self.folder / f"wrong{shard}"
            shutil.copytree(self.packages[shard], repositories[shard])
            for name in ("strict", "lenient"):
                golden = repositories[shard] / name / "1" / "golden.safetensors"
                tensors = load_file(golden)
                for tensor in tensors:
                    if "output_0" in tensor:
                        tensors[tensor] += 0.01
                golden.unlink()
                save_file(tensors, golden)
        nodes, _ = self.start_group(repositories=repositories)
        self.await_ready(nodes[-1])
        for node in nodes[:-1]:
            # The lenient version may have met a group that was not complete: then its
            # answers were not compared.
            refusal = re.compile(
                "model 'strict' version 1 at GPU node .* is not served: golden "
                "request 1 .* output 'output_0'")
            support.wait_until(
                lambda: refusal.search(node.output()), "strict is refused")
            self.assertFalse(self.ready(node, "strict"))

    def test_partition_says_who_has_what(self):
        for shard, tables in OWNED.items():
            rows = sum(end - begin for begin, end in tables.values())
            self.assertIn(f"shard {shard} of 3: {rows * DIM * 4 / 1024:g} KiB",
                          self.printed)
        inspected = support.refract("inspect", self.whole / "strict").stdout
        self.assertIn("shard 2 of 3", inspected)

    def test_packages_have_their_rows_alone(self):
        for shard, tables in OWNED.items():
            rows = sum(end - begin for begin, end in tables.values())
            weights = self.packages[shard] / "strict" / "1" / "cn_weights.bin"
            self.assertLess(weights.stat().st_size, rows * DIM * 4 + 4096)

    def test_a_wrong_id_is_named_as_by_one_process(self):
        bad = {name: tensor.clone() for name, tensor in self.pooled.items()}
        bad["means"][3] = ROWS["mean"]
        errors = set()
        for node in (self.plain, *self.nodes):
            with self.assertRaises(InferenceServerException) as caught:
                self.ask(node, bad)
            errors.add(str(caught.exception.message()))
        self.assertEqual(len(errors), 1, errors)
        self.assertIn("id 3000 at position 3", errors.pop())

    def test_a_lost_shard(self):
        self.nodes[1].kill()
        node = self.nodes[0]
        support.wait_until(lambda: not self.ready(node), "strict is not ready")
        self.assertTrue(self.ready(node, "lenient"))
        with self.assertRaises(InferenceServerException) as caught:
            self.ask(node, self.pooled)
        self.assertIn("UNAVAILABLE", str(caught.exception.status()))
        self.assertIn("shard 1 (127.0.0.1:", str(caught.exception.message()))

        scores, parameters = self.ask(node, self.pooled, "lenient")
        self.assert_near(scores, self.expected(self.pooled, without=1), TOLERANCE)
        means = self.pooled["means"]
        lost = len(self.pooled["sums"]) + int(((means >= 1000) & (means < 2000)).sum())
        self.assertEqual(parameters["lost_ids"].int64_param, lost)
        metrics = self.metrics(node)
        self.assertIn(
            'refract_lost_shard_ids_total{model="lenient",version="1"} '
            f"{lost}", metrics)
        self.assertRegex(
            metrics, r'refract_shard_look_ups_total\{outcome="failed"\} 0\n')

        self.nodes[1].close()
        self.start(1)
        for each in self.nodes:
            self.await_ready(each)
        # A lenient model is ready without the shard: wait for it here.
        support.wait_until(
            lambda: "lost_ids" not in self.ask(node, self.pooled, "lenient")[1],
            "no ids are lost")
        self.check_scores()

    def refusal(self, repository, *arguments):
        """Why a node does not serve the models of `repository`."""
        node = support.cpu_node(repository, [self.hn.address], *arguments)
        self.addCleanup(node.close)
        with self.assertRaises(InferenceServerException) as caught:
            self.ask(node, self.ones)
        return str(caught.exception.message())

    def test_a_package_is_served_by_its_shard_alone(self):
        peers = self.free_peers()
        self.assertIn("packaged for shard 1, and this node is --shard 0",
                      self.refusal(self.packages[1], "--shard", 0,
                                   "--shard-peers", peers))
        self.assertIn("this node is in no shard group",
                      self.refusal(self.packages[1]))
        two = ",".join(f"127.0.0.1:{port}" for port in support.free_ports(2))
        self.assertIn("over 3 CPU nodes, and --shard-peers lists 2",
                      self.refusal(self.whole, "--shard", 0, "--shard-peers", two))
        for command, error in (
            (("inspect", self.packages[0] / "strict"), "one shard of CPU nodes"),
            (("package", self.whole / "strict", "--for", "cpu-node", "--shard",
              7, "--output", self.folder / "none"), "has shards 0 to 2"),
            (("partition", self.whole / "strict", "--shards", 2,
              "--shard-tables-from", 100), "no table to divide"),
        ):
            done = support.refract(*command, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(error, done.stderr)


if __name__ == "__main__":
    unittest.main()
