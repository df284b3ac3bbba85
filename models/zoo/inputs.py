"""Random valid inputs for a model of the zoo.

    python -m models.zoo.inputs DIR/NAME.json --batch 270 --out X.safetensors
"""

import json
import re
from pathlib import Path

import numpy as np
import torch

from models.zoo import cli, safetensors_io

# A large prime: spreads the popular ids over the table, as hashed ids are.
SPREAD = 2_654_435_761


def make_inputs(described, batch, seed, skew=0.0, bags="published"):
    """Returns {input name: tensor} for one request of `batch` items.

    described: the "inputs" of a model's description.
    skew: exponent of the power law of ids; 0 draws them uniformly. Published
      generators use 0.9 to 1.3.
    bags: "published" gives every item the published number of ids; "ragged"
      draws it from 0 to twice that, so there are empty bags; "empty" gives
      no ids at all. Steps of a sequence follow the same rule.
    """
    random = np.random.default_rng(seed)
    # Steps are drawn before the sequences are: all of one name are as long.
    sizes = {"batch": batch}
    lengths = {}
    for item in described:
        if item["kind"] in ("offsets", "lengths"):
            ids = _find(described, item["of"])
            count = _size(item["shape"][0], sizes)
            if item["kind"] == "offsets":
                count -= 1
            lengths[item["name"]] = _draw_lengths(
                random, count, ids["per_item"], bags
            )
            if item["kind"] == "offsets":
                sizes[ids["shape"][0]] = int(lengths[item["name"]].sum())
            else:
                # A matrix of no columns is a shape few servers accept.
                longest = int(lengths[item["name"]].max(initial=0))
                sizes[ids["shape"][1]] = max(longest, 1)

    tensors = {}
    for item in described:
        shape = [_size(extent, sizes) for extent in item["shape"]]
        if item["kind"] == "dense":
            values = random.standard_normal(shape, dtype=np.float32)
        elif item["kind"] == "ids":
            values = np.empty(shape, np.int64)
            if len(item["rows"]) == 1:
                values[...] = _draw_ids(random, shape, item["rows"][0], skew)
            else:
                for column, rows in enumerate(item["rows"]):
                    values[:, column] = _draw_ids(
                        random, shape[0], rows, skew
                    )
        elif item["kind"] == "offsets":
            values = np.concatenate([[0], np.cumsum(lengths[item["name"]])])
        else:
            values = lengths[item["name"]]
        if "first" in item:
            values += item["first"]
        tensors[item["name"]] = torch.from_numpy(values)
    return tensors


def _find(described, name):
    return next(item for item in described if item["name"] == name)


def _size(extent, sizes):
    """Returns the value of 13, "batch" or "batch+1"."""
    if isinstance(extent, int):
        return extent
    name, plus = re.fullmatch(r"(\w+?)(?:\+(\d+))?", extent).groups()
    return sizes[name] + int(plus or 0)


def _draw_lengths(random, count, per_item, bags):
    if bags == "published":
        return np.full(count, per_item, np.int64)
    if bags == "empty":
        return np.zeros(count, np.int64)
    return random.integers(0, 2 * per_item + 1, count)


def _draw_ids(random, shape, rows, skew):
    if skew == 0:
        return random.integers(0, rows, shape)
    # The inverse of the distribution function of a continuous power law over
    # [1, rows + 1): close to Zipf's, and needs no table of the ranks.
    u = random.random(shape)
    if abs(skew - 1) < 1e-9:
        rank = np.power(rows + 1.0, u)
    else:
        power = 1 - skew
        top = np.power(rows + 1.0, power)
        rank = np.power(1 + u * (top - 1), 1 / power)
    rank = np.minimum(rank.astype(np.int64) - 1, rows - 1)
    return rank * SPREAD % rows


def read_description(path):
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise cli.InputError(f"{path}: not a readable description: {error}")


def main():
    parser = cli.Parser(
        prog="python -m models.zoo.inputs",
        description="Writes random valid inputs for one request.",
    )
    parser.add_argument(
        "description",
        metavar="NAME.json",
        help="what models.zoo.export wrote beside the model",
    )
    parser.add_argument(
        "--batch", type=cli.positive_int, default=4, help="items per request"
    )
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    parser.add_argument(
        "--skew",
        type=float,
        default=0.0,
        metavar="A",
        help="exponent of the power law of ids, 0: uniform",
    )
    parser.add_argument(
        "--bags",
        choices=["published", "ragged", "empty"],
        default="published",
        help="ids per bag: as published, 0 to twice that, or none",
    )
    parser.add_argument(
        "--out", required=True, metavar="X.safetensors", help="file to write"
    )
    args = parser.parse_args()
    if args.skew < 0 or args.seed < 0:
        raise cli.InputError("--skew and --seed must not be negative")
    description = read_description(args.description)
    if "inputs" not in description:
        raise cli.InputError(f"{args.description}: has no field 'inputs'")
    tensors = make_inputs(
        description["inputs"], args.batch, args.seed, args.skew, args.bags
    )
    try:
        safetensors_io.write(args.out, tensors)
    except OSError as error:
        raise cli.InputError(f"{args.out}: {error.strerror}")


if __name__ == "__main__":
    cli.run(main, "models.zoo.inputs")
