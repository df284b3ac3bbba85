"""`refract status` and the page of a node, with a CPU node and a GPU node."""

import json
import pathlib
import shutil
import subprocess
import tempfile
import unittest
import urllib.parse
import urllib.request

from tests.e2e import chromium, support


def metrics_address(node):
    return urllib.parse.urlsplit(node.metrics_url).netloc


class Status(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-status-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        support.export("dlrm", cls.folder / "dlrm")
        cls.repository = cls.folder / "repo"
        support.add_model(
            cls.repository, "ranker", cls.folder / "dlrm" / "dlrm.pt2",
            method="heuristic",
        )

    def setUp(self):
        self.hn = support.gpu_node(self.repository)
        self.addCleanup(self.hn.close)
        self.cn = support.cpu_node(self.repository, [self.hn.address])
        self.addCleanup(self.cn.close)
        self.nodes = [metrics_address(self.cn), metrics_address(self.hn)]
        support.wait_until(lambda: self.status()[0] == 0, "a healthy fleet")

    def status(self, *addresses):
        done = support.refract(
            "status", *(addresses or self.nodes), "--json", "-", check=False
        )
        return done.returncode, json.loads(done.stdout)

    def test_shows_nodes_models_connections_and_load(self):
        code, fleet = self.status()
        self.assertEqual((code, fleet["problems"]), (0, []))
        cn, hn = (node["status"] for node in fleet["nodes"])
        self.assertEqual((cn["role"], hn["role"]), ("cpu_node", "gpu_node"))
        (link,) = cn["gpu_nodes"]
        self.assertEqual(link["address"], self.hn.address)
        self.assertTrue(link["connected"])
        self.assertIn(link["path"], ("shm", "tcp", "verbs"))
        for models in (cn["models"], hn["models"], link["models"]):
            (model,) = models
            self.assertEqual(
                (model["name"], model["version"], model["ready"]), ("ranker", 1, True)
            )
        load = subprocess.Popen(
            [support.program("refract"), "bench", "serving", "--target",
             self.cn.address, "--model", "ranker", "--qps", "50", "--duration", "4",
             "--query-sizes", "fixed:2"],
            stdout=subprocess.DEVNULL,
        )
        rates = []
        while load.poll() is None:
            _, fleet = self.status()
            rates.append([node["succeeded_per_s"] for node in fleet["nodes"]])
        self.assertEqual(load.returncode, 0)
        self.assertGreater(max(cn for cn, _ in rates), 10)
        self.assertGreater(max(hn for _, hn in rates), 10)

        text = support.refract("status", *self.nodes).stdout
        for part in (*self.nodes, "CN", "HN cpu", "ranker", self.hn.address,
                     link["path"], "Nothing is wrong."):
            self.assertIn(part, text)

    def test_says_what_is_wrong(self):
        support.refract("drain", self.nodes[1])
        code, fleet = self.status()
        self.assertEqual(code, 1)
        self.assertIn("drained", json.dumps(fleet["problems"]))
        support.refract("undrain", self.nodes[1])
        support.wait_until(lambda: self.status()[0] == 0, "an undrained fleet")

        self.hn.kill()
        support.wait_until(
            lambda: any(
                f"GPU node {self.hn.address} is not connected" in problem["what"]
                for problem in self.status()[1]["problems"]
            ),
            "the lost GPU node",
        )
        code, fleet = self.status()
        self.assertEqual(code, 1)
        by_node = {}
        for problem in fleet["problems"]:
            by_node.setdefault(problem["node"], []).append(problem["what"])
        self.assertIn("not ready", " ".join(by_node[self.nodes[0]]))
        self.assertIn("ranker", " ".join(by_node[self.nodes[0]]))
        self.assertEqual(len(by_node[self.nodes[1]]), 1)  # no answer
        done = support.refract("status", *self.nodes, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("WRONG", done.stdout)
        self.assertIn("no answer", done.stdout)

    def test_bad_addresses(self):
        done = support.refract("status", "nowhere", check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("'nowhere' is not HOST:PORT", done.stderr)
        # gRPC is no HTTP server.
        done = support.refract("status", self.cn.address, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"WRONG  {self.cn.address}: the answer is not HTTP", done.stdout)
        self.assertIn("--metrics-port", done.stdout)

    def test_watches(self):
        watch = subprocess.Popen(
            [support.program("refract"), "status", *self.nodes, "--watch",
             "--interval", "0.2"],
            stdout=subprocess.PIPE, text=True,
        )
        text = ""
        for line in watch.stdout:
            text += line
            if text.count("Nothing is wrong.") > 2:
                break
        watch.terminate()
        text += watch.communicate()[0]
        self.assertGreater(text.count("Nothing is wrong."), 2)
        self.assertNotIn("\x1b", text)  # no terminal

    @unittest.skipIf(chromium.find() is None, "Chromium is not installed")
    def test_the_page_shows_the_same(self):
        page = chromium.Page()
        self.addCleanup(page.close)

        def shows(*texts):
            body = page.evaluate("document.body.innerText")
            return all(text in body for text in texts)

        page.open(f"http://{self.nodes[1]}/")
        support.wait_until(
            lambda: shows(f"GPU node {self.nodes[1]}", "serving", "ranker", "nothing"),
            "the GPU node's page",
        )
        page.open(f"http://{self.nodes[0]}/")
        support.wait_until(
            lambda: shows(f"CPU node {self.nodes[0]}", "serving", "ranker", "nothing",
                          self.hn.address),
            "the CPU node's page",
        )
        self.assertEqual(page.happened("Runtime.exceptionThrown"), [])
        asked = {e["request"]["url"] for e in page.happened("Network.requestWillBeSent")}
        for url in asked - {"about:blank"}:
            self.assertTrue(url.startswith(f"http://{self.nodes[0]}/"), url)
        # The page refreshes itself.
        self.hn.kill()
        support.wait_until(
            lambda: shows(f"GPU node {self.hn.address}: not connected", "not ready"),
            "the lost GPU node on the page",
        )
        self.cn.kill()
        support.wait_until(lambda: shows("no answer"), "the page without its node")

    def test_pages_are_read_only(self):
        for node in self.nodes:
            for target in ("/", "/status"):
                request = urllib.request.Request(
                    f"http://{node}{target}", method="POST", data=b""
                )
                with self.assertRaises(urllib.error.HTTPError) as raised:
                    urllib.request.urlopen(request)
                self.assertEqual(raised.exception.code, 405)


if __name__ == "__main__":
    unittest.main()
