"""Writes and maps safetensors files without holding a tensor in memory.

The official library writes from tensors that are already in memory; tables of
many GiB are not. The layout is: header length (8 bytes, little-endian), JSON
header, data. The header is padded with spaces so that the data begins at a
multiple of 64 bytes, the width of a cache line and of an AVX-512 load.
"""

import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from models.zoo import row_formats
from models.zoo.cli import InputError

ALIGN_BYTES = 64

# The names that the format gives to dtypes.
DTYPE_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


def write_streaming(path, entries):
    """Writes `entries`, a list of (name, dtype, shape, chunks), to `path`.

    `chunks` yields bytes-like objects which together are the row-major values.
    The file appears under its name only when it is complete.
    """
    header, position = {}, 0
    for name, dtype, shape, _ in entries:
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        header[name] = {
            "dtype": DTYPE_NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [position, position + size],
        }
        position += size
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGN_BYTES)

    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as out:
            out.write(len(text).to_bytes(8, "little"))
            out.write(text)
            begin = out.tell()
            for name, _, _, chunks in entries:
                for chunk in chunks:
                    out.write(chunk)
                if out.tell() - begin != header[name]["data_offsets"][1]:
                    raise ValueError(f"{name}: chunks do not fill the shape")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write(path, tensors):
    """Writes a dict of small tensors."""
    entries = []
    for name, tensor in tensors.items():
        # A copy, because the stride of a single element may be anything. Seen
        # as bytes, because numpy knows no bfloat16.
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
        flat.copy_(tensor.detach().reshape(-1))
        data = flat.view(torch.uint8).numpy()
        entries.append((name, tensor.dtype, tuple(tensor.shape), [data]))
    write_streaming(path, entries)


def read(path):
    """Returns {name: tensor}; the tensors are views of the mapped file."""
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: not a readable safetensors file: {error}")


def _row_formats(path):
    """Returns {name: format} of the file's metadata."""
    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata() or {}
    prefix = row_formats.KEY_PREFIX
    return {
        key.removeprefix(prefix): text
        for key, text in metadata.items()
        if key.startswith(prefix)
    }


def read_folder(folder):
    """Returns {name: tensor} of every *.safetensors file in `folder`.

    Tables in row formats come decoded.
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder}: no *.safetensors file in this folder")
    tensors = {}
    for path in files:
        contents = read(path)  # names a damaged file
        formats = _row_formats(path)
        for name, tensor in contents.items():
            if name in tensors:
                raise InputError(f"{path}: {name} is already in another file")
            if name in formats:
                tensor = row_formats.decode(path, name, tensor, formats[name])
            tensors[name] = tensor
    # Ids of rows are Refract's: PyTorch takes row numbers.
    for name in [n for n in tensors if n.removesuffix(".ids") in tensors]:
        if name.endswith(".ids"):
            del tensors[name]
    return tensors
