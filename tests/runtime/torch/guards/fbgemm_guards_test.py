"""fbgemm's operators never leave their tensors behind Refract's checks.

The checks are called through a library that puts them before PyTorch's own
operators (module_torch.cc). Each call is made in a
child process, so that one that is not refused fails by its name.
"""

import ctypes
import itertools
import logging
import os
import pathlib
import random
import resource
import unittest

import torch

try:
    logging.disable(logging.CRITICAL)  # of versions that it does not know
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
        BoundsCheckMode,
        EmbeddingLocation,
        PoolingMode,
    )
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )
except ImportError as error:
    raise unittest.SkipTest(f"fbgemm-gpu-cpu is missing: {error}")
finally:
    logging.disable(logging.NOTSET)

from tests.runtime.torch.guards import fbgemm_calls

MODULE = (
    pathlib.Path(os.environ["REFRACT_BUILD_DIR"])
    / "tests/lib/refract_guards_module.so"
)
SEED = int(os.environ.get("REFRACT_TEST_SEED", random.randrange(2**31)))
ROUNDS = 25  # random calls of each operator
# Limit of a child's memory. A random size of 2^31 is valid where it is the size of an
# answer alone; the answer then fills 16 GiB and takes a minute.
MEMORY = 1 << 30

ODD = (-(2**62), -(2**31), -3, -1, 0, 1, 2, 7, 100, 2**31 - 1, 2**31, 2**62)


def mapped_bytes():
    """Address space of this process."""
    pages = pathlib.Path("/proc/self/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()


def in_child(tries):
    """Runs each of `tries` in one child; what became of them: an exception's
    text, "" or, of the last one that ran, "killed by signal …".
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        limit = mapped_bytes() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for each in tries:
            said = ""
            try:
                each()
            except (
                RuntimeError, ValueError, IndexError, TypeError, MemoryError,
            ) as error:  # fmt: skip
                said = (str(error).strip() or "?").splitlines()[0]
            os.write(writer, said.encode()[:1000] + b"\n")
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8", errors="replace") as pipe:
        said = pipe.read().splitlines()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        said.append(f"killed by signal {os.WTERMSIG(status)}")
    return said


def changed(value, dice):
    """`value` with one number or size changed."""
    if isinstance(value, torch.Tensor):
        if value.dim() and (dice.random() < 0.4 or value.is_floating_point()):
            sizes = list(value.shape)
            at = dice.randrange(len(sizes))
            sizes[at] = dice.choice([0, 1, sizes[at] + 1, 2 * sizes[at], 40])
            flat = value.reshape(-1)
            count = torch.Size(sizes).numel()
            if flat.numel() == 0:
                return torch.zeros(sizes, dtype=value.dtype)
            return flat.repeat(count // flat.numel() + 1)[:count].reshape(sizes)
        if value.dtype not in (torch.int32, torch.int64) or value.numel() == 0:
            return value
        limits = torch.iinfo(value.dtype)
        value = value.clone()
        flat = value.view(-1)
        at = dice.randrange(flat.numel())
        number = dice.choice([*ODD, int(flat[at]) + 1, int(flat[at]) - 1])
        flat[at] = max(limits.min, min(limits.max, number))
        return value
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return dice.choice([*ODD, value + 1, value - 1])
    if isinstance(value, list) and value:
        at = dice.randrange(len(value))
        if dice.random() < 0.1:
            return value[:at] + value[at + 1 :]
        return value[:at] + [changed(value[at], dice)] + value[at + 1 :]
    return value


def copied(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, (list, tuple)):
        return [copied(each) for each in value]
    return value


def run(call, args):
    with torch.no_grad():
        return getattr(fbgemm_calls.OPS, call.name)(*copied(args))


class FbgemmGuards(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        print("REFRACT_TEST_SEED", SEED)
        cls.calls = fbgemm_calls.calls()
        # PyTorch's own answers, while nothing is checked.
        cls.answers = [run(call, call.args) for call in cls.calls]
        ctypes.CDLL(str(MODULE)).refract_guard_operators_1()

    def test_good_calls_are_answered_as_ever(self):
        for call, answer in zip(self.calls, self.answers, strict=True):
            with self.subTest(call.name):
                torch.testing.assert_close(
                    run(call, call.args), answer, rtol=0, atol=0, equal_nan=True
                )

    def test_bad_calls_are_refused(self):
        for call in self.calls:
            bad = []
            for place, value in call.bad:
                args = list(call.args)
                args[place] = value
                bad.append(args)
            said = in_child([lambda args=args: run(call, args) for args in bad])
            for (place, value), text in itertools.zip_longest(call.bad, said):
                with self.subTest(call.name, place=place, value=value):
                    self.assertTrue(text, "it was not refused, or not reached")
                    self.assertNotIn("killed by", text)

    def test_random_calls_are_refused_or_answered(self):
        for call in self.calls:
            dice = random.Random(f"{SEED}/{call.name}")
            tried = []
            for _ in range(ROUNDS):
                args = list(call.args)
                for _ in range(dice.choice((1, 1, 2))):
                    at = dice.randrange(len(args))
                    args[at] = changed(args[at], dice)
                tried.append(args)
            said = in_child([lambda args=args: run(call, args) for args in tried])
            with self.subTest(call.name, seed=SEED, args=tried[len(said) - 1]):
                self.assertEqual(len(said), ROUNDS)
                self.assertNotIn("killed by", said[-1])

    def test_trained_tables(self):
        for pooling in (PoolingMode.SUM, PoolingMode.MEAN, PoolingMode.NONE):
            tables = SplitTableBatchedEmbeddingBagsCodegen(
                [(5, 4, EmbeddingLocation.HOST, ComputeDevice.CPU)] * 2,
                device="cpu",
                pooling_mode=pooling,
                bounds_check_mode=BoundsCheckMode.NONE,
            )
            ids, offsets = [0, 1, 4, 2, 3, 4, 0, 1], [0, 2, 5, 6, 8]
            for bad_ids, bad_offsets in (
                (None, None), ({2: 5}, None), ({7: -1}, None), (None, {4: 900}),
                (None, {1: 6}), (None, {0: -3}),
            ):
                values = list(ids)
                ends = list(offsets)
                for at, value in (bad_ids or {}).items():
                    values[at] = value
                for at, value in (bad_offsets or {}).items():
                    ends[at] = value
                said = in_child(
                    [
                        lambda: tables(
                            fbgemm_calls.longs(*values), fbgemm_calls.longs(*ends)
                        )
                    ]
                )
                with self.subTest(pooling, ids=values, offsets=ends):
                    self.assertEqual(len(said), 1)
                    self.assertNotIn("killed by", said[0])
                    self.assertEqual(bool(said[0]), values != ids or ends != offsets)

    def test_an_operator_that_no_check_knows_is_not_run(self):
        ids = fbgemm_calls.longs(1, 2, 3)
        table = torch.full((20, 1), -1, dtype=torch.int64)
        with self.assertRaisesRegex(RuntimeError, "is not run: .* has no check"):
            fbgemm_calls.OPS.zero_collision_hash(ids, table, 8)
        with self.assertRaisesRegex(RuntimeError, "has no check"):
            fbgemm_calls.OPS.linearize_cache_indices(
                ids, ids, fbgemm_calls.longs(0, 3)
            )


if __name__ == "__main__":
    unittest.main()
