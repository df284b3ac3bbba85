"""CN, HN and the official Triton client, over shared memory and TCP."""

import collections
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import tempfile
import threading
import unittest

import numpy as np
import torch
from safetensors.torch import load_file

from models.zoo import safetensors_io
from tests.e2e import support

try:
    import grpc
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    from tests.e2e.kserve_requests import infer_inputs
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

MODELS = ("dlrm", "two_tower")
BATCHES = (1, 2, 7, 33, 150, 270)
CASES_PER_MODEL = 12


class Case:
    """A request and the scores that PyTorch gives for it."""

    def __init__(self, model, tensors, scores):
        self.model = model
        self.tensors = tensors
        self.scores = scores
        # Once: it takes as long as the request.
        self.inputs = infer_inputs(tensors)


def typed_inputs(tensors):
    """As infer_inputs(), with typed contents, which the client has no switch for."""
    inputs = infer_inputs(tensors)
    for item, tensor in zip(inputs, tensors.values()):
        message = item._get_tensor()
        field = {
            "FP32": message.contents.fp32_contents,
            "INT64": message.contents.int64_contents,
        }[message.datatype]
        field.extend(tensor.flatten().tolist())
        item._raw_content = None
    return inputs


def setup_repository(folder):
    """Two models, with cases whose answers PyTorch has computed."""
    repository = folder / "repo"
    cases = []
    seed = int(os.environ.get("REFRACT_TEST_SEED", random.randrange(2**31)))
    print(f"seed {seed} (repeat with REFRACT_TEST_SEED)")
    for name in MODELS:
        support.export(name, folder / name)
        support.add_model(repository, name, folder / name / f"{name}.pt2")
        pairs, made = [], []
        for i in range(CASES_PER_MODEL):
            tensors = support.make_inputs(
                folder / name / f"{name}.json",
                BATCHES[i % len(BATCHES)],
                seed + i,
            )
            path = folder / f"{name}-{i}.safetensors"
            safetensors_io.write(path, tensors)
            pairs += ["--inputs", path, "--outputs", f"{path}.out"]
            made.append((tensors, f"{path}.out"))
        support.refract(
            "run", repository / name, "--mode", "reference", *pairs
        )
        for tensors, output in made:
            (scores,) = load_file(output).values()
            cases.append(Case(name, tensors, scores.numpy()))
    return repository, cases


