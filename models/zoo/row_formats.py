"""Tables in row formats (models/tables/row_format.h), decoded with PyTorch.

PyTorch's own operators decode the rows that it has operators for; they share no
code with the engine.
"""

import torch

from models.zoo.cli import InputError

KEY_PREFIX = "refract.rows."
# Rows decoded at a time.
CHUNK_ROWS = 1 << 16

_UNPACK = {
    "fused-8bit": torch.ops.quantized.embedding_bag_byte_unpack,
    "fused-4bit": torch.ops.quantized.embedding_bag_4bit_unpack,
    "fused-2bit": torch.ops.quantized.embedding_bag_2bit_unpack,
}
_PLAIN = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_TBE_BITS = {"tbe-int8": 8, "tbe-int4": 4, "tbe-int2": 2}


def decode(path, name, rows, text):
    """Returns the float32 table of uint8 `rows`, as metadata `text` says."""
    form, _, size = text.partition(" dim=")
    known = {*_UNPACK, *_PLAIN, *_TBE_BITS}
    if form not in known or not size.isdecimal():
        raise InputError(f"{path}: tensor {name}: rows '{text}' are not known")
    count, dim = rows.shape[0], int(size)
    wanted = 4 * count * dim
    usable = _available_bytes()
    if usable is not None and wanted > usable:
        raise InputError(
            f"{path}: tensor {name}: the float32 table that PyTorch needs takes "
            f"{wanted} bytes, the machine has {usable}; --mode whole serves the "
            "rows as they are"
        )
    table = torch.empty(count, dim)
    for first in range(0, count, CHUNK_ROWS):
        some = rows[first : first + CHUNK_ROWS]
        table[first : first + CHUNK_ROWS] = _decode(form, some, dim)
    return table


def _decode(form, rows, dim):
    if form in _PLAIN:
        size = dim * _PLAIN[form].itemsize
        return rows[:, :size].contiguous().view(_PLAIN[form]).float()
    if form in _UNPACK:
        bits = int(form[6])
        size = dim * bits // 8 + (8 if bits == 8 else 4)
        return _UNPACK[form](rows[:, :size].contiguous())
    bits = _TBE_BITS[form]
    parameters, payload = rows[:, :4], rows[:, 4 : 4 + dim * bits // 8]
    if bits < 8:
        # The fused rows have the same bytes in the other order.
        fused = torch.cat([payload, parameters], 1)
        return _UNPACK[f"fused-{bits}bit"](fused)
    scale, bias = parameters.contiguous().view(torch.float16).float().split(1, 1)
    return payload.float() * scale + bias


def _available_bytes():
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
