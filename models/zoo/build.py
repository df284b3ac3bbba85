"""Builds a model by name, and fills its tables."""

import numpy as np
import torch

from models.zoo.cli import InputError
from models.zoo.click import DeepFm, WideDeep
from models.zoo.dlrm import Dlrm, DlrmDcnv2
from models.zoo.generative import DlrmV3
from models.zoo.inputs import make_inputs
from models.zoo.layers import centre, initialise, set_zero_share
from models.zoo.rows import GIB, rows_for_bytes, scale_rows
from models.zoo.sequence import Din
from models.zoo.two_tower import TwoTower

MODELS = {
    "dlrm": Dlrm,
    "dlrm_dcnv2": DlrmDcnv2,
    "dlrm_v3": DlrmV3,
    "wide_deep": WideDeep,
    "deepfm": DeepFm,
    "din": Din,
    "two_tower": TwoTower,
}

DEFAULT_TABLES_GIB = 1.0
TINY_MAX_ROWS = 200

# Values are drawn and written in pieces of this size. The values of a seed
# depend on it.
CHUNK_FLOATS = 4 * 2**20


def choose_rows(
    name,
    preset="default",
    rows_scale=None,
    tables_gib=None,
    min_rows=4,
    max_rows=None,
):
    """Returns {field: rows} for at most one of `rows_scale` (a fraction of
    the published rows) and `tables_gib`."""
    model = MODELS[name]
    published = model.published_rows
    if preset == "tiny" and max_rows is None:
        max_rows = TINY_MAX_ROWS
    if max_rows is not None and max_rows < min_rows:
        raise InputError(
            f"--max-rows {max_rows} is below --min-rows {min_rows}"
        )
    if rows_scale is not None:
        if tables_gib is not None:
            raise InputError("--rows-scale and --tables-gib exclude each other")
        return scale_rows(published, rows_scale, min_rows, max_rows)
    if tables_gib is None:
        if preset == "tiny":
            return scale_rows(published, 1.0, min_rows, max_rows)
        tables_gib = DEFAULT_TABLES_GIB
    widths = model.presets[preset]
    row_bytes = 4 * model.row_floats(widths)
    target = tables_gib * GIB - 4 * model.fixed_floats(widths)
    return rows_for_bytes(published, row_bytes, target, min_rows, max_rows)


def build(name, rows, preset="default", seed=1, zero_share=None):
    """Returns the model in eval mode: dense weights real, tables stand-ins.

    The dense weights depend on `seed`, the widths and `zero_share` only, not on
    `rows`. zero_share: part of each ReLU's results that is zero; None leaves the
    biases as drawn, where it is about a half.
    """
    model = MODELS[name](rows, **MODELS[name].presets[preset])
    initialise(model, seed)
    model.eval().requires_grad_(False)
    _calibrate(model, name, preset, seed, zero_share)
    return model


def _calibrate(model, name, preset, seed, zero_share):
    """Sets the last layer, and with `zero_share` the biases before ReLU, by the
    values of a copy with small real tables.

    Values of a table do not depend on how many rows it has, so a few rows
    show how the logits of the whole model spread.
    """
    rows = scale_rows(model.published_rows, max_rows=TINY_MAX_ROWS)
    twin = MODELS[name](rows, **MODELS[name].presets[preset])
    initialise(twin, seed)
    twin.eval().requires_grad_(False)
    twin.bind(
        {fqn: table_values(twin, fqn, seed) for fqn in twin.table_modules()}
    )
    inputs = make_inputs(
        [x.as_json() for x in twin.inputs], twin.calibration_batch, seed
    )
    if zero_share is not None:
        set_zero_share(twin, inputs, zero_share)
        biases = {name: x for name, x in twin.state_dict().items() if name.endswith(".bias")}
        model.load_state_dict(biases, strict=False)
    # The second pass corrects the shift by terms other than the last layer.
    for _ in range(2):
        with torch.no_grad():
            scores = twin(**inputs).double().clamp(1e-6, 1 - 1e-6)
        centre(twin.head, scores.logit())
    model.head.load_state_dict(twin.head.state_dict())


def table_chunks(model, fqn, seed):
    """Yields a table's values, uniform and row-major, as float32 arrays.

    Each chunk is overwritten by the next: 16 MiB in all, however large the
    table is.
    """
    table = model.table_modules()[fqn]
    # Every table has its own stream, so files can be written in any order.
    index = list(model.table_modules()).index(fqn)
    random = np.random.Generator(np.random.PCG64([seed, index]))
    left = table.weight.numel()
    buffer = np.empty(min(CHUNK_FLOATS, left), np.float32)
    while left:
        chunk = buffer[: min(buffer.size, left)]
        random.random(out=chunk, dtype=np.float32)
        chunk -= 0.5
        chunk *= 2 * table.bound
        yield chunk
        left -= chunk.size


def table_values(model, fqn, seed):
    """Returns what `table_chunks` yields as one tensor."""
    values = torch.empty(model.table_modules()[fqn].weight.shape)
    flat, begin = values.view(-1), 0
    for chunk in table_chunks(model, fqn, seed):
        flat[begin : begin + chunk.size] = torch.from_numpy(chunk)
        begin += chunk.size
    return values
