"""Writes embedding tables into safetensors files, a piece at a time.

The official library writes tensors that are in memory as a whole. The layout is:
length of the header (8 bytes, little-endian), JSON header, data.
"""

import json

import torch
from safetensors import safe_open

# The types of tables. A table of float32 may have values of FEWER_BITS: `refract import
# --tables` accepts these without metadata. Values of other tables have the table's type.
DTYPE_NAMES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64",
}
FEWER_BITS = (torch.float16, torch.bfloat16)
# The data begins at a multiple of a cache line.
ALIGN_BYTES = 64
# Values that are in memory at a time, where the exporter cuts a table itself.
PIECE_BYTES = 16 << 20


def pieces_of(values):
    """Cuts a tensor or an array into pieces of rows; passes iterables on.

    An array may be memory-mapped: at most PIECE_BYTES of it are copied at a time.
    """
    if not hasattr(values, "shape"):
        yield from values
        return
    rows = max(1, PIECE_BYTES // max(1, values[:1].nbytes))
    for begin in range(0, values.shape[0], rows):
        yield values[begin : begin + rows]


def write_table(path, name, shape, table_dtype, values):
    """Writes the table `name` of `shape` [rows, columns] and a type to `path`.

    values: a tensor, an array, or an iterable of pieces [n, columns], each a
    tensor or an array, which together are all rows in order. Where the table
    is float32, the first piece decides the row type: float32, float16 or bfloat16.
    Raises ValueError where pieces do not fit; the file is then incomplete.
    """
    accepted = (table_dtype, *FEWER_BITS) if table_dtype == torch.float32 else (table_dtype,)
    rows, columns = shape
    done, dtype = 0, None
    with open(path, "wb") as out:
        for piece in pieces_of(values):
            if not isinstance(piece, torch.Tensor):
                # A copy: a mapped array may be read-only, which PyTorch warns of.
                try:
                    piece = torch.tensor(piece)
                except (TypeError, ValueError, RuntimeError) as error:
                    raise ValueError(f"table {name}: its values: {error}") from error
            if dtype is None:
                dtype = piece.dtype
                if dtype not in accepted:
                    names = " or ".join(str(one).removeprefix("torch.") for one in accepted)
                    raise ValueError(f"table {name}: its values are {dtype}, not {names}")
                out.write(_header(name, dtype, shape))
            if piece.ndim != 2 or piece.shape[1] != columns or piece.dtype != dtype:
                raise ValueError(
                    f"table {name}: the piece at row {done} is {piece.dtype} "
                    f"{list(piece.shape)}, not {dtype} [n, {columns}]"
                )
            done += piece.shape[0]
            if done > rows:
                break
            # Seen as bytes, because numpy knows no bfloat16.
            piece = piece.detach().cpu().contiguous()
            out.write(piece.view(torch.uint8).numpy())
    if done != rows:
        raise ValueError(
            f"table {name}: has {rows} rows, its values "
            f"{'more' if done > rows else f'only {done}'}"
        )


def read_pieces(path, name):
    """Yields the rows of a table that was written, in pieces."""
    with safe_open(path, framework="pt") as file:
        values = file.get_slice(name)
        rows, columns = values.get_shape()
        step = max(1, PIECE_BYTES // max(1, 4 * columns))
        for begin in range(0, rows, step):
            yield values[begin : begin + step]


def _header(name, dtype, shape):
    size = dtype.itemsize * shape[0] * shape[1]
    entry = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [0, size]}
    text = json.dumps({name: entry}).encode()
    text += b" " * (-(8 + len(text)) % ALIGN_BYTES)
    return len(text).to_bytes(8, "little") + text
