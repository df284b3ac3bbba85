"""Traces of requests: exported bytes are read by OpenTelemetry's own messages."""

import base64
import http.server
import json
import pathlib
import statistics
import threading
import unittest
import urllib.error
import urllib.request

import torch

from tests.e2e import support
from tests.e2e.serving.overload_test import Deployment

try:
    import grpc
    import tritonclient.grpc
    import tritonclient.http
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    from tests.e2e.kserve_requests import request_of
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc,http] is missing: {error}")
try:
    from google.protobuf import json_format
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
    from opentelemetry.proto.trace.v1 import trace_pb2
except ImportError as error:
    raise unittest.SkipTest(f"opentelemetry-proto is missing: {error}")

CN_STAGES = ["decode", "cn_queue", "cn_pre", "gpu_node", "resume", "cn_post", "encode"]
HN_STAGES = ["hn_queue", "hn_execute", "hn_answer"]


class Collector(http.server.ThreadingHTTPServer):
    """Takes OTLP over HTTP."""

    def __init__(self):
        received = self.received = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append((self.path, self.headers["Content-Type"], body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *arguments):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def spans(self):
        """[(resource attributes, span)] of all requests so far."""
        found = []
        for path, kind, body in list(self.received):
            assert (path, kind) == ("/v1/traces", "application/x-protobuf")
            message = trace_service_pb2.ExportTraceServiceRequest()
            assert message.ParseFromString(body) == len(body)
            # Every field is one that OpenTelemetry knows.
            before = message.ByteSize()
            message.DiscardUnknownFields()
            assert message.ByteSize() == before == len(body)
            found += spans_of(message)
        return found


def spans_of(message):
    return [
        ({a.key: a.value.string_value for a in of.resource.attributes}, span)
        for of in message.resource_spans
        for scope in of.scope_spans
        for span in scope.spans
    ]


def parent(trace, flag="01"):
    return f"00-{trace:032x}-{7:016x}-{flag}"


class Tracing(Deployment, unittest.TestCase):
    def start(self, *arguments):
        self.hn = support.gpu_node(self.repository)
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

    def infer(self, traceparent=None, request_id="", model="deep"):
        request = request_of(model, {"x": torch.randn(4, 2)})
        request.id = request_id
        metadata = [("traceparent", traceparent)] if traceparent else None
        return self.stub.ModelInfer(request, timeout=60, metadata=metadata)

    def post(self, path, body, **headers):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.cn.http_port}{path}",
            data=json.dumps(body).encode(), headers=headers,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def check_split(self, spans, trace):
        """The spans of a request that a GPU node answered."""
        mine = [(r, s) for r, s in spans if s.trace_id.hex() == f"{trace:032x}"]
        by_name = {span.name: (resource, span) for resource, span in mine}
        self.assertEqual(
            sorted(by_name), sorted(["request", "hn_request", *CN_STAGES, *HN_STAGES])
        )
        resource, root = by_name["request"]
        self.assertEqual(resource["service.name"], "ranker")
        self.assertEqual(root.parent_span_id.hex(), f"{7:016x}")
        self.assertEqual(root.kind, trace_pb2.Span.SPAN_KIND_SERVER)
        self.assertEqual(root.flags & 1, 1)
        for parent_span, names, service in (
            (root, CN_STAGES, "ranker"),
            (by_name["hn_request"][1], HN_STAGES, "refract-gpu-node"),
        ):
            at = parent_span.start_time_unix_nano
            for name in names:
                resource, span = by_name[name]
                self.assertEqual(span.parent_span_id, parent_span.span_id, name)
                self.assertEqual(resource["service.name"], service)
                self.assertEqual(span.start_time_unix_nano, at, name)
                at = span.end_time_unix_nano
            self.assertEqual(at, parent_span.end_time_unix_nano)
        resource, hn = by_name["hn_request"]
        self.assertEqual(resource["server.address"], self.hn.address)
        away = by_name["gpu_node"][1]
        self.assertEqual(hn.parent_span_id, away.span_id)
        self.assertGreaterEqual(hn.start_time_unix_nano, away.start_time_unix_nano)
        self.assertLessEqual(hn.end_time_unix_nano, away.end_time_unix_nano)
        return {a.key: a.value for a in root.attributes}

    def test_opentelemetry_reads_what_is_exported(self):
        collector = Collector()
        self.addCleanup(collector.server_close)
        self.addCleanup(collector.shutdown)
        port = collector.server_address[1]
        self.start(
            "--trace-config", "mode=opentelemetry", "--trace-config", "rate=0",
            "--trace-config", f"opentelemetry,url=http://127.0.0.1:{port}/v1/traces",
            "--trace-config", "opentelemetry,resource=service.name=ranker",
            "--trace-config", "opentelemetry,bsp_schedule_delay=20",
            "--allow-trace-settings",
        )
        self.infer(parent(1), request_id="called\nso")
        self.infer(parent(2, flag="00"))  # not sampled
        self.infer("no traceparent")
        self.infer()
        status, answer = self.post(
            "/v2/models/deep/infer",
            {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32",
                         "data": [0.5, 1]}]},
            traceparent=parent(3),
        )
        self.assertEqual(status, 200, answer)
        # Failed requests are traced although they are not sampled.
        with self.assertRaises(grpc.RpcError):
            self.infer(parent(4, flag="00"), model="unknown")
        status, _ = self.post("/v2/models/deep/infer", {"inputs": []})
        self.assertEqual(status, 400)
        support.wait_until(
            lambda: sum(s.name == "request" for _, s in collector.spans()) >= 4,
            "the traces arrive",
        )
        spans = collector.spans()
        root = self.check_split(spans, 1)
        self.assertEqual(root["refract.request_id"].string_value, "called\nso")
        self.assertEqual(root["refract.model"].string_value, "deep")
        self.assertEqual(root["refract.rows"].int_value, 4)
        self.assertEqual(root["refract.attempts"].int_value, 1)
        self.check_split(spans, 3)
        failed = [s for _, s in spans if s.status.code == trace_pb2.Status.STATUS_CODE_ERROR]
        self.assertEqual([s.name for s in failed], ["request", "request"])
        self.assertEqual(failed[0].trace_id.hex(), f"{4:032x}")
        self.assertIn("unknown", failed[0].status.message)
        self.assertEqual(sum(s.name == "request" for _, s in spans), 4)
        self.settings()
        with urllib.request.urlopen(self.cn.metrics_url, timeout=60) as page:
            text = page.read().decode()
        self.assertIn('refract_trace_spans_total{outcome="dropped"} 0\n', text)

    def settings(self):
        """Triton's clients read and change the settings."""
        with tritonclient.http.InferenceServerClient(
            f"127.0.0.1:{self.cn.http_port}"
        ) as client:
            settings = client.get_trace_settings()
            self.assertEqual(settings["trace_level"], ["TIMESTAMPS"])
            self.assertEqual(settings["trace_rate"], "0")
            self.assertEqual(settings["trace_mode"], "opentelemetry")
            changed = client.update_trace_settings(
                settings={"trace_level": ["OFF"], "trace_rate": "5"}
            )
            self.assertEqual(changed["trace_level"], ["OFF"])
            self.assertEqual(client.get_trace_settings("deep"), changed)
        with tritonclient.grpc.InferenceServerClient(self.cn.address) as client:
            settings = client.get_trace_settings(as_json=True)["settings"]
            self.assertEqual(settings["trace_rate"]["value"], ["5"])
            client.update_trace_settings(settings={"trace_rate": None})
            settings = client.get_trace_settings(as_json=True)["settings"]
            self.assertEqual(settings["trace_rate"]["value"], ["0"])
            for wrong in ({"trace_file": "/tmp/x"}, {"trace_rate": "x"}):
                with self.assertRaisesRegex(Exception, next(iter(wrong))):
                    client.update_trace_settings(settings=wrong)
        status, answer = self.post("/v2/trace/setting", {"trace_rate": "x"})
        self.assertEqual(status, 400)
        self.assertIn("trace_rate", answer["error"])

    def test_the_planner_takes_a_file_as_costs(self):
        file = pathlib.Path(self.folder) / "all.jsonl"
        self.start(
            "--trace-config", f"triton,file={file}", "--trace-config", "rate=1",
            "--trace-config", "opentelemetry,bsp_schedule_delay=20",
        )
        for _ in range(120):
            self.infer()
        support.wait_until(
            lambda: file.read_bytes().count(b"\n") == 120, "120 lines"
        )
        # At a rate at which requests never wait, the median latency of the
        # plan is among those of the requests without their waits.
        alone = []
        for line in file.read_text().splitlines():
            spans = {
                span["name"]: int(span["endTimeUnixNano"])
                - int(span["startTimeUnixNano"])
                for of in json.loads(line)["resourceSpans"]
                for span in of["scopeSpans"][0]["spans"]
            }
            alone.append((spans["request"] - spans["cn_queue"]
                          - spans["hn_queue"]) / 1e6)
        part = {"node": "here", "memory_gib": 0, "cores": 1}
        spec = pathlib.Path(self.folder) / "spec.json"
        spec.write_text(json.dumps({
            "nodes": [{"name": "here", "cores": 1, "memory_gib": 1, "gpus": 1,
                       "price_per_h": 1}],
            "services": [{
                "name": "deep",
                "model": {"traces": {"files": str(file)}},
                "slo": {"p99_ms": 1000},
                "traffic": {"queries_per_s": 0.01, "query_sizes": "fixed:4"},
                "cn": part, "hn": part,
            }],
        }))
        answer = spec.with_suffix(".out")
        support.refract(
            "plan", spec, "--json", answer, "--no-sensitivity",
            "--requests", 2000, "--seeds", 2,
        )
        service = json.loads(answer.read_text())["services"][0]
        p50 = service["answer"]["at_design_rate"]["p50_ms"]["mean"]
        twentieths = statistics.quantiles(alone, n=20)
        self.assertGreater(p50, twentieths[0])
        self.assertLess(p50, twentieths[-1])
        self.assertIn("traces of 120 of 120 requests", json.dumps(service))
        self.assertIn("without bytes, so no NIC has work", json.dumps(service))
        spec.write_text(spec.read_text().replace(
            '"traces": {', '"traces": {"model": "wide", '))
        refused = support.refract("plan", spec, check=False)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("has 0 traces of requests of model 'wide'",
                      refused.stderr)

    def test_a_file_has_a_line_per_request(self):
        file = pathlib.Path(self.folder) / "traces.jsonl"
        self.start(
            "--trace-config", f"triton,file={file}", "--trace-config", "rate=2",
            "--trace-config", "opentelemetry,bsp_schedule_delay=20",
        )
        for _ in range(6):
            self.infer()
        support.wait_until(
            lambda: file.read_bytes().count(b"\n") == 3, "three lines"
        )
        self.assertEqual(file.stat().st_mode & 0o777, 0o600)
        for line in file.read_text().splitlines():
            # OTLP's JSON has ids in hexadecimal, Protobuf's in base64.
            read = json.loads(line)
            for of in read["resourceSpans"]:
                for span in of["scopeSpans"][0]["spans"]:
                    for key in ("traceId", "spanId", "parentSpanId"):
                        if key in span:
                            span[key] = base64.b64encode(
                                bytes.fromhex(span[key])
                            ).decode()
            message = json_format.ParseDict(
                read, trace_service_pb2.ExportTraceServiceRequest()
            )
            spans = spans_of(message)
            self.assertEqual(len({span.trace_id for _, span in spans}), 1)
            self.assertEqual(
                sorted(span.name for _, span in spans),
                sorted(["request", "hn_request", *CN_STAGES, *HN_STAGES]),
            )
        # Changes are off unless allowed.
        status, answer = self.post("/v2/trace/setting", {"trace_level": "OFF"})
        self.assertEqual(status, 400)
        self.assertIn("--allow-trace-settings", answer["error"])

    def test_wrong_settings_end_the_program(self):
        for text in ("rate=x", "triton,file=/no/such/folder/t"):
            done = support.start_once(
                support.program("refract-cpu-node"), "--model-repository",
                self.repository, "--trace-config", text, check=False,
            )
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
