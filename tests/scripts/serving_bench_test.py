"""The clients of bench/serving, and isolation.py's summary of their reports."""

import importlib.util
import math
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.serving import client  # noqa: E402

SPEC = importlib.util.spec_from_file_location(
    "isolation", ROOT / "bench" / "serving" / "isolation.py"
)
isolation = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(isolation)


class AClient(isolation.Client):
    """Of a node that answers `most` requests/s, and stalls in some runs."""

    def __init__(self, most, stalls=()):
        super().__init__(pathlib.Path(), None, "m", 64)
        self.most, self.stalls, self.runs = most, stalls, 0

    def answered(self, qps, duration, seed, timeout):
        self.runs += 1
        if self.runs > 50:
            raise AssertionError(f"does not end, at {qps:g} requests/s")
        answered = min(qps, self.most) * (0.5 if self.runs in self.stalls else 1)
        return {"offered_qps": qps}, answered


def report(p99, errors=0):
    return {
        "queries": 1000,
        "errors": errors,
        "errors_by_code": {"RESOURCE_EXHAUSTED": errors},
        "latency_ms": {"p99": p99},
    }


class Isolation(unittest.TestCase):
    def test_capacity_is_what_is_answered_under_too_much(self):
        for most in (20, 49, 51, 700, 10_000):
            self.assertEqual(AClient(most).capacity(1), most)
        self.assertEqual(AClient(700, stalls=(2,)).capacity(1), 700)

    def test_a_model_that_answers_nothing_is_named(self):
        with self.assertRaisesRegex(SystemExit, "'m' answers no request"):
            AClient(0).capacity(1)

    def test_answers_count_by_the_time_when_they_arrive(self):
        queries = (
            "due_s,items,sent_late_ms,latency_ms,outcome\n"
            "0.100000,8,0.0,800.000,OK\n"  # at 0.9: the queue was not full
            "0.100000,8,0.0,900.000,OK\n"  # at 1.0
            "0.900000,8,0.0,1000.000,DEADLINE_EXCEEDED\n"
            "1.000000,8,0.0,,DROPPED\n"
            "1.400000,8,0.0,1099.000,OK\n"  # at 2.499
            "1.500000,8,0.0,1000.000,OK\n"  # at 2.5: after the load
        )
        self.assertEqual(client.answers_between(queries, 1, 2.5), 2 / 1.5)

    def test_queries_without_an_answer_are_late_without_end(self):
        self.assertEqual(isolation.ratio_of(report(2), report(3)), 1.5)
        self.assertEqual(isolation.ratio_of(report(2), report(3, 10)), 1.5)
        self.assertEqual(isolation.ratio_of(report(2), report(3, 11)), math.inf)
        with self.assertRaisesRegex(SystemExit, "11 of 1000 .* failed alone"):
            isolation.ratio_of(report(2, 11), report(3))

    def test_quartiles_hold_infinity(self):
        values = [math.inf, 3, 1, 2, math.inf, 4]
        self.assertEqual(
            isolation.quartiles(values), {"q25": 2, "median": 4, "q75": math.inf}
        )
        self.assertIsNone(isolation.finite(math.inf))
        self.assertEqual(isolation.finite(1.5), 1.5)


if __name__ == "__main__":
    unittest.main()
