"""Ids of requests in the logs of both nodes, and slow requests."""

import unittest

import torch

from tests.e2e import support
from tests.e2e.serving.overload_test import Deployment

try:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    from tests.e2e.kserve_requests import request_of
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")


class RequestLog(Deployment, unittest.TestCase):
    def start(self, *arguments):
        self.hn = support.gpu_node(self.repository, *arguments)
        self.addCleanup(self.hn.close)
        self.cn = support.cpu_node(
            self.repository, [self.hn.address], *arguments
        )
        self.addCleanup(self.cn.close)
        channel = grpc.insecure_channel(self.cn.address)
        self.addCleanup(channel.close)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        support.wait_until(
            lambda: self.stub.ServerReady(service_pb2.ServerReadyRequest()).ready,
            "the CN is ready",
        )

    def infer(self, request_id, rows):
        request = request_of("deep", {"x": torch.randn(rows, 2)})
        request.id = request_id
        answer = self.stub.ModelInfer(request, timeout=60)
        self.assertEqual(answer.id, request_id)

    def lines(self, node):
        return [
            line.partition("] ")[2]
            for line in node.output().splitlines()
            if "slow: " in line
        ]

    def test_slow_requests_are_logged_by_both_nodes(self):
        # 128 rows take about 10 ms, so one row is quick and 1024 rows are slow.
        self.start("--slow-request-ms", 20)
        self.infer("first", 1)  # touches all memory
        before = len(self.lines(self.hn)), len(self.lines(self.cn))
        self.infer("quick", 1)
        self.infer("slow\nE0101 forged", 1024)
        support.wait_until(
            lambda: len(self.lines(self.hn)) > before[0]
            and len(self.lines(self.cn)) > before[1],
            "it is logged by both",
        )
        hn = self.lines(self.hn)[before[0] :]
        cn = self.lines(self.cn)[before[1] :]
        self.assertFalse([line for line in hn + cn if "quick" in line])
        name = r"request 'slow\nE0101 forged' of model 'deep'"
        self.assertTrue(hn[-1].startswith(f"slow: {name} version 1 took "), hn)
        self.assertIn("1024 row(s)", hn[-1])
        self.assertTrue(cn[-1].startswith(f"slow: {name} took "), cn)
        self.assertIn(f"at the GPU node {self.hn.address}, ", cn[-1])

    def test_none_is_slow_unless_asked(self):
        self.start()
        self.infer("any", 1024)
        self.assertEqual(self.lines(self.hn) + self.lines(self.cn), [])


if __name__ == "__main__":
    unittest.main()