class Serving:
    """The cases; the two classes at the end run them over each transport."""

    transport = ""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-e2e-"))
        cls.repository, cls.cases = setup_repository(cls.folder)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def setUp(self):
        self.nodes = []

    def tearDown(self):
        for node in self.nodes:
            node.close()

    def start_hn(self, port=0):
        node = support.gpu_node(self.repository, port=port)
        self.nodes.append(node)
        return node

    def start_cn(self, *gpu_nodes):
        node = support.cpu_node(
            self.repository, gpu_nodes, "--transport", self.transport
        )
        self.nodes.append(node)
        return node

    def client(self, node):
        client = triton.InferenceServerClient(node.address)
        self.addCleanup(client.close)
        return client

    def check(self, client, case, raw=True):
        inputs = case.inputs if raw else typed_inputs(case.tensors)
        answer = client.infer(case.model, inputs)
        names = [output.name for output in answer.get_response().outputs]
        self.assertEqual(len(names), 1)
        scores = answer.as_numpy(names[0])
        self.assertEqual(scores.shape, case.scores.shape)
        np.testing.assert_allclose(scores, case.scores, atol=1e-5, rtol=0)

    def wait_ready(self, client):
        support.wait_until(client.is_server_ready, "the CN is ready")

    def test_triton_client_sees_a_triton(self):
        hn = self.start_hn()
        client = self.client(self.start_cn(hn.address))
        self.wait_ready(client)
        self.assertTrue(client.is_server_live())
        server = client.get_server_metadata()
        self.assertEqual(server.name, "refract")
        for name in MODELS:
            self.assertTrue(client.is_model_ready(name))
            metadata = client.get_model_metadata(name)
            first = next(c for c in self.cases if c.model == name)
            self.assertEqual(
                {item.name for item in metadata.inputs}, set(first.tensors)
            )
            config = client.get_model_config(name).config
            self.assertEqual(config.name, name)
            self.assertEqual(len(config.input), len(first.tensors))
        index = client.get_model_repository_index()
        self.assertEqual({m.name for m in index.models}, set(MODELS))
        for case in self.cases:
            self.check(client, case)
            self.check(client, case, raw=False)
        stats = client.get_inference_statistics(MODELS[0]).model_stats[0]
        self.assertEqual(stats.inference_stats.success.count, 2 * CASES_PER_MODEL)

    def test_look_ups_on_the_hn(self):
        repository = self.folder / "tables_on_hn"
        shutil.copytree(self.repository, repository)
        self.repository = repository
        for name in MODELS:
            report = self.folder / "report.json"
            # A CN without room for a weight leaves no table there.
            support.refract(
                "partition", repository / name, "--write",
                "--hn-table-mib", 64, "--cn-memory-gib", "1e-9",
                "--json", report,
            )
            partition = json.loads(report.read_text())["partition"]
            stages = partition["alternatives"][0]["stages"]
            look_ups = {
                stage for stage, node in zip(stages, partition["nodes"])
                if node["class"] == "embedding"
            }
            self.assertEqual(look_ups, {1})
        hn = self.start_hn()
        client = self.client(self.start_cn(hn.address))
        self.wait_ready(client)
        for case in self.cases:
            self.check(client, case)
        # Unknown ids are the client's fault on whichever node they are found.
        case = self.cases[-1]
        bad = {name: tensor.clone() for name, tensor in case.tensors.items()}
        ids = next(
            name for name, tensor in bad.items()
            if tensor.dtype == torch.int64 and "offsets" not in name
        )
        bad[ids].flatten()[0] = 10**9
        with self.assertRaises(InferenceServerException) as caught:
            client.infer(case.model, infer_inputs(bad))
        self.assertIn("INVALID_ARGUMENT", caught.exception.status())
        if not support.GPU:  # a GPU counts wrong ids and names none
            self.assertIn(str(10**9), str(caught.exception))
        self.check(client, case)

    def test_health_and_reflection(self):
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        cn = self.start_cn("127.0.0.1:1")
        with grpc.insecure_channel(cn.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest()
            self.assertEqual(
                stub.Check(request).status,
                health_pb2.HealthCheckResponse.NOT_SERVING,
            )
            from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
                ProtoReflectionDescriptorDatabase,
            )

            database = ProtoReflectionDescriptorDatabase(channel)
            services = database.get_services()
            self.assertIn("inference.GRPCInferenceService", services)
            # Tools such as grpcurl call methods by their descriptions alone.
            for service in services:
                described = [
                    f"{file.package}.{s.name}"
                    for file in [database.FindFileContainingSymbol(service)]
                    for s in file.service
                ]
                self.assertIn(service, described)

    def test_ready_only_while_an_hn_is_there(self):
        hn = self.start_hn()
        port = hn.port
        hn.kill()
        cn = self.start_cn(f"127.0.0.1:{port}")
        client = self.client(cn)
        self.assertTrue(client.is_server_live())
        self.assertFalse(client.is_server_ready())
        with self.assertRaises(InferenceServerException) as caught:
            client.infer(self.cases[0].model, infer_inputs(self.cases[0].tensors))
        self.assertIn("UNAVAILABLE", caught.exception.status())

        def names_the_reason():
            try:
                client.infer(self.cases[0].model, infer_inputs(self.cases[0].tensors))
            except InferenceServerException as error:
                return "connect: Connection refused" in str(error)

        support.wait_until(names_the_reason, "the reason of the failed connection")
        self.start_hn(port=port)
        self.wait_ready(client)
        self.check(client, self.cases[0])

    def test_many_clients_two_models_two_hns(self):
        hns = [self.start_hn(), self.start_hn()]
        cn = self.start_cn(*(hn.address for hn in hns))
        self.wait_ready(self.client(cn))
        threads, per_thread = 8, 500

        def drive(index):
            order = random.Random(index)
            with triton.InferenceServerClient(cn.address) as client:
                for _ in range(per_thread):
                    self.check(client, order.choice(self.cases))

        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(drive, i) for i in range(threads)]:
                done.result()

    def test_killed_hn_gives_errors_or_right_scores_and_service_resumes(self):
        hn = self.start_hn()
        cn = self.start_cn(hn.address)
        self.wait_ready(self.client(cn))
        stop = threading.Event()
        counts = collections.Counter()
        lock = threading.Lock()

        def drive(index):
            order = random.Random(index)
            with triton.InferenceServerClient(cn.address) as client:
                while not stop.is_set():
                    try:
                        self.check(client, order.choice(self.cases))
                        outcome = "right"
                    except InferenceServerException as error:
                        outcome = error.status()
                    with lock:
                        counts[outcome] += 1

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            drivers = [pool.submit(drive, i) for i in range(4)]
            try:
                support.wait_until(lambda: counts["right"] > 50, "load runs")
                hn.kill()
                support.wait_until(
                    lambda: counts["StatusCode.UNAVAILABLE"] > 0,
                    "clients notice",
                )
                self.start_hn(port=hn.port)
                before = counts["right"]
                support.wait_until(
                    lambda: counts["right"] > before + 50, "service resumes"
                )
            finally:
                stop.set()
            for driver in drivers:
                driver.result()
        self.assertEqual(
            set(counts), {"right", "StatusCode.UNAVAILABLE"}, counts
        )

    def test_clean_stop_answers_what_is_in_flight(self):
        hn = self.start_hn()
        cn = self.start_cn(hn.address)
        self.wait_ready(self.client(cn))
        statuses = []

        def drive():
            with triton.InferenceServerClient(cn.address) as client:
                for case in self.cases * 50:
                    try:
                        self.check(client, case)
                        statuses.append("right")
                    except InferenceServerException as error:
                        statuses.append(error.status())
                        return

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            drivers = [pool.submit(drive) for _ in range(4)]
            support.wait_until(lambda: len(statuses) > 20, "load runs")
            self.assertEqual(cn.stop(), 0, cn.output())
            for driver in drivers:
                driver.result()
        self.assertEqual(
            set(statuses) - {"right"}, {"StatusCode.UNAVAILABLE"}, statuses
        )
        self.assertEqual(hn.stop(), 0, hn.output())

    def test_deadline_is_kept(self):
        hn = self.start_hn()
        client = self.client(self.start_cn(hn.address))
        self.wait_ready(client)
        with self.assertRaises(InferenceServerException) as caught:
            client.infer(
                self.cases[0].model,
                infer_inputs(self.cases[0].tensors),
                timeout=1,  # µs, KServe's request parameter
            )
        self.assertIn("DEADLINE_EXCEEDED", caught.exception.status())
        self.check(client, self.cases[0])


