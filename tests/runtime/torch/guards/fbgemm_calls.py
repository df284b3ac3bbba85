"""Calls of fbgemm_gpu's operators on the CPU for fbgemm_guards_test.py: good
ones, and what makes each of them leave its tensors.
"""

import dataclasses

import torch

OPS = torch.ops.fbgemm
HOST = 3  # fbgemm's number of tables in host memory
INT8 = 2  # … and of rows of bytes


def longs(*values):
    return torch.tensor(values, dtype=torch.int64)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def numbers(*shape):
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float32) / 7 - 1).reshape(shape)


@dataclasses.dataclass
class Call:
    """bad: pairs of an argument's place and a value that must be refused."""

    name: str
    args: tuple
    bad: list


def jagged():
    of = longs(0, 2, 5, 6, 8)
    low, late, past = (
        longs(0, 2, -5, 6, 8),
        longs(0, 2, 6, 5, 8),
        longs(0, 2, 5, 6, 9000),
    )
    wrong = (low, late, past)
    values = numbers(8, 3)
    lists = [[each] for each in wrong] + [[]]
    for name in ("jagged_to_padded_dense", "jagged_to_padded_dense_forward"):
        yield Call(
            name,
            (values, [of], [3], 0.0),
            [(1, bad) for bad in lists] + [(0, numbers(3)), (2, [-3])],
        )
    yield Call(
        "jagged_1d_to_dense",
        (numbers(8), of, 3, 0),
        [(1, bad) for bad in wrong] + [(0, numbers(2))],
    )
    yield Call(
        "jagged_2d_to_dense",
        (values, of, 3),
        [(1, bad) for bad in wrong] + [(2, -1)],
    )
    yield Call(
        "segment_sum_csr",
        (2, longs(0, 1, 4), numbers(8)),
        [(1, longs(0, 1, 900)), (1, longs(0, -1, 4)), (0, 0)],
    )
    yield Call(
        "offsets_range", (of[:-1], 8), [(0, low[:-1]), (0, late[:-1]), (1, 3)]
    )


def orders():
    lengths, ids = longs(2, 3, 1, 2), longs(*range(8))
    table = lengths.reshape(2, 2)
    bad_tables = [longs(2, 3, 1, 900).reshape(2, 2), longs(2, -3, 1, 2).reshape(2, 2)]
    bad_orders = [ints(1, 2), ints(-1, 0)]
    for name in ("permute_2D_sparse_data", "permute_sparse_data"):
        yield Call(
            name,
            (ints(1, 0), table, ids, numbers(8), 8),
            [(0, bad) for bad in bad_orders]
            + [(1, bad) for bad in bad_tables]
            + [(2, ids[:4]), (3, numbers(4)), (4, 900), (4, 1)],
        )
    yield Call(
        "permute_1D_sparse_data",
        (ints(1, 0, 3, 2), lengths, ids, numbers(8), 8),
        [(0, ints(1, 0, 4, 2)), (1, longs(2, 3, 1, 900)), (4, 1)],
    )
    yield Call(
        "permute_2D_sparse_data_input1D",
        (ints(1, 0), lengths, ids, 2, numbers(8), 8),
        [(0, bad) for bad in bad_orders] + [(3, 0), (3, 3), (1, longs(2, 3, 1, 9))],
    )
    keys, widths, groups = [["a", "b"], ["c"]], [[3, 4], [5]], [["a", "c"], ["b"]]
    pooled = [numbers(2, 7), numbers(2, 5)]
    permutes, before, after, sizes = OPS.kt_regroup_arguments(
        numbers(2, 2), keys, widths, groups
    )
    far = permutes.clone()
    far[0, 2] = 900
    # The same number of columns, of which some are written twice, others never.
    twice = permutes.clone()
    twice[twice[:, 4] == 5, 3] = 0
    for name in ("permute_multi_embedding", "permute_multi_embedding_function"):
        yield Call(
            name,
            (pooled, permutes, before, after, sizes),
            [
                (0, pooled[:1]), (0, [numbers(2, 7), numbers(2, 2)]), (1, far),
                (1, twice), (1, permutes[:, :5]), (2, ints(900, 5)), (4, [900, 4]),
            ],
        )
    yield Call(
        "permute_pooled_embs_auto_grad",
        (numbers(2, 6), longs(0, 2, 6), longs(1, 0), longs(0, 4, 6), longs(1, 0)),
        [
            (0, numbers(2, 5)), (0, numbers(6)), (1, longs(0, 5, 2)), (1, longs(0)),
            (1, ints(0, 2, 6)), (2, longs(2, 0)), (2, longs(-1, 0)),
            (2, longs(1).expand(9000)),
        ],
    )
    yield Call(
        "regroup_keyed_tensor",
        (pooled, keys, widths, groups),
        [(2, [[3, 4], [-1]]), (2, [[3, 4]]), (0, pooled[:1]), (3, [["nosuch"]])],
    )
    yield Call(
        "group_index_select_dim0",
        ([numbers(5, 3), numbers(4, 2)], [longs(0, 4, 1), longs(3, 3, 0)]),
        [(1, [longs(0, 5, 1), longs(3)]), (1, [longs(-1), longs(3)]), (0, [])],
    )


