"""Wide & Deep and DeepFM: click prediction from one matrix of ids."""

import torch
from torch import nn

from models.zoo.layers import Input, ZooModel, embedding, mlp
from models.zoo.rows import CRITEO_FIELDS, DENSE_FEATURES

FIELDS = len(CRITEO_FIELDS)


class WideDeep(ZooModel):
    """Cheng et al., "Wide & Deep Learning for Recommender Systems", arXiv
    1606.07792: vectors of 32, MLP 1024-512-256, a linear model beside it.

    One table per field and side. The fields are Criteo's.
    """

    published_rows = CRITEO_FIELDS
    presets = {
        "default": {"dim": 32, "deep": [1024, 512, 256]},
        "tiny": {"dim": 4, "deep": [32, 16]},
    }

    def __init__(self, rows, dim, deep):
        super().__init__()
        self.tables = nn.ModuleList(
            embedding(count, dim, std=1.0) for count in rows.values()
        )
        self.wide = nn.ModuleList(
            embedding(count, 1, std=0.1) for count in rows.values()
        )
        self.wide_dense = nn.Linear(DENSE_FEATURES, 1, bias=False)
        self.deep = mlp([DENSE_FEATURES + FIELDS * dim, *deep])
        self.head = nn.Linear(deep[-1], 1)
        self.inputs = [
            Input("dense", "dense", ("batch", DENSE_FEATURES)),
            Input(
                "ids",
                "ids",
                ("batch", FIELDS),
                tables=list(self.table_modules()),
                rows=list(rows.values()),
            ),
        ]

    @staticmethod
    def row_floats(widths):
        return widths["dim"] + 1

    def forward(self, dense, ids):
        fields = ids.unbind(1)
        vectors = [table(x) for table, x in zip(self.tables, fields)]
        weights = [table(x) for table, x in zip(self.wide, fields)]
        wide = torch.cat(weights, dim=1).sum(1, keepdim=True)
        deep = self.deep(torch.cat([dense, *vectors], dim=1))
        logit = self.head(deep) + wide + 0.1 * self.wide_dense(dense)
        return torch.sigmoid(logit).squeeze(1)


class DeepFm(ZooModel):
    """Guo et al., "DeepFM", arXiv 1703.04247: vectors of 10, MLP 400-400-400,
    a factorisation machine and a linear model over the same ids.

    All fields share one table, as many CTR libraries lay it out: a field's
    ids are moved by the number of rows of the fields before it.
    """

    published_rows = CRITEO_FIELDS
    presets = {
        "default": {"dim": 10, "deep": [400, 400, 400]},
        "tiny": {"dim": 4, "deep": [16, 16]},
    }

    def __init__(self, rows, dim, deep):
        super().__init__()
        counts = list(rows.values())
        starts = [sum(counts[:i]) for i in range(FIELDS)]
        self.register_buffer("field_starts", torch.tensor(starts))
        # Small values, because the pair products grow with the square.
        self.table = embedding(sum(counts), dim, std=0.1)
        self.linear_table = embedding(sum(counts), 1, std=0.1)
        self.dense_vectors = nn.Parameter(torch.zeros(DENSE_FEATURES, dim))
        self.linear_dense = nn.Linear(DENSE_FEATURES, 1)
        self.deep = mlp([(FIELDS + DENSE_FEATURES) * dim, *deep])
        self.head = nn.Linear(deep[-1], 1)
        self.inputs = [
            Input("dense", "dense", ("batch", DENSE_FEATURES)),
            Input(
                "ids",
                "ids",
                ("batch", FIELDS),
                tables=list(self.table_modules()),
                rows=counts,
            ),
        ]

    @staticmethod
    def row_floats(widths):
        return widths["dim"] + 1

    def forward(self, dense, ids):
        rows = ids + self.field_starts
        linear = self.linear_table(rows).sum(1) + self.linear_dense(dense)
        dense_vectors = 0.1 * dense.unsqueeze(2) * self.dense_vectors
        vectors = torch.cat([self.table(rows), dense_vectors], dim=1)
        # The sum over all pairs of dot products, without forming the pairs.
        pairs = vectors.sum(1).square() - vectors.square().sum(1)
        pairs = 0.5 * pairs.sum(1, keepdim=True)
        deep = self.head(self.deep(vectors.flatten(1)))
        return torch.sigmoid(0.2 * linear + pairs + deep).squeeze(1)