class ServingOverShm(Serving, unittest.TestCase):
    transport = "shm"

    def test_gpu_nodes_need_no_tables(self):
        packaged = self.folder / "packaged"
        for name in MODELS:
            done = support.refract(
                "package", self.repository / name, "--for", "gpu-node",
                "--output", packaged,
            )
            self.assertIn(str(packaged / name / "1"), done.stdout)
            self.assertEqual(
                {path.name for path in (packaged / name / "1").iterdir()},
                {"graph.pb", "split_plan.pb", "hn_part.pb", "hn_weights.bin",
                 "sample.safetensors", ".verified.json"},
            )
        hn = support.gpu_node(packaged)
        self.nodes.append(hn)
        client = self.client(self.start_cn(hn.address))
        self.wait_ready(client)
        for case in self.cases:
            self.check(client, case)
        # Copies of whole versions do as well, less the tables.
        bare = self.folder / "bare"
        shutil.copytree(
            self.repository, bare, ignore=shutil.ignore_patterns("tables")
        )
        hn = support.gpu_node(bare)
        self.nodes.append(hn)
        client = self.client(self.start_cn(hn.address))
        self.wait_ready(client)
        for case in self.cases:
            self.check(client, case)


class ServingOverTcp(Serving, unittest.TestCase):
    transport = "tcp"


if __name__ == "__main__":
    unittest.main()
