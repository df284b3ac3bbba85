"""Versions that come and go while CPU node and GPU node serve.

Oracle of scores: `refract run --mode reference`, LibTorch on the original file of
each version. The versions have other weights, so an answer tells its version.
"""

import json
import pathlib
import re
import shutil
import tempfile
import threading
import time
import unittest
import urllib.request

import numpy as np

from models.zoo import safetensors_io
from scripts.lib import nodes
from tests.e2e import support

try:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    from tests.e2e.kserve_requests import infer_inputs
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

MODEL = "wide_deep"
CHANGES = 50


def pinned(*versions):
    return json.dumps({"version_policy": {"specific": {"versions": versions}}})


def shares(traffic):
    return json.dumps({
        "version_policy": {"all": {}},
        "parameters": {"traffic": {"string_value": traffic}},
    })


def rss_kib(node):
    status = pathlib.Path(f"/proc/{node.process.pid}/status").read_text()
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


class Load:
    """Clients that ask without a version until stop()."""

    def __init__(self, address, inputs, expected, clients=3):
        self.address, self.inputs, self.expected = address, inputs, expected
        self.failures, self.latencies, self.versions = [], [], set()
        self.stopping = threading.Event()
        self.threads = [
            threading.Thread(target=self.run, daemon=True) for _ in range(clients)
        ]
        for thread in self.threads:
            thread.start()

    def run(self):
        client = triton.InferenceServerClient(self.address)
        while not self.stopping.is_set():
            begin = time.monotonic()
            try:
                answer = client.infer(MODEL, self.inputs, client_timeout=30)
            except InferenceServerException as error:
                self.failures.append(str(error))
                continue
            self.latencies.append((begin, time.monotonic() - begin))
            version = answer.get_response().model_version
            self.versions.add(version)
            scores = answer.as_numpy("output_0")
            if not np.allclose(scores, self.expected[version], atol=1e-5):
                self.failures.append(f"scores are not those of version {version}")

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()


