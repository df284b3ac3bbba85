"""A two-tower ranker: one user, many candidate items in each request."""

import torch
from torch import nn
from torch.nn import functional

from models.zoo.layers import Input, ZooModel, embedding, mlp

USER_FIELDS = ("country", "language", "device")
ITEM_FIELDS = ("channel", "topic")
USER_DENSE = 16
ITEM_DENSE = 8


class TwoTower(ZooModel):
    """User and item towers as in Yi et al., "Sampling-Bias-Corrected Neural
    Modeling for Large Corpus Item Recommendations", RecSys 2019 (ReLU MLPs,
    mean of the watched items), with ReLU widths 1024-512-256 of
    Covington et al., RecSys 2016. Ranking adds an MLP over both towers and
    their dot product.

    The user's inputs have first dimension 1. The user tower runs once per
    request; its result is tiled to the number of candidates. The papers give
    no row counts; 20 million users and 5 million items stand for "millions".
    """

    published_rows = {
        "user": 20_000_000,
        "item": 5_000_000,
        "country": 250,
        "language": 200,
        "device": 2_000,
        "channel": 1_000_000,
        "topic": 1_000,
    }
    presets = {
        "default": {
            "dim": 64,
            "user_tower": [1024, 512, 256],
            "item_tower": [512, 256],
            "ranker": [256, 64],
        },
        "tiny": {
            "dim": 8,
            "user_tower": [32, 16],
            "item_tower": [16],
            "ranker": [16, 8],
        },
    }

    def __init__(self, rows, dim, user_tower, item_tower, ranker):
        super().__init__()
        self.user_table = embedding(rows["user"], dim, std=1.0)
        self.item_table = embedding(rows["item"], dim, std=1.0)
        self.user_tables = nn.ModuleList(
            embedding(rows[name], dim, std=1.0) for name in USER_FIELDS
        )
        self.item_tables = nn.ModuleList(
            embedding(rows[name], dim, std=1.0) for name in ITEM_FIELDS
        )
        user_width = (2 + len(USER_FIELDS)) * dim + USER_DENSE
        item_width = (1 + len(ITEM_FIELDS)) * dim + ITEM_DENSE
        self.user_tower = mlp([user_width, *user_tower], last_relu=False)
        self.item_tower = mlp([item_width, *item_tower], last_relu=False)
        shared = user_tower[-1]
        self.ranker = mlp([2 * shared + 1, *ranker])
        self.head = nn.Linear(ranker[-1], 1)
        self.inputs = [
            Input("user_dense", "dense", (1, USER_DENSE)),
            _ids("user_id", (1,), ["user_table.weight"], [rows["user"]]),
            _ids(
                "user_fields",
                (1, len(USER_FIELDS)),
                [f"user_tables.{i}.weight" for i in range(len(USER_FIELDS))],
                [rows[name] for name in USER_FIELDS],
            ),
            Input(
                "history_ids",
                "ids",
                ("n_history_ids",),
                tables=["item_table.weight"],
                rows=[rows["item"]],
                per_item=50,
            ),
            Input("history_offsets", "offsets", (2,), of="history_ids"),
            Input("item_dense", "dense", ("batch", ITEM_DENSE)),
            _ids("item_id", ("batch",), ["item_table.weight"], [rows["item"]]),
            _ids(
                "item_fields",
                ("batch", len(ITEM_FIELDS)),
                [f"item_tables.{i}.weight" for i in range(len(ITEM_FIELDS))],
                [rows[name] for name in ITEM_FIELDS],
            ),
        ]

    def forward(
        self,
        user_dense,
        user_id,
        user_fields,
        history_ids,
        history_offsets,
        item_dense,
        item_id,
        item_fields,
    ):
        user = self.user_tower(
            torch.cat(
                [
                    user_dense,
                    self.user_table(user_id),
                    self._watched(history_ids, history_offsets),
                    *_columns(self.user_tables, user_fields),
                ],
                dim=1,
            )
        )
        item = self.item_tower(
            torch.cat(
                [
                    item_dense,
                    self.item_table(item_id),
                    *_columns(self.item_tables, item_fields),
                ],
                dim=1,
            )
        )
        tiled = user.expand(item.shape[0], -1)
        # Divided by the root of the width, so that the dot product is as
        # large as its neighbours in the ranker's input.
        dot = (tiled * item).sum(1, keepdim=True) * item.shape[1] ** -0.5
        ranked = self.ranker(torch.cat([tiled, item, dot], dim=1))
        return torch.sigmoid(self.head(ranked)).squeeze(1)

    def _watched(self, ids, offsets):
        """Returns the mean of the items watched, 0 for none. The candidates
        are rows of the same table."""
        return functional.embedding_bag(
            ids,
            self.item_table.weight,
            offsets,
            mode="mean",
            include_last_offset=True,
        )


def _ids(name, shape, tables, rows):
    return Input(name, "ids", shape, tables=tables, rows=rows)


def _columns(tables, ids):
    return [table(x) for table, x in zip(tables, ids.unbind(1))]
