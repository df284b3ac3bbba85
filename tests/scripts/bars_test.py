"""Checks of scores and of predictions fail where a figure is missing."""

import contextlib
import io
import pathlib
import tempfile
import unittest
from unittest import mock

import numpy as np
from safetensors.numpy import save_file

from scripts import check_predictions
from scripts.lib import check_scores


class Bars(unittest.TestCase):
    def status(self, answers):
        """The exit status where 0.5 is expected of each output."""
        with tempfile.TemporaryDirectory() as folder:
            inputs = pathlib.Path(folder) / "inputs.safetensors"
            expected = pathlib.Path(folder) / "expected.safetensors"
            save_file({"x": np.zeros((2, 1), np.float32)}, inputs)
            save_file(
                {name: np.full(2, 0.5, np.float32) for name in answers}, expected
            )
            answer = mock.Mock()
            answer.as_numpy = lambda name: np.float32([0.5, answers[name]])
            with mock.patch.object(
                check_scores.triton, "InferenceServerClient"
            ) as client, contextlib.redirect_stdout(io.StringIO()):
                client.return_value.infer.return_value = answer
                return check_scores.main(8000, "m", inputs, expected)

    def test_one_wrong_output_fails_the_check_of_scores(self):
        self.assertEqual(self.status({"a": 0.5, "b": 0.500001}), 0)
        for wrong in (0.6, float("nan"), float("inf")):
            self.assertEqual(self.status({"a": 0.5, "b": wrong}), 1, wrong)
            self.assertEqual(self.status({"a": wrong, "b": 0.5}), 1, wrong)

    def test_a_missing_rank_correlation_is_a_missed_bar(self):
        cut = {
            "name": "c",
            "forced": True,
            "predicted_over_measured": 1.0,
            "bytes_over_predicted": None,
        }
        found = {"cuts": [cut] * 5, "rank_correlation": None}
        self.assertEqual(check_predictions.judge(found), ["no rank correlation"])
        found["rank_correlation"] = 0.95
        self.assertEqual(check_predictions.judge(found), [])


if __name__ == "__main__":
    unittest.main()