def look_ups():
    ids, offsets = longs(0, 1, 4, 2, 3, 5, 0, 1), longs(0, 2, 5, 6, 8)
    bad_ids = [longs(0, 1, 5, 2, 3, 5, 0, 1), longs(0, 1, 4, 2, -3, 5, 0, 1)]
    bad_offsets = [longs(0, 2, 5, 6, 9), longs(0, 5, 2, 6, 8), longs(0, 2, 5, 8)]
    begins, widths, heights = longs(0, 20), ints(0, 4, 8), longs(0, 5, 11)
    weights = numbers(44)

    def bad(at):
        return (
            [(at, each) for each in bad_ids]
            + [(at + 1, each) for each in bad_offsets]
        )

    yield Call(
        "split_embedding_codegen_forward_cpu",
        (weights, begins, widths, 8, heights, ids, offsets, 0, numbers(8), 0),
        bad(5)
        + [(1, longs(0, 900)), (4, longs(0, 5, 900)), (8, numbers(3)), (2, ints(0, 9, 8))],
    )
    # Two features of one table of eleven rows.
    yield Call(
        "split_embedding_codegen_forward_cpu",
        (weights, longs(0, 0), widths, 8, longs(0, 0, 11), ids, offsets, 0, numbers(8), 0),
        [(5, longs(0, 1, 11, 2, 3, 5, 0, 1)), (4, longs(0, 0, 12)), (4, longs(0, 0, 0))],
    )
    yield Call(
        "split_embedding_nobag_codegen_forward_cpu",
        (weights, begins, 4, heights, ids, offsets, 0),
        bad(4) + [(1, longs(0, 900)), (2, 900)],
    )
    row = 16
    yield Call(
        "int_nbit_split_embedding_codegen_lookup_function",
        (
            torch.zeros(11 * row, dtype=torch.uint8),
            torch.empty(0, dtype=torch.uint8), ints(HOST, HOST),
            longs(0, 5 * row), torch.tensor([INT8, INT8], dtype=torch.uint8),
            widths, 8, 0, 0, 4, 0, 0, ids.int(), offsets.int(), 0, None, 0, None,
            None, row,
        ),
        [
            (12, bad_ids[0].int()), (13, bad_offsets[0].int()),
            (13, bad_offsets[1].int()), (13, bad_offsets[2].int()),
            (15, numbers(3)), (2, ints(1, 1)), (3, longs(0, 9000)),
            (5, ints(0, 4)), (19, 0), (14, 7), (16, 2), (16, 3),
        ],
    )


def calls():
    return [*jagged(), *orders(), *look_ups()]
