"""A GPU node that executes requests of two CPU nodes together."""

import concurrent.futures
import contextlib
import pathlib
import re
import shutil
import signal
import tempfile
import threading
import unittest

import numpy as np
import torch

from tests.e2e import support
from tests.e2e.serving.serving_test import infer_inputs, setup_repository, triton

# Clients of each CN at the same time. A larger batch holds requests of both CNs.
CLIENTS_PER_CN = 4
REQUESTS_PER_CLIENT = 60
# How long a GPU node is stopped, and let go on, for requests to pile up.
PULSE_S = 0.02


@contextlib.contextmanager
def pulses(node):
    """Stops `node` again and again, so that it finds many requests at once
    however fast or busy the machine is."""
    done = threading.Event()

    def run():
        while not done.is_set():
            node.process.send_signal(signal.SIGSTOP)
            done.wait(PULSE_S)
            node.process.send_signal(signal.SIGCONT)
            done.wait(PULSE_S)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def summary(node, model):
    """{what: count} of the line that a GPU node logs about a model at its end."""
    line = re.search(
        rf"model '{model}' version 1: (\d+ succeeded.*)", node.output()
    ).group(1)
    largest = re.search(r"executions of up to (\d+) requests", line).group(1)
    merged = re.search(r"(\d+) requests shared an execution", line).group(1)
    return {
        "succeeded": int(line.split()[0]),
        "failed": int(re.search(r"(\d+) failed", line).group(1)),
        "largest": int(largest),
        "merged": int(merged),
        "line": line,
    }


class Positions(torch.nn.Module):
    """Steps of a history with their positions, which are looked up in a table:
    one vector per step for all rows, longer than a request's header."""

    STEPS, WIDTH = 64, 32

    def __init__(self):
        super().__init__()
        self.items = torch.nn.Embedding(100, self.WIDTH)
        self.positions = torch.nn.Embedding(self.STEPS, self.WIDTH)
        self.top = torch.nn.Linear(self.WIDTH, 1)

    def forward(self, history):
        steps = torch.arange(history.shape[1])
        vectors = torch.relu(self.items(history) + self.positions(steps))
        return self.top(vectors.mean(1))


class Flattened(Positions):
    """The histories of all items in one vector, item after item."""

    def forward(self, history):
        vectors = torch.relu(self.items(history))
        return self.top(vectors.view(-1, self.STEPS, self.WIDTH).mean(1))


class PositionsTest(unittest.TestCase):
    def test_requests_with_positions_share_executions(self):
        self.share(Positions())

    def test_positions_of_fewer_bytes_share_executions(self):
        self.share(
            Positions(), "--wire-dtype", "int8", "--wire-error-bound", "1", atol=0.02
        )

    def test_requests_with_flattened_histories_share_executions(self):
        self.share(Flattened(), flat=True)

    def share(self, module, *wire, flat=False, atol=1e-5):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-e2e-"))
        self.addCleanup(shutil.rmtree, folder)
        module.eval()
        batch = torch.export.Dim("batch", min=1, max=1000)
        sample = torch.zeros(3, Positions.STEPS, dtype=torch.int64)
        program = torch.export.export(
            module, (sample.flatten() if flat else sample,),
            dynamic_shapes=({0: Positions.STEPS * batch if flat else batch},),
        )
        torch.export.save(program, folder / "m.pt2")
        repository = folder / "repo"
        support.refract(
            "import", folder / "m.pt2", "--repo", repository, "--name", "m",
            "--no-golden",
        )
        told = support.refract(
            "partition", repository / "m", "--method", "heuristic", "--write",
            *wire,
        ).stdout
        self.assertIn("rows on the HN: requests may be split and merged", told)
        with open(repository / "m/config.pbtxt", "a") as config:
            config.write("dynamic_batching { max_queue_delay_microseconds: 300000 }")
        hn = support.gpu_node(repository)
        self.addCleanup(hn.close)
        cn = support.cpu_node(repository, [hn.address])
        self.addCleanup(cn.close)
        with triton.InferenceServerClient(cn.address) as client:
            support.wait_until(client.is_server_ready, "the CN is ready")

        def one(seed):
            # Few rows go into a slot; many rows are pulled.
            rows = (1, 3, 40)[seed % 3]
            history = np.random.default_rng(seed).integers(
                0, 100, (rows, Positions.STEPS)
            )
            if flat:
                history = history.reshape(-1)
            with triton.InferenceServerClient(cn.address) as client:
                answer = client.infer("m", infer_inputs({"history": torch.from_numpy(history)}))
            with torch.no_grad():
                wanted = module(torch.from_numpy(history)).numpy()
            np.testing.assert_allclose(
                answer.as_numpy("output_0"), wanted, atol=atol, rtol=0
            )

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            with pulses(hn):
                for done in [pool.submit(one, seed) for seed in range(60)]:
                    done.result()
        self.assertEqual(hn.stop(), 0, hn.output())
        counts = summary(hn, "m")
        self.assertEqual((counts["succeeded"], counts["failed"]), (60, 0), counts)
        # How many depends on the machine: 8 to 26 of 60 were seen.
        self.assertGreater(counts["merged"], 0, counts)
        self.assertNotIn("never executed together", hn.output())


class BatchingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-e2e-"))
        cls.repository, cls.cases = setup_repository(cls.folder)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def drive(self, *arguments, cases=None, pile_up=False):
        """The cases from two CNs at once; the GPU node after its end."""
        cases = cases or self.cases
        hn = support.gpu_node(self.repository, *arguments)
        self.addCleanup(hn.close)
        cns = [support.cpu_node(self.repository, [hn.address]) for _ in range(2)]
        for cn in cns:
            self.addCleanup(cn.close)
            with triton.InferenceServerClient(cn.address) as client:
                support.wait_until(client.is_server_ready, "the CN is ready")

        def one(index):
            cn = cns[index % 2]
            with triton.InferenceServerClient(cn.address) as client:
                for i in range(REQUESTS_PER_CLIENT):
                    case = cases[(index + i) % len(cases)]
                    answer = client.infer(case.model, infer_inputs(case.tensors))
                    (name,) = (o.name for o in answer.get_response().outputs)
                    np.testing.assert_allclose(
                        answer.as_numpy(name), case.scores, atol=1e-5, rtol=0
                    )

        clients = 2 * CLIENTS_PER_CN
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            with pulses(hn) if pile_up else contextlib.nullcontext():
                for done in [pool.submit(one, i) for i in range(clients)]:
                    done.result()
        self.assertEqual(hn.stop(), 0, hn.output())
        return hn

    def test_requests_of_two_cns_share_executions_and_scores_stay_right(self):
        model = self.cases[0].model
        hn = self.drive(
            "--batching-window-us", 20000, pile_up=True,
            cases=[case for case in self.cases if case.model == model],
        )
        counts = summary(hn, model)
        self.assertEqual(
            counts["succeeded"], 2 * CLIENTS_PER_CN * REQUESTS_PER_CLIENT, counts
        )
        self.assertEqual(counts["failed"], 0, counts)
        self.assertGreater(counts["merged"], 0, counts)
        # More than one CN has in flight.
        self.assertGreater(counts["largest"], CLIENTS_PER_CN, counts)

    def test_without_the_flag_every_request_is_alone(self):
        hn = self.drive()
        for name in {c.model for c in self.cases}:
            sums = summary(hn, name)
            self.assertEqual(sums["merged"], 0, sums)
            self.assertEqual(sums["largest"], 1, sums)

    def test_large_requests_run_in_steps(self):
        hn = self.drive("--max-batch", 32)
        for name in {c.model for c in self.cases}:
            self.assertEqual(summary(hn, name)["failed"], 0)

    def test_scarce_memory_for_weights(self):
        # Room for either model, not for both.
        sizes = []
        hn = support.gpu_node(self.repository)
        hn.stop()
        for size in re.findall(r"share 1, (\d+) bytes", hn.output()):
            sizes.append(int(size))
        hn.close()
        self.assertEqual(len(sizes), 2)
        room = (max(sizes) + min(sizes) / 2) / 2**20
        hn = self.drive("--weight-memory-mib", room)
        for name in {c.model for c in self.cases}:
            line = summary(hn, name)["line"]
            loads = int(re.search(r"(\d+) loads", line).group(1))
            self.assertGreaterEqual(loads, 1, line)
        # A limit below the weights of either model.
        hn = support.gpu_node(
            self.repository, "--weight-memory-mib", min(sizes) / 2**21
        )
        self.addCleanup(hn.close)
        hn.stop()
        log = hn.output()
        for size in sizes:
            self.assertIn(f"need {size} bytes", log)

    def test_impossible_deadlines_are_refused_and_settings_are_read(self):
        config = self.repository / "dlrm" / "config.pbtxt"
        before = config.read_text()
        self.addCleanup(config.write_text, before)
        config.write_text(
            before
            + "instance_group { count: 1 }\n"
            + "dynamic_batching { preferred_batch_size: [ 64 ]\n"
            + "  max_queue_delay_microseconds: 700 }\n"
            + 'parameters { key: "share" value { string_value: "2.5" } }\n'
        )
        hn = support.gpu_node(self.repository)
        self.addCleanup(hn.close)
        hn.await_log(
            re.compile(r"'dlrm' version 1: share 2.5, .*batching window 700us")
        )
        hn.stop()
        config.write_text(before + "instance_group { count: -1 }\n")
        hn = support.gpu_node(self.repository)
        self.addCleanup(hn.close)
        hn.await_log("config.pbtxt: instance_group: count is -1")
        hn.stop()

    def test_flags_out_of_range(self):
        for flag, value in (
            ("--batching-window-us", "-1"),
            ("--max-batch", "0"),
            ("--weight-memory-mib", "lots"),
            ("--weight-memory-mib", "nan"),
            ("--drain-timeout-s", "nan"),
        ):
            done = support.start_once(
                support.program("refract-gpu-node"), "--model-repository",
                self.repository, flag, value, check=False,
            )
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(flag, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
