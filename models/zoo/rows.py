"""How many rows each field gets: how many different ids it has.

The published tables are too large for most machines (DLRM's hold 97 GiB), so
rows are scaled, never the vectors: the work per item stays as published.
"""

import math

from models.zoo.cli import InputError

GIB = 2**30

# MLPerf inference, DLRM: Criteo 1 TB, rows capped at 40 million per field.
_CRITEO_ROWS = [
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63,
    40_000_000, 3_067_956, 405_282, 10, 2_209, 11_938, 155, 4, 976, 14,
    40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36,
]  # fmt: skip

# Fields by name, as the functions below take them.
CRITEO_FIELDS = {f"field_{i}": rows for i, rows in enumerate(_CRITEO_ROWS)}

# MLPerf inference, DLRM-DCNv2: ids per item and field, 214 in all.
CRITEO_MULTI_HOT = [
    3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10,
    3, 1, 1,
]  # fmt: skip

DENSE_FEATURES = 13


def scale_rows(published, scale=1.0, min_rows=4, max_rows=None):
    """Scales {field: rows}. A field never grows beyond its published rows,
    and has fewer than `min_rows` only when it was published so.
    `max_rows` wins over both."""
    scaled = {}
    for name, rows in published.items():
        wanted = max(math.ceil(rows * scale), min_rows)
        scaled[name] = min(wanted, rows, max_rows or rows)
    return scaled


def rows_for_bytes(published, row_bytes, target, min_rows=4, max_rows=None):
    """Returns the scaled rows whose tables total at most `target` bytes.

    `row_bytes` is the size of one row of one field. The total is less than one
    row of each field below the target.
    """

    def rows_at(scale):
        return scale_rows(published, scale, min_rows, max_rows)

    def total(scale):
        return sum(rows_at(scale).values()) * row_bytes

    if total(1.0) < target:
        raise InputError(
            f"--tables-gib {target / GIB:g} is more than the tables hold at "
            f"full size: {total(1.0) / GIB:.3g} GiB"
        )
    if total(0.0) > target:
        raise InputError(
            f"--tables-gib {target / GIB:g} is less than --min-rows "
            f"{min_rows} needs: {total(0.0) / GIB:.3g} GiB"
        )
    low, high = 0.0, 1.0
    # 60 halvings take the scale below one row of any field.
    for _ in range(60):
        middle = (low + high) / 2
        if total(middle) <= target:
            low = middle
        else:
            high = middle
    return rows_at(low)
