"""Deltas from a topic of Kafka, from scripts/delta.py to scores.

librdkafka's mock cluster, in this process, is the broker. The oracle is the PyTorch model
with the changed tables.
"""

import unittest
import urllib.request

import torch

from scripts.lib import delta_kafka, deltas
from tests.e2e import support
from tests.e2e.serving import deltas_test
from tests.e2e.serving.deltas_test import DIM

try:
    import confluent_kafka as kafka
except ImportError as error:
    raise unittest.SkipTest(f"confluent-kafka is missing: {error}")

TOPIC = "ranker-deltas"


class DeltaTopic(deltas_test.Deltas):
    def setUp(self):
        self.broker = kafka.Producer({"test.mock.num.brokers": 1, "log_level": 0})
        (broker,) = self.broker.list_topics(timeout=30).brokers.values()
        self.address = f"{broker.host}:{broker.port}/{TOPIC}"
        super().setUp()

    def start_cn(self):
        super().start_cn(by_request=False, arguments=["--deltas-kafka", self.address])

    def await_outcome(self, name, count):
        support.wait_until(lambda: self.outcome(name) == count, f"{count} deltas are {name}")

    def outcome(self, name):
        with urllib.request.urlopen(self.cn.metrics_url) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("refract_delta_messages_total{") and f'"{name}"' in line:
                    return float(line.rpartition(" ")[2])

    def push(self, folder, *arguments):
        return support.run(
            support.PYTHON, "scripts/delta.py", "push", f"{deltas_test.MODEL}/1",
            "--folder", folder.path, "--kafka", self.address, *arguments,
        ).stdout

    def test_scores_follow_the_topic(self):
        self.assertEqual(self.first_answer(), 0)
        outbox = self.outbox()
        for _ in range(3):
            self.change(50, outbox)
        self.assertIn("3 deltas of", self.push(outbox))
        self.await_delta(3)
        # The folder has a delta before it has the delta's position in the topic, and a
        # node killed in between would read the last delta again. The count comes last.
        self.await_outcome("added", 3)
        # A node that was away reads what it lacks, and nothing before.
        self.cn.kill()
        self.change(50, outbox)
        self.assertIn("1 deltas of", self.push(outbox, "--after", 3))
        self.start_cn()
        self.assertGreaterEqual(self.first_answer(), 3)
        self.await_delta(4)
        self.await_outcome("added", 1)
        self.assertEqual(self.outcome("known"), 0)
        # Sent again, as a trainer that starts again does.
        self.push(outbox)
        self.await_outcome("known", 4)
        # Without its folder, a node reads the topic from the beginning.
        self.cn.kill()
        for file in self.deltas.path.iterdir():
            file.unlink()
        self.start_cn()
        self.first_answer()
        self.await_delta(4)

        # A delta that does not fit is refused by name; the next delta is taken.
        gap = self.outbox()
        gap.write({"one.weight": deltas.Rows([3], torch.ones(1, DIM))}, parent=(7, "x"))
        delta_kafka.push(gap, self.address)
        self.refused("delta of ranker/1 refused")
        self.cn.await_log("gap: the parent is delta 7")
        self.change(50, outbox)
        self.push(outbox, "--after", 4)
        self.await_delta(5)
        self.assertEqual(self.outcome("refused"), 1)
        self.assertEqual(self.metric("refract_delta_topic_up"), 1)

        # Without a broker, the node serves what it has.
        self.broker = None
        self.refused("no deltas come, tables stay as they are")
        self.assertEqual(self.metric("refract_delta_topic_up"), 0)
        self.assertEqual(self.ask(), 5)

    def test_wrong_flags_end_the_start(self):
        wrong = self.repository / "kafka.properties"
        wrong.write_text("security.protocol = none\n")
        for arguments, reason in (
            (["--deltas-kafka", TOPIC], f"'{TOPIC}': wanted HOST:PORT[,HOST:PORT…]/TOPIC"),
            (["--deltas-kafka", "localhost:1/a b"], "'a b' is no name of a topic"),
            (["--deltas-kafka", self.address, "--no-deltas"], "--no-deltas"),
            (["--deltas-kafka", self.address, "--deltas-kafka-config", wrong],
             "--deltas-kafka-config: property 'security.protocol'"),
        ):
            with self.subTest(reason):
                failed = support.start_once(
                    support.program("refract-cpu-node"), "--model-repository",
                    self.repository, *arguments, check=False,
                )
                self.assertEqual(failed.returncode, 2)
                self.assertIn(reason, failed.stderr)


def load_tests(loader, tests, pattern):
    """Without the tests of deltas_test.Deltas, whose set-up this class has."""
    names = [name for name in vars(DeltaTopic) if name.startswith("test_")]
    return unittest.TestSuite(map(DeltaTopic, names))


if __name__ == "__main__":
    unittest.main()
