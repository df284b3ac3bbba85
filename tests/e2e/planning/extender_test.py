"""`refract extender` as a process: recorded requests of kube-scheduler over HTTP,
and an API server that it reads nodes and pods from and binds through."""

import http.server
import json
import signal
import subprocess
import threading
import unittest
import urllib.error
import urllib.parse
import urllib.request

from scripts.lib import nodes
from tests.e2e import support

RECORDED = nodes.SOURCE / "tests" / "placement" / "extender" / "recorded"


def recorded(name):
    return (RECORDED / name).read_bytes()


class ApiServer(http.server.ThreadingHTTPServer):
    """Pages of two objects, and bindings."""

    def __init__(self):
        self.bindings, self.pages = [], 0
        super().__init__(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    def close(self):
        self.shutdown()
        self.thread.join()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body):
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        whole = json.loads(recorded(url.path.rsplit("/", 1)[1] + ".json"))
        begin = int(query.get("continue", ["at+0/="])[0][3:-2])
        whole["metadata"].pop("continue", None)
        if begin + 2 < len(whole["items"]):
            whole["metadata"]["continue"] = f"at+{begin + 2}/="
        whole["items"] = whole["items"][begin : begin + 2]
        self.server.pages += 1
        self.answer(200, whole)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["metadata"]["name"] == "gone":
            return self.answer(409, {"message": "the pod is gone"})
        self.server.bindings.append((self.path, body))
        self.answer(201, {})

    def log_message(self, *arguments):
        pass


class Extender:
    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [nodes.program("refract"), "extender", "--port", "0",
             *map(str, arguments)],
            stdout=subprocess.PIPE, text=True,
        )
        self.address = self.process.stdout.readline().split()[-1]

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def post(self, verb, body):
        request = urllib.request.Request(
            f"http://{self.address}/{verb}", data=body, method="POST"
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())


class ExtenderTest(unittest.TestCase):
    def start(self, *arguments):
        extender = Extender(*arguments)
        self.addCleanup(extender.close)
        return extender

    def test_a_scheduling_cycle(self):
        api = ApiServer()
        self.addCleanup(api.close)
        extender = self.start("--api-server", "127.0.0.1:%d" % api.server_port)
        found = extender.post("filter", recorded("filter_names.json"))
        self.assertEqual(found["NodeNames"], ["gpu-a", "gpu-b", "gpu-c"])
        self.assertEqual(set(found["FailedNodes"]), {"gpu-d", "cpu-a"})
        self.assertEqual(api.pages, 3 + 3)  # 5 nodes and 6 pods by two
        scores = extender.post("prioritize", recorded("prioritize_names.json"))
        self.assertEqual(
            {s["Host"]: s["Score"] for s in scores},
            {"gpu-a": 10, "gpu-b": 1, "gpu-c": 5},
        )
        bound = extender.post("bind", recorded("bind.json"))
        self.assertEqual(bound, {"Error": ""})
        ((path, binding),) = api.bindings
        self.assertEqual(
            path, "/api/v1/namespaces/ranking/pods/ranker-hn-0/binding"
        )
        self.assertEqual(binding["target"]["name"], "gpu-a")
        self.assertEqual(binding["metadata"]["uid"], "u-hn-0")
        # The node's last GPU is gone, although the list does not say so.
        pod = json.loads(recorded("filter_names.json"))
        pod["Pod"]["metadata"]["uid"] = "u-hn-1"
        found = extender.post("filter", json.dumps(pod).encode())
        self.assertIn("gpu-a", found["FailedNodes"])
        body = json.loads(recorded("bind.json")) | {"PodName": "gone"}
        refused = extender.post("bind", json.dumps(body).encode())
        self.assertIn("409", refused["Error"])
        with self.assertRaises(urllib.error.HTTPError) as bad:
            extender.post("filter", b"no JSON")
        self.assertEqual(bad.exception.code, 400)
        bad.exception.close()
        extender.process.send_signal(signal.SIGTERM)
        self.assertEqual(extender.process.wait(30), 0)

    def test_files_in_place_of_an_api_server(self):
        extender = self.start(
            "--nodes-file", RECORDED / "nodes.json",
            "--pods-file", RECORDED / "pods.json",
        )
        found = extender.post("filter", recorded("filter_nodes.json"))
        names = [n["metadata"]["name"] for n in found["Nodes"]["items"]]
        self.assertEqual(names, ["gpu-a", "gpu-b", "gpu-c"])
        bound = extender.post("bind", recorded("bind.json"))
        self.assertIn("no API server", bound["Error"])

    def test_bad_input(self):
        nodes_file = RECORDED / "nodes.json"
        for arguments, said in (
            ([], "--api-server"),
            (["--nodes-file", nodes_file], "--pods-file"),
            (["--nodes-file", nodes_file, "--pods-file", "/missing"], "/missing"),
            (["--nodes-file", nodes_file, "--pods-file", __file__], "items"),
            (["--api-server", "http://x:1"], "HOST:PORT"),
            (["--api-server", "x:1", "--host", "here"], "IP address"),
        ):
            done = support.refract("extender", *arguments, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
