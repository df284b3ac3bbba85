"""What the tests of tables over three CPU nodes share: the nodes, and requests."""

import pathlib
import shutil
import tempfile
import unittest

import torch
from safetensors.torch import save_file

from tests.e2e import support

try:
    import tritonclient.grpc as triton

    from tests.e2e.kserve_requests import infer_inputs
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

SHARDS = 3
TOLERANCE = 2e-6  # of scores after a sigmoid, against PyTorch
POOLED = 1e-6  # against one process: another order of additions


class ShardGroup(unittest.TestCase):
    """Models "strict" and "lenient" at three nodes, and whole at the node `plain`."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-shards-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)

    @classmethod
    def start_nodes(cls, model, sample, dynamic_shapes, tables_from, lenient):
        """`lenient`: what the configuration of that model has beyond the other's."""
        torch.export.save(
            torch.export.export(model, tuple(sample.values()), dynamic_shapes=dynamic_shapes),
            cls.folder / "model.pt2")
        save_file(sample, cls.folder / "sample.safetensors")
        cls.whole = cls.folder / "whole"
        for name in ("strict", "lenient"):
            support.add_model(cls.whole, name, cls.folder / "model.pt2", golden=True)
            cls.printed = support.refract(
                "partition", cls.whole / name, "--method", "heuristic", "--shards", SHARDS,
                "--shard-tables-from", tables_from, "--write").stdout
        with open(cls.whole / "lenient" / "config.pbtxt", "a", encoding="utf-8") as config:
            config.write(lenient)
        cls.packages = [cls.folder / f"shard{shard}" for shard in range(SHARDS)]
        for shard, package in enumerate(cls.packages):
            for name in ("strict", "lenient"):
                support.refract("package", cls.whole / name, "--for", "cpu-node",
                                "--shard", shard, "--output", package)
        cls.hn = support.gpu_node(cls.whole)
        cls.addClassCleanup(cls.hn.close)
        cls.plain = support.cpu_node(cls.whole, [cls.hn.address], *cls.flags(None))
        cls.addClassCleanup(cls.plain.close)
        cls.peers = cls.free_peers()
        # The last shard has the whole version, and needs its own rows of it.
        cls.repositories = [*cls.packages[:-1], cls.whole]
        cls.nodes = [None] * SHARDS
        cls.addClassCleanup(lambda: [node.close() for node in cls.nodes if node])
        for shard in range(SHARDS):
            cls.start(shard)
        for node in (cls.plain, *cls.nodes):
            cls.await_ready(node)

    @classmethod
    def flags(cls, shard):
        """Further options of a node; None: of the one with whole tables."""
        return ()

    @staticmethod
    def free_peers():
        return ",".join(f"127.0.0.1:{port}" for port in support.free_ports(SHARDS))

    @classmethod
    def start(cls, shard):
        cls.nodes[shard] = support.cpu_node(
            cls.repositories[shard], [cls.hn.address], *cls.flags(shard),
            "--shard", shard, "--shard-peers", cls.peers)

    @staticmethod
    def ready(node, name="strict"):
        return triton.InferenceServerClient(node.address).is_model_ready(name)

    @classmethod
    def await_ready(cls, node):
        for name in ("strict", "lenient"):
            support.wait_until(lambda: cls.ready(node, name), f"{name} is ready")

    def ask(self, node, request, name="strict"):
        """Scores and parameters."""
        answer = triton.InferenceServerClient(node.address).infer(
            name, infer_inputs(request), client_timeout=30)
        scores = torch.from_numpy(answer.as_numpy("output_0").copy())
        return scores, answer.get_response().parameters

    def assert_near(self, scores, wanted, tolerance):
        self.assertLessEqual((scores - wanted).abs().max().item(), tolerance)
