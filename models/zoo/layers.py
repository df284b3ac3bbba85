"""Building blocks, and the base class of the models."""

import math
from dataclasses import asdict, dataclass, field

import torch
from torch import nn


@dataclass
class Input:
    """One named input.

    shape: numbers, or names of dynamic sizes such as "batch" or "batch+1".
    kind: "dense", "ids", "offsets" or "lengths".
    tables: parameters that these ids select rows of.
    rows: ids lie in [0, rows); one number per column of a matrix of ids.
    first: ids lie in [first, first + rows) instead, as times do.
    per_item: usual ids per item, for bags and sequences.
    of: the ids that these offsets or lengths belong to.
    """

    name: str
    kind: str
    shape: tuple
    tables: list = field(default_factory=list)
    rows: list = field(default_factory=list)
    per_item: int = 1
    of: str = ""
    first: int = 0

    @property
    def dtype(self):
        return torch.float32 if self.kind == "dense" else torch.int64

    def as_json(self):
        described = asdict(self) | {"shape": list(self.shape)}
        described["dtype"] = str(self.dtype).removeprefix("torch.")
        unused = {"ids": ["of"], "dense": ["tables", "rows", "per_item", "of"]}
        for key in unused.get(self.kind, ["tables", "rows", "per_item"]):
            del described[key]
        if self.first == 0:
            del described["first"]
        return described


def forward_with_names(names):
    """Returns a forward(self, <names>) which calls self.score(<names>).

    torch.export and torch.jit.trace take the names of a model's inputs from
    the parameters of `forward`, and know no names behind *args. A signature of
    53 parameters is better generated than typed.
    """
    scope = {}
    arguments = ", ".join(names)
    exec(
        f"def forward(self, {arguments}):\n"
        f"    return self.score({arguments})\n",
        scope,
    )
    return scope["forward"]


def stand_in(rows, dim):
    """A table of zeros that takes four bytes, in memory and in a file."""
    return torch.zeros(1).expand(rows, dim)


def _mark(table, std):
    # Values are uniform, so that they can be drawn fast; this is the bound.
    table.bound = std * math.sqrt(3)
    return table


def bag(rows, dim, std):
    """A table read by sums of rows, with offsets of batch + 1 entries."""
    table = nn.EmbeddingBag.from_pretrained(
        stand_in(rows, dim), mode="sum", include_last_offset=True
    )
    return _mark(table, std)


def embedding(rows, dim, std):
    """A table read row by row."""
    return _mark(nn.Embedding.from_pretrained(stand_in(rows, dim)), std)


def mlp(widths, last_relu=True):
    layers = []
    for i, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        layers.append(nn.Linear(inputs, outputs))
        if last_relu or i + 2 < len(widths):
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def set_zero_share(model, inputs, share):
    """Shifts the biases of linear layers before a ReLU, unit by unit, so that
    `share` of the ReLU's results are zero for `inputs`."""

    def shift(layer, _, result):
        by = result.flatten(0, -2).quantile(share, dim=0)
        layer.bias.sub_(by)
        return result - by

    hooks = [
        layer.register_forward_hook(shift)
        for stack in model.modules()
        if isinstance(stack, nn.Sequential)
        for layer, after in zip(stack, list(stack)[1:])
        if isinstance(layer, nn.Linear) and isinstance(after, nn.ReLU)
    ]
    # A layer's hook runs after the layers before it have been shifted.
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()


class Dice(nn.Module):
    """The data adaptive activation of DIN (arXiv 1706.06978, section 5.3)."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, eps=1e-8, affine=False)
        self.alpha = nn.Parameter(torch.full((width,), 0.25))

    def forward(self, x):
        gate = torch.sigmoid(self.norm(x))
        return gate * x + (1 - gate) * self.alpha * x


class ZooModel(nn.Module):
    """A model whose tables may be stand-ins.

    A subclass sets `inputs` (Input objects in the order of `forward`) and
    `head`, the linear layer that gives the logit. Its class attributes:
      published_rows  {field: rows} of the published data
      presets         {"default" | "tiny": keyword arguments that set widths}
      calibration_batch  items whose logits set the last layer
      output_shape    of the scores, float32, that `forward` returns
    The constructor takes the scaled {field: rows}, then the widths.
    """

    published_rows = {}
    presets = {}
    calibration_batch = 128
    output_shape = ("batch",)

    @staticmethod
    def row_floats(widths):
        """Returns how many floats one row of a field takes in all tables."""
        return widths["dim"]

    @staticmethod
    def fixed_floats(widths):
        """Returns the floats of tables whose rows no option chooses."""
        return 0

    def table_modules(self):
        """Returns {parameter name: module} of the tables."""
        return {
            f"{name}.weight": module
            for name, module in self.named_modules()
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        }

    def bind(self, values):
        """Puts real tables, {parameter name: tensor}, in their places."""
        for name, table in self.table_modules().items():
            table.weight = nn.Parameter(values[name], requires_grad=False)


def initialise(model, seed):
    """Fills everything but the tables, from `seed` alone.

    He initialisation, so that values neither fade nor grow through the layers.
    """
    random = torch.Generator().manual_seed(seed)
    in_tables = {id(table.weight) for table in model.table_modules().values()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if id(parameter) in in_tables or name.endswith("alpha"):
                continue
            if parameter.dim() > 1:
                std = math.sqrt(2 / parameter.shape[1])
                parameter.normal_(0, std, generator=random)
            else:
                parameter.uniform_(-0.1, 0.1, generator=random)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.1, generator=random)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5, generator=random)


LOGIT_MEAN = -1.0
LOGIT_STD = 1.5


def centre(head, logits):
    """Changes the last layer so that logits are neither flat nor saturated.

    Untrained deep networks give nearly the same score to every item, which
    would hide errors. `logits` are the model's present outputs.
    """
    factor = LOGIT_STD / max(float(logits.std()), 1e-6)
    with torch.no_grad():
        head.weight.mul_(factor)
        head.bias.mul_(factor).add_(LOGIT_MEAN - factor * float(logits.mean()))
