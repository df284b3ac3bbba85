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
    values, dense = numbers(8, 3), numbers(4, 3, 3)
    lengths = longs(2, 3, 1, 2)
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
    for name in ("stacked_jagged_1d_to_dense", "stacked_jagged_2d_to_dense"):
        data = longs(*range(8)) if "1d" in name else values
        yield Call(
            name,
            (data, lengths.reshape(2, 2), [0, 5, 8], [3, 2], 0),
            [
                (1, longs(2, 3, 1, 900).reshape(2, 2)),
                (1, longs(2, -3, 1, 2).reshape(2, 2)),
                (2, [0, 5, 900]),
                (3, [3]),
            ],
        )
    for name in ("dense_to_jagged", "dense_to_jagged_forward"):
        yield Call(
            name,
            (dense, [of], 8),
            [(1, bad) for bad in lists] + [(2, 0), (0, numbers(2, 3, 3))],
        )
    for name in ("jagged_softmax", "jagged_softmax_forward"):
        yield Call(
            name, (values, of, 3), [(1, bad) for bad in wrong] + [(0, numbers(1, 3))]
        )
    for name in (
        "jagged_dense_elementwise_add",
        "jagged_dense_elementwise_mul",
        "jagged_dense_elementwise_mul_forward",
        "jagged_dense_elementwise_add_jagged_output",
    ):
        yield Call(
            name,
            (values, [of], dense),
            [(1, bad) for bad in lists] + [(2, numbers(1, 3, 3))],
        )
    for name in (
        "jagged_dense_dense_elementwise_add_jagged_output",
        "jagged_dense_dense_elementwise_add_jagged_output_forward",
    ):
        yield Call(
            name,
            (values, [of], dense, dense),
            [(1, bad) for bad in lists] + [(3, numbers(1, 3, 3))],
        )
    for name in ("jagged_dense_bmm", "jagged_dense_bmm_forward"):
        yield Call(
            name,
            (values, of, numbers(4, 3, 5), 3),
            [(1, bad) for bad in wrong] + [(2, numbers(0, 3, 5))],
        )
    for name in ("jagged_jagged_bmm", "jagged_jagged_bmm_forward"):
        yield Call(
            name,
            (values, numbers(8, 5), of, 3),
            [(2, bad) for bad in wrong] + [(1, numbers(4, 5))],
        )
    for name in (
        "batched_dense_vec_jagged_2d_mul",
        "batched_dense_vec_jagged_2d_mul_forward",
    ):
        yield Call(
            name,
            (numbers(4, 6), numbers(8, 5), of),
            [(2, bad) for bad in wrong] + [(0, numbers(3, 6))],
        )
    bad_lengths = (longs(2, 3, 1, 900), longs(2, -3, 1, 2))
    yield Call(
        "jagged_1d_to_truncated_values",
        (numbers(8), lengths, 2),
        [(1, bad) for bad in bad_lengths] + [(2, -1)],
    )
    marks = torch.tensor([True, False] * 4)
    yield Call(
        "masked_select_jagged_1d",
        (numbers(8), lengths, marks, False),
        [(1, bad) for bad in bad_lengths] + [(2, marks[:1])],
    )
    yield Call(
        "jagged_acc_weights_and_counts",
        (numbers(8), longs(0, 1, 2, 0, 1, 2, 0, 1), 3),
        [(1, longs(0, 1, 2, 0, 1, 2, 0, 3000)), (2, 1), (0, numbers(2))],
    )
    yield Call(
        "jagged_index_select",
        (values, lengths, longs(0, 2, 3)),
        [(1, bad) for bad in bad_lengths] + [(2, longs(0, 4)), (2, longs(-1))],
    )
    for name in (
        "jagged_index_select_2d_forward",
        "jagged_index_select_2d_forward_v2",
    ):
        yield Call(
            name,
            (values, longs(0, 2, 3), longs(2, 5, 6, 8), longs(2, 3, 5), 5),
            [
                (1, longs(0, 2, 5)),
                (2, longs(2, 5, 6, 900)),
                (3, longs(2, 3, 900)),
                (3, longs(2, 3)),
                (4, 900),
            ],
        )
    yield Call(
        "jagged_slice",
        (numbers(8), lengths, longs(0, 1, 0, 0), 2),
        [(1, bad) for bad in bad_lengths]
        + [(2, longs(0, -900, 0, 0)), (2, longs(0)), (0, numbers(1))],
    )
    yield Call(
        "jagged_slice_forward",
        (
            numbers(8), lengths, longs(0, 1, 0, 0), longs(2, 2, 1, 2),
            longs(0, 0, 0, 0), 7, 2, True,
        ),
        [(1, bad) for bad in bad_lengths]
        + [(2, longs(0, -900, 0, 0)), (2, longs(0)), (3, longs(2, 2, 900, 1))],
    )
    yield Call(
        "segment_sum_csr",
        (2, longs(0, 1, 4), numbers(8)),
        [(1, longs(0, 1, 900)), (1, longs(0, -1, 4)), (0, 0)],
    )
    yield Call(
        "offsets_range", (of[:-1], 8), [(0, low[:-1]), (0, late[:-1]), (1, 3)]
    )
    for name in ("pack_segments", "pack_segments_v2"):
        yield Call(name, (values, lengths, 3), [(1, bad) for bad in bad_lengths])
    yield Call(
        "repeat_arange", (lengths,), [(0, longs(2, -3)), (0, longs(2**40))]
    )
    yield Call(
        "get_source_mask",
        (longs(1, 2), longs(2, 1), 6),
        [(0, longs(-2, 2)), (2, 900), (2, 1), (1, longs(2))],
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
    yield Call(
        "permute_sparse_features",
        (ints(1, 0), table, ids, numbers(8)),
        [(0, bad) for bad in bad_orders] + [(1, bad) for bad in bad_tables],
    )
    yield Call(
        "permute_sequence_embeddings",
        (ints(1, 0), table, numbers(8, 3)),
        [(0, bad) for bad in bad_orders] + [(1, bad) for bad in bad_tables],
    )
    yield Call(
        "expand_into_jagged_permute",
        (ints(1, 0, 3, 2), ints(0, 2, 5, 6, 8), ints(0, 3, 5, 7, 8), 8),
        [(0, ints(1, 0, 3, 4)), (2, ints(0, 3, 5, 7, 900)), (3, 1)],
    )
    yield Call(
        "invert_permute",
        (longs(2, 0, 1, 3),),
        [(0, longs(2, 0, 1, 4)), (0, longs(-1, 0, 1, 3)), (0, longs(0, 0))],
    )
    for kind in ("permute_pooled_embs", "permute_duplicate_pooled_embs"):
        for form in ("", "_auto_grad", "_split", "_auto_grad_split"):
            yield Call(
                kind + form,
                (
                    numbers(4, 5), longs(0, 2, 5), longs(1, 0), longs(0, 3, 5),
                    longs(1, 0),
                ),
                [
                    (1, longs(0, 2, 900)), (1, longs(0, -2, 5)), (1, longs(5)),
                    (2, longs(2, 0)), (2, longs(-1, 0)), (0, numbers(4, 3)),
                ],
            )
    keys, widths, groups = [["a", "b"], ["c"]], [[3, 4], [5]], [["a", "c"], ["b"]]
    pooled = [numbers(2, 7), numbers(2, 5)]
    permutes, before, after, sizes = OPS.kt_regroup_arguments(
        numbers(2, 2), keys, widths, groups
    )
    far = permutes.clone()
    far[0, 2] = 900
    for name in ("permute_multi_embedding", "permute_multi_embedding_function"):
        yield Call(
            name,
            (pooled, permutes, before, after, sizes),
            [
                (0, pooled[:1]), (0, [numbers(2, 7), numbers(2, 2)]), (1, far),
                (1, permutes[:, :5]), (2, ints(900, 5)), (4, [900, 4]),
            ],
        )
    yield Call(
        "regroup_keyed_tensor",
        (pooled, keys, widths, groups),
        [(2, [[3, 4], [-1]]), (2, [[3, 4]]), (0, pooled[:1]), (3, [["nosuch"]])],
    )
    for broadcast in (False, True):
        yield Call(
            "reorder_batched_ad_lengths",
            (lengths, longs(0, 1, 2), 2, broadcast, 0),
            [(1, longs(0, 1, 900)), (1, longs(0)), (1, longs(0, -1, 2)), (2, 0)],
        )
    offsets, other = ints(0, 2, 5, 6, 8), ints(0, 2, 3, 6, 8)
    batches = ints(0, 1, 2)
    yield Call(
        "reorder_batched_ad_indices",
        (offsets, ids, other, batches, 2, False, -1),
        [
            (0, ints(0, 2, 5, 6, 900)), (2, ints(0, 2, 3, 6, 900)),
            (3, ints(0, 1, 900)), (4, 900), (1, ids[:2]),
        ],
    )
    yield Call(
        "reorder_batched_sequence_embeddings",
        (offsets, numbers(8, 3), other, batches, 2),
        [
            (0, ints(0, 2, 5, 6, 900)), (2, ints(0, 2, 3, 6, 900)),
            (3, ints(0, 1, 900)), (4, 900), (1, numbers(2, 3)),
        ],
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
    yield Call(
        "dense_embedding_codegen_lookup_function",
        (weights, begins, widths, 8, 4, heights, 4, ids, offsets, 0, None, None),
        bad(7) + [(5, longs(8, 0)), (1, longs(-9, 20))],
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
            (5, ints(0, 4)), (19, 0), (14, 7),
        ],
    )
    rows = longs(0, 5, 9)
    yield Call(
        "batched_unary_embeddings",
        (numbers(2, 9, 1), rows, offsets, longs(0, 1, 4, 2, 3, 3, 0, 1)),
        [
            (3, longs(0, 1, 4, 2, 3, 4, 0, 1)), (2, longs(0, 2, 5, 6, 900)),
            (1, longs(0, 5, 900)), (0, numbers(9)), (2, longs(0, 2, 5, 6)),
        ],
    )
    remap = ints(0, -1, 1, 2, -1, 0, 1, 2)
    four = ints(0, 1, 2, 3, 0, 1, 2, 3)
    yield Call(
        "pruned_array_lookup",
        (four, ints(0, 2, 5, 6, 8), remap, longs(0, 4, 8)),
        [
            (0, ints(0, 1, 2, 4, 0, 1, 2, 3)), (1, ints(0, 2, 5, 6, 900)),
            (3, longs(0, 4, 900)),
        ],
    )
    table = torch.full((32, 2), -1, dtype=torch.int32)
    OPS.pruned_hashmap_insert(
        four, four, ints(0, 2, 4, 6, 8), table, longs(0, 16, 32)
    )
    full = torch.zeros((32, 2), dtype=torch.int32)  # would be searched for ever
    yield Call(
        "pruned_hashmap_lookup",
        (four, ints(0, 2, 4, 6, 8), table, longs(0, 16, 32)),
        [(1, ints(0, 2, 4, 6, 900)), (3, longs(0, 16, 900)), (2, full)],
    )


def buckets():
    lengths, ids = longs(2, 3, 1, 2), longs(1, 2, 3, 4, 5, 6, 7, 0)
    weights = numbers(8)
    bad = [
        (0, longs(2, 3, 1, 900)), (0, longs(2, -3, 1, 2)), (6, numbers(3)),
        (4, longs(4, 0)), (4, longs()), (5, 0), (5, 2**62),
        (7, longs(4, 900)), (9, [longs(0, 3, 8)]),
        (9, [longs(2, 3, 8), longs(0, 3, 8)]),
    ]
    for name in (
        "block_bucketize_sparse_features",
        "block_bucketize_sparse_features_inference",
    ):
        yield Call(
            name, (lengths, ids, True, True, longs(4, 4), 2, weights, None, -1, None), bad
        )
    yield Call(
        "bucketize_sparse_features",
        (lengths, ids, True, 2, weights),
        [(0, longs(2, 3, 1, 900)), (3, 0), (4, numbers(3))],
    )
    yield Call(
        "populate_bucketized_permute",
        (lengths, longs(2, 1, 0, 3, 1, 1, 0, 0), longs(0, 1, 0, 0, 1, 1, 0, 1)),
        [
            (0, longs(2, 3, 1, 900)), (1, longs(2, 1, 0)),
            (2, longs(0, 1, 0, 0, 1, 1, 0, 2)),
        ],
    )
    yield Call(
        "tbe_input_combine",
        (
            [ints(1, 2, 3), ints(4, 5)], [ints(0, 1), ints(0, 2, 2)],
            [numbers(3), numbers(2)], torch.tensor([False, True]),
        ),
        [
            (1, [ints(0, 1), ints()]), (1, [ints(0, 1), ints(0, 2, 900)]),
            (3, torch.tensor([False])), (2, [numbers(3), numbers(1)]),
        ],
    )
    yield Call(
        "FloatToFused8BitRowwiseQuantized",
        (numbers(5, 8),),
        [(0, numbers(5, 8).bfloat16())],
    )
    yield Call(
        "FloatToFusedNBitRowwiseQuantizedSBHalf",
        (numbers(5, 8), 4),
        [(1, 0), (1, 1000), (0, numbers(5, 8).half()), (0, numbers(5, 7))],
    )
    yield Call(
        "FusedNBitRowwiseQuantizedSBHalfToFloat",
        (OPS.FloatToFusedNBitRowwiseQuantizedSBHalf(numbers(5, 8), 4), 4),
        [(1, 0), (1, -8), (0, numbers(5, 8).bfloat16())],
    )


def calls():
    return [*jagged(), *orders(), *look_ups(), *buckets()]
