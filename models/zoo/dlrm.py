"""DLRM and DLRM-DCNv2, in the shapes of MLPerf inference."""

import torch
from torch import nn

from models.zoo.layers import Input, ZooModel, bag, forward_with_names, mlp
from models.zoo.rows import CRITEO_MULTI_HOT, CRITEO_FIELDS, DENSE_FEATURES

NUM_TABLES = len(CRITEO_FIELDS)


class BagModel(ZooModel):
    """Dense features go through a bottom MLP, ids through one bag per table.

    A subclass says in `interact` what happens between these vectors and the
    top MLP.
    """

    published_rows = CRITEO_FIELDS
    per_item = [1] * NUM_TABLES

    def __init__(self, rows, bottom, top, top_inputs):
        super().__init__()
        self.bottom = mlp([DENSE_FEATURES, *bottom])
        # The sum over a bag has unit variance however long the bag is, so
        # that no feature drowns another.
        self.tables = nn.ModuleList(
            bag(count, bottom[-1], std=per_item**-0.5)
            for count, per_item in zip(rows.values(), self.per_item)
        )
        self.top = mlp([top_inputs, *top])
        self.head = nn.Linear(top[-1], 1)
        self.inputs = [
            Input("dense", "dense", ("batch", DENSE_FEATURES)),
            *(
                Input(
                    f"ids_{i}",
                    "ids",
                    (f"n_ids_{i}",),
                    tables=[f"tables.{i}.weight"],
                    rows=[count],
                    per_item=self.per_item[i],
                )
                for i, count in enumerate(rows.values())
            ),
            *(
                Input(f"offsets_{i}", "offsets", ("batch+1",), of=f"ids_{i}")
                for i in range(NUM_TABLES)
            ),
        ]

    @staticmethod
    def row_floats(widths):
        return widths["bottom"][-1]

    forward = forward_with_names(
        [
            "dense",
            *(f"ids_{i}" for i in range(NUM_TABLES)),
            *(f"offsets_{i}" for i in range(NUM_TABLES)),
        ]
    )

    def score(self, dense, *bags):
        features = [self.bottom(dense)]
        for i, table in enumerate(self.tables):
            features.append(table(bags[i], bags[NUM_TABLES + i]))
        mixed = self.top(self.interact(features))
        return torch.sigmoid(self.head(mixed)).squeeze(1)

    def interact(self, features):
        raise NotImplementedError


class Dlrm(BagModel):
    """Naumov et al., "Deep Learning Recommendation Model for Personalization
    and Recommendation Systems", arXiv 1906.00091; MLPerf v1 shapes.

    One id per table and item, yet read as bags, as the paper does.
    """

    presets = {
        "default": {"bottom": [512, 256, 128], "top": [1024, 1024, 512, 256]},
        "tiny": {"bottom": [32, 16, 8], "top": [32, 16]},
    }

    def __init__(self, rows, bottom, top):
        features = NUM_TABLES + 1
        pairs = features * (features - 1) // 2
        super().__init__(rows, bottom, top, top_inputs=bottom[-1] + pairs)
        # Where the pairs below the diagonal lie in a flattened matrix of dot
        # products.
        row, column = torch.tril_indices(features, features, offset=-1)
        self.register_buffer("pairs", row * features + column)

    def interact(self, features):
        vectors = torch.stack(features, dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs = products.flatten(1).index_select(1, self.pairs)
        return torch.cat([features[0], pairs], dim=1)


class LowRankCross(nn.Module):
    """Wang et al., "DCN V2", arXiv 2008.13535, equation 2:
    x' = x0 * (U (V x) + b) + x."""

    def __init__(self, width, rank, layers):
        super().__init__()
        self.down = nn.ModuleList(
            nn.Linear(width, rank, bias=False) for _ in range(layers)
        )
        self.up = nn.ModuleList(nn.Linear(rank, width) for _ in range(layers))

    def forward(self, start):
        x = start
        for down, up in zip(self.down, self.up):
            x = start * up(down(x)) + x
        return x


class DlrmDcnv2(BagModel):
    """MLPerf's DLRM-DCNv2: DLRM with several ids per table and item (214 in
    all) and a low-rank cross network, arXiv 2008.13535, for the interaction.
    """

    per_item = CRITEO_MULTI_HOT
    presets = {
        "default": Dlrm.presets["default"] | {"rank": 512, "layers": 3},
        "tiny": Dlrm.presets["tiny"] | {"rank": 16, "layers": 3},
    }

    def __init__(self, rows, bottom, top, rank, layers):
        width = bottom[-1] * (NUM_TABLES + 1)
        super().__init__(rows, bottom, top, top_inputs=width)
        self.cross = LowRankCross(width, rank, layers)

    def interact(self, features):
        return self.cross(torch.cat(features, dim=1))