class ModelControl(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-control-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.full = cls.folder / "full"
        for version in (1, 2, 3):
            exported = support.export(
                MODEL, cls.folder / f"seed{version}", "--seed", version
            )
            support.add_model(cls.full, MODEL, exported / f"{MODEL}.pt2")
        config = cls.full / MODEL / "config.pbtxt"
        config.write_text(
            config.read_text() + "version_policy { latest { num_versions: 1 } }\n"
        )
        exported = cls.folder / "seed1"
        tensors = support.make_inputs(exported / f"{MODEL}.json", 7, 3)
        support.write_tensors(cls.folder / "x.safetensors", tensors)
        cls.inputs = infer_inputs(tensors)
        cls.expected = {}
        for version in (1, 2, 3):
            out = cls.folder / f"y{version}.safetensors"
            support.refract(
                "run", cls.full / MODEL / str(version), "--mode", "reference",
                "--inputs", cls.folder / "x.safetensors", "--outputs", out,
            )
            read = safetensors_io.read(out)
            cls.expected[str(version)] = read["output_0"].numpy()
        if np.allclose(cls.expected["1"], cls.expected["2"], atol=1e-3):
            raise AssertionError("the versions cannot be told apart")

    def repository(self, *versions):
        """A copy with these versions alone."""
        root = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        (root / MODEL).mkdir()
        shutil.copy(self.full / MODEL / "config.pbtxt", root / MODEL)
        for version in versions:
            self.bring(root, version)
        return root

    def bring(self, repository, version):
        aside = repository / f".new{version}"
        shutil.copytree(self.full / MODEL / str(version), aside)
        aside.rename(repository / MODEL / str(version))

    def start(self, cn_repository, hn_repository, cn_arguments, hn_arguments):
        hn = nodes.gpu_node(hn_repository, *hn_arguments)
        self.addCleanup(hn.close)
        cn = nodes.cpu_node(cn_repository, [hn.address], *cn_arguments)
        self.addCleanup(cn.close)
        client = triton.InferenceServerClient(cn.address)
        return cn, hn, client

    def start_explicit(self, repository, hn_repository=None, *arguments):
        explicit = ("--model-control-mode", "explicit")
        return self.start(
            repository, hn_repository or repository,
            (*explicit, "--load-model", MODEL, *arguments), explicit,
        )

    def await_version(self, client, version):
        def served():
            try:
                answer = client.infer(MODEL, self.inputs)
            except InferenceServerException:
                return False
            return answer.get_response().model_version == str(version)

        nodes.wait_until(served, f"version {version} is served")

    def index(self, client):
        return {
            int(entry.version): (entry.state, entry.reason)
            for entry in client.get_model_repository_index().models
        }

    def test_fifty_changes_under_load_fail_no_request_and_keep_no_memory(self):
        repository = self.repository(1, 2)
        cn, hn, client = self.start_explicit(
            repository, None, "--keep-versions", 0
        )
        self.await_version(client, 2)
        load = Load(cn.address, self.inputs, self.expected)
        time.sleep(1)  # until every client and worker has its memory
        after_two = None
        for change in range(CHANGES):
            version = 1 + change % 2
            client.load_model(MODEL, config=pinned(version))
            answer = client.infer(MODEL, self.inputs)
            # The load was answered, so no other version is given out.
            self.assertEqual(answer.get_response().model_version, str(version))
            if change == 1:
                after_two = (rss_kib(cn), rss_kib(hn))
        load.stop()
        self.assertEqual(load.failures, [])
        self.assertEqual(load.versions, {"1", "2"})
        for change in range(CHANGES, 2 * CHANGES):
            client.load_model(MODEL, config=pinned(1 + change % 2))
        after_all = (rss_kib(cn), rss_kib(hn))
        print(
            f"{len(load.latencies)} requests, {CHANGES} changes; RSS after 2 and "
            f"{2 * CHANGES}: CN {after_two[0]} {after_all[0]} KiB, "
            f"HN {after_two[1]} {after_all[1]} KiB"
        )
        for before, after in zip(after_two, after_all):
            self.assertLessEqual(after, before * 1.02)
        self.assertEqual(client.is_model_ready(MODEL), True)
        self.assertEqual(cn.stop(), 0, cn.output())
        self.assertEqual(hn.stop(), 0, hn.output())

    def test_a_version_comes_back_from_memory_within_a_second(self):
        cn, hn, client = self.start_explicit(self.repository(1, 2))
        self.await_version(client, 2)
        client.load_model(MODEL, config=pinned(1))
        state, reason = self.index(client)[2]
        self.assertEqual(state, "UNAVAILABLE")
        self.assertIn("kept in memory", reason)
        load = Load(cn.address, self.inputs, self.expected)
        begin = time.monotonic()
        client.load_model(MODEL, config=pinned(2))
        took = time.monotonic() - begin
        load.stop()
        self.assertLess(took, 1)
        self.assertEqual(load.failures, [])
        self.assertEqual(self.index(client)[2][0], "READY")
        # Without an override: version_policy of config.pbtxt.
        client.load_model(MODEL)
        self.assertEqual(self.index(client)[2][0], "READY")
        print(f"back in {took * 1e3:.1f} ms")

    def versions_of(self, client, requests=200):
        count = {}
        for _ in range(requests):
            version = client.infer(MODEL, self.inputs).get_response().model_version
            count[version] = count.get(version, 0) + 1
        return count

    def test_a_canary_gets_its_share_until_it_is_rolled_back(self):
        cn, hn, client = self.start_explicit(self.repository(1, 2))
        self.await_version(client, 2)
        client.load_model(MODEL, config=pinned(1))
        load = Load(cn.address, self.inputs, self.expected)
        client.load_model(MODEL, config=shares("1=90,2=10"))
        count = self.versions_of(client)
        client.load_model(MODEL, config=shares("1=50,2=50"))
        half = self.versions_of(client)
        # The other shares stay when a change is refused.
        with self.assertRaises(InferenceServerException) as caught:
            client.load_model(MODEL, config=shares("1=90,9=10"))
        self.assertIn("version 9", caught.exception.message())
        with self.assertRaises(InferenceServerException) as caught:
            client.load_model(MODEL, config=shares("1=much"))
        self.assertIn("1=much", caught.exception.message())
        self.assertEqual(set(self.versions_of(client, 20)), {"1", "2"})
        client.load_model(MODEL, config=pinned(1))
        back = self.versions_of(client, 20)
        load.stop()
        self.assertEqual(load.failures, [])
        # Other clients draw, too: the share of these requests varies a little.
        self.assertAlmostEqual(count["2"] / 200, 0.1, delta=0.08)
        self.assertAlmostEqual(half["2"] / 200, 0.5, delta=0.2)
        self.assertEqual(back, {"1": 20})

    def test_polling_takes_over_shares_without_loading_again(self):
        repository = self.repository(1, 2)
        config = repository / MODEL / "config.pbtxt"
        plain = config.read_text().replace("latest { num_versions: 1 }", "all {}")
        config.write_text(plain)
        poll = (
            "--model-control-mode", "poll,explicit", "--repository-poll-secs", "0.2",
            "--load-model", MODEL,
        )
        cn, hn, client = self.start(repository, repository, poll, poll)
        self.await_version(client, 2)
        share = 'parameters { key: "traffic" value { string_value: "1=1,2=1" } }\n'
        config.write_text(plain + share)
        nodes.wait_until(
            lambda: set(self.versions_of(client, 4)) == {"1", "2"},
            "version 1 gets requests",
        )
        self.assertNotIn("was loaded in", cn.output())
        # By request, while the repository is polled.
        client.load_model(MODEL, config=pinned(1))
        time.sleep(0.5)
        self.assertEqual(self.versions_of(client, 10), {"1": 10})

    def test_a_broken_version_leaves_the_old_one_serving(self):
        repository = self.repository(1)
        cn, hn, client = self.start_explicit(
            repository, None, "--strict-readiness"
        )
        self.await_version(client, 1)
        self.bring(repository, 2)
        weights = max(
            (repository / MODEL / "2").rglob("*.safetensors"),
            key=lambda path: path.stat().st_size,
        )
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.unlink()
        weights.write_bytes(data)
        load = Load(cn.address, self.inputs, self.expected)
        with self.assertRaises(InferenceServerException) as caught:
            client.load_model(MODEL)
        load.stop()
        self.assertIn(weights.name, caught.exception.message())
        self.assertEqual(load.failures, [])
        self.assertEqual(load.versions, {"1"})
        index = self.index(client)
        self.assertEqual(index[1][0], "READY")
        self.assertEqual(index[2][0], "UNAVAILABLE")
        self.assertIn(weights.name, index[2][1])
        cn.await_log(weights.name)
        # The node and its answers are as before the failed load.
        self.assertTrue(client.is_server_ready())
        answer = client.infer(MODEL, self.inputs).get_response()
        self.assertEqual(dict(answer.parameters), {})

    def test_a_version_is_served_only_where_both_nodes_have_it(self):
        cn_repository, hn_repository = self.repository(1), self.repository(1)
        cn, hn, client = self.start_explicit(
            cn_repository, hn_repository, "--model-load-timeout", "2"
        )
        self.await_version(client, 1)
        self.bring(cn_repository, 2)
        with self.assertRaises(InferenceServerException) as caught:
            client.load_model(MODEL)
        self.assertIn("version 2", caught.exception.message())
        self.assertIn(hn.address, caught.exception.message())
        self.await_version(client, 1)
        # The copy of the GPU node arrives while the CPU node waits for it.
        late = threading.Timer(0.5, self.bring, (hn_repository, 2))
        late.start()
        client.load_model(MODEL)
        late.join()
        self.await_version(client, 2)

    def test_a_model_is_unloaded_and_loaded_again(self):
        cn, hn, client = self.start_explicit(self.repository(1))
        self.await_version(client, 1)
        client.unload_model(MODEL)
        self.assertEqual(self.index(client)[1], ("UNAVAILABLE", "unloaded"))
        self.assertFalse(client.is_model_ready(MODEL))
        nodes.wait_until(
            lambda: "was unloaded" in hn.output(), "the GPU node lets go of it"
        )
        with self.assertRaises(InferenceServerException):
            client.infer(MODEL, self.inputs)
        with self.assertRaises(InferenceServerException) as caught:
            client.unload_model("nobody")
        self.assertIn("nobody", caught.exception.message())
        client.load_model(MODEL)
        self.await_version(client, 1)

    def test_polling_follows_the_repository(self):
        cn_repository, hn_repository = self.repository(1), self.repository(1)
        poll = ("--model-control-mode", "poll", "--repository-poll-secs", "0.2")
        cn, hn, client = self.start(cn_repository, hn_repository, poll, poll)
        self.await_version(client, 1)
        load = Load(cn.address, self.inputs, self.expected)
        # In either order.
        self.bring(cn_repository, 2)
        time.sleep(0.5)
        self.bring(hn_repository, 2)
        self.await_version(client, 2)
        self.bring(hn_repository, 3)
        time.sleep(0.5)
        self.bring(cn_repository, 3)
        self.await_version(client, 3)
        # A repository that vanishes changes nothing.
        cn_repository.rename(cn_repository.with_suffix(".away"))
        nodes.wait_until(
            lambda: "cannot be polled" in cn.output(), "the log says so"
        )
        self.await_version(client, 3)
        # Nor does a folder that its volume has left.
        cn_repository.mkdir()
        nodes.wait_until(
            lambda: "may not be mounted" in self.poll_error(cn), "the log says so"
        )
        self.await_version(client, 3)
        cn_repository.rmdir()
        cn_repository.with_suffix(".away").rename(cn_repository)
        shutil.rmtree(cn_repository / MODEL / "3")
        self.await_version(client, 2)
        # Each poll of the GPU node fails, too, and its log says so once per reason.
        hn_repository.rename(hn_repository.with_suffix(".away"))
        nodes.wait_until(
            lambda: "cannot be polled" in hn.output(), "the log says so"
        )
        time.sleep(1)
        self.await_version(client, 2)
        # A poll during the renaming may fail for another reason than the others.
        reasons = re.findall(r"cannot be polled.*", hn.output())
        self.assertEqual(len(reasons), len(set(reasons)), reasons)
        self.assertLessEqual(len(reasons), 2, reasons)
        hn_repository.with_suffix(".away").rename(hn_repository)
        nodes.wait_until(
            lambda: "can be polled again" in hn.output(), "the log says so"
        )
        load.stop()
        self.assertEqual(load.failures, [])
        with self.assertRaises(InferenceServerException) as caught:
            client.load_model(MODEL)
        self.assertIn("--model-control-mode explicit", str(caught.exception))

    def test_a_version_that_is_half_copied_is_served_when_it_is_whole(self):
        repository = self.repository(1)
        config = repository / MODEL / "config.pbtxt"
        config.write_text(
            config.read_text().replace("latest { num_versions: 1 }", "all { }")
        )
        poll = ("--model-control-mode", "poll", "--repository-poll-secs", "0.1")
        cn, hn, client = self.start(repository, repository, poll, poll)
        self.await_version(client, 1)
        load = Load(cn.address, self.inputs, self.expected)
        whole, place = self.full / MODEL / "2", repository / MODEL / "2"
        place.mkdir()
        files = sorted(
            path.relative_to(whole) for path in whole.rglob("*") if path.is_file()
        )
        for name in ("graph.pb", "split_plan.pb", "model.pt2"):
            files.append(files.pop(files.index(pathlib.Path(name))))
        for file in files:
            (place / file).parent.mkdir(exist_ok=True)
            data = (whole / file).read_bytes()
            if file.suffix in (".pb", ".pt2"):
                (place / file).write_bytes(data[: len(data) // 2])
                time.sleep(0.5)
                self.assertEqual(self.index(client)[1][0], "READY")
                self.assertNotEqual(self.index(client)[2][0], "READY")
            (place / file).write_bytes(data)
        self.await_version(client, 2)
        load.stop()
        self.assertEqual(load.failures, [])
        # Polls that change nothing are neither logged nor counted.
        self.assertEqual(cn.output().count("versions 1 are served"), 0)
        self.assertEqual(self.switches(cn), 1)

    def switches(self, node):
        with urllib.request.urlopen(node.metrics_url, timeout=30) as answer:
            text = answer.read().decode()
        return int(
            re.search(
                r'version_changes_total\{change="switched"\} (\d+)', text
            )[1]
        )

    def poll_error(self, node):
        lines = [x for x in node.output().splitlines() if "polled" in x]
        return lines[-1] if lines else ""

    def test_a_version_that_is_not_there_leaves_no_trace(self):
        cn, hn, client = self.start_explicit(self.repository(1))
        self.await_version(client, 1)
        with self.assertRaises(InferenceServerException) as caught:
            client.load_model(MODEL, config=pinned(9))
        self.assertIn("NOT_FOUND", caught.exception.status())
        self.assertIn("version 9: the repository has no folder",
                      caught.exception.message())
        self.assertEqual(list(self.index(client)), [1])
        client.unload_model(MODEL)
        with self.assertRaises(InferenceServerException) as caught:
            client.infer(MODEL, self.inputs)
        self.assertIn("version 1 is not served: unloaded",
                      caught.exception.message())

    def test_requests_to_change_models_are_checked(self):
        cn, hn, client = self.start_explicit(self.repository(1))
        self.await_version(client, 1)
        for config, words in (
            ("{", "JSON"),
            ('{"max_batch_size": 8}', "max_batch_size"),
            (pinned(7), "version 7"),
            ('{"name": "other"}', "'other'"),
        ):
            with self.assertRaises(InferenceServerException) as caught:
                client.load_model(MODEL, config=config)
            self.assertIn(words, caught.exception.message())
        with self.assertRaises(InferenceServerException) as caught:
            client.load_model("nobody")
        self.assertIn("nobody", caught.exception.message())
        self.await_version(client, 1)

    def test_without_model_control_nothing_changes(self):
        repository = self.repository(1)
        cn, hn, client = self.start(repository, repository, (), ())
        self.await_version(client, 1)
        for change in (client.load_model, client.unload_model):
            with self.assertRaises(InferenceServerException) as caught:
                change(MODEL)
            self.assertIn("--model-control-mode", caught.exception.message())
        self.assertNotIn(
            "model_repository", client.get_server_metadata().extensions
        )


if __name__ == "__main__":
    unittest.main()
