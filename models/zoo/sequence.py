"""DIN: attention over what a user did before."""

import torch
from torch import nn

from models.zoo.layers import Dice, Input, ZooModel, embedding

CONTEXT_FIELDS = 3


class Din(ZooModel):
    """Zhou et al., "Deep Interest Network", arXiv 1706.06978: attention MLP
    80-40-1 over (item, step, difference, product), no softmax over the steps,
    then MLP 200-80 with Dice.

    Rows are those of the paper's Alibaba data. It names no context fields;
    hour, weekday and page position stand for them.
    """

    published_rows = {
        "user": 60_000_000,
        "item": 600_000_000,
        "category": 100_000,
        "hour": 24,
        "weekday": 7,
        "position": 50,
    }
    presets = {
        "default": {"dim": 64, "attention": [80, 40], "top": [200, 80]},
        "tiny": {"dim": 4, "attention": [8, 4], "top": [16, 8]},
    }

    def __init__(self, rows, dim, attention, top):
        super().__init__()
        self.user_table = embedding(rows["user"], dim, std=1.0)
        self.item_table = embedding(rows["item"], dim, std=1.0)
        self.category_table = embedding(rows["category"], dim, std=1.0)
        contexts = ("hour", "weekday", "position")
        self.context_tables = nn.ModuleList(
            embedding(rows[name], dim, std=1.0) for name in contexts
        )
        # An item or a step is a pair of vectors: the item, its category.
        pair = 2 * dim
        first, second = attention
        self.attention = nn.Sequential(
            nn.Linear(4 * pair, first),
            nn.Sigmoid(),
            nn.Linear(first, second),
            nn.Sigmoid(),
            nn.Linear(second, 1),
        )
        layers, width = [], dim * (1 + len(contexts)) + 2 * pair
        for outputs in top:
            layers += [nn.Linear(width, outputs), Dice(outputs)]
            width = outputs
        self.top = nn.Sequential(*layers)
        self.head = nn.Linear(width, 1)

        steps = ("batch", "steps")
        item = {"tables": ["item_table.weight"], "rows": [rows["item"]]}
        category = {
            "tables": ["category_table.weight"],
            "rows": [rows["category"]],
        }
        self.inputs = [
            Input(
                "user",
                "ids",
                ("batch",),
                tables=["user_table.weight"],
                rows=[rows["user"]],
            ),
            Input("item", "ids", ("batch",), **item),
            Input("item_category", "ids", ("batch",), **category),
            Input("history", "ids", steps, **item, per_item=50),
            Input("history_categories", "ids", steps, **category, per_item=50),
            Input("history_lengths", "lengths", ("batch",), of="history"),
            Input(
                "context",
                "ids",
                ("batch", CONTEXT_FIELDS),
                tables=[f"context_tables.{i}.weight" for i in range(3)],
                rows=[rows[name] for name in contexts],
            ),
        ]

    def forward(
        self,
        user,
        item,
        item_category,
        history,
        history_categories,
        history_lengths,
        context,
    ):
        target = self._pair(item, item_category)
        interest = self._interest(
            target, self._pair(history, history_categories), history_lengths
        )
        contexts = [
            table(x) for table, x in zip(self.context_tables, context.unbind(1))
        ]
        features = [self.user_table(user), target, interest, *contexts]
        hidden = self.top(torch.cat(features, dim=1))
        return torch.sigmoid(self.head(hidden)).squeeze(1)

    def _pair(self, items, categories):
        vectors = self.item_table(items), self.category_table(categories)
        return torch.cat(vectors, dim=-1)

    def _interest(self, target, steps, lengths):
        """Returns the weighted sum of the steps: [batch, pair]."""
        query = target.unsqueeze(1).expand_as(steps)
        relation = [query, steps, query - steps, query * steps]
        weights = self.attention(torch.cat(relation, dim=2)).squeeze(2)
        positions = torch.arange(steps.shape[1])
        mask = positions.unsqueeze(0) < lengths.unsqueeze(1)
        # Steps behind a user's last one are filling; an empty history gives 0.
        weights = torch.where(mask, weights, torch.zeros_like(weights))
        return torch.bmm(weights.unsqueeze(1), steps).squeeze(1)
