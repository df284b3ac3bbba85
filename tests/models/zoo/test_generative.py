"""DLRM-v3 against a computation user by user, token by token."""

import math
import unittest

import torch
from torch.nn.functional import embedding, layer_norm, silu

from models.zoo import generative
from tests.models.zoo.support import exported

# Sums of other orders; scores lie in (0, 1).
TOLERANCE = 1e-5


def slice_of(tensor, offsets, user):
    return tensor[int(offsets[user]) : int(offsets[user + 1])]


class Oracle:
    """The model's formulas for one user at a time, without ragged operators
    and without masks."""

    def __init__(self, model):
        self.model = model
        self.weights = dict(model.state_dict())

    def linear(self, name, x):
        y = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else y + bias

    def norm(self, name, x, eps=1e-5):
        weight = self.weights[f"{name}.weight"]
        bias = self.weights[f"{name}.bias"]
        return layer_norm(x, x.shape[-1:], weight, bias, eps)

    def swish(self, name, x):
        return x * torch.sigmoid(self.norm(f"{name}.norm", x))

    def block(self, name, x):
        x = self.swish(f"{name}.1", self.linear(f"{name}.0", x))
        return self.norm(f"{name}.3", self.linear(f"{name}.2", x))

    def table(self, name, ids):
        return embedding(ids, self.weights[f"{name}.weight"])

    def actions(self, actions):
        rows = []
        for action in actions.tolist():
            row = [
                self.weights["action_table"][bit] * (action >> bit & 1)
                for bit in range(generative.ACTIONS)
            ]
            rows.append(torch.cat(row))
        width = generative.ACTIONS * generative.ACTION_WIDTH
        return torch.stack(rows) if rows else torch.zeros(0, width)

    def sequence(self, inputs, user):
        """Returns the tokens and their ages in seconds, and how many of the
        tokens are history."""
        history = inputs["history_offsets"]
        candidates = inputs["candidate_offsets"]
        time = int(inputs["time"][user])
        items = slice_of(inputs["history"], history, user)
        past = (
            self.block("content", self.table("item_table", items))
            + self.block(
                "category_block",
                self.table(
                    "category_table",
                    slice_of(inputs["history_categories"], history, user),
                ),
            )
            + self.block(
                "action_block",
                self.actions(slice_of(inputs["history_actions"], history, user)),
            )
        )
        targets = slice_of(inputs["candidates"], candidates, user)
        future = (
            self.block("content", self.table("item_table", targets))
            + self.block(
                "category_block",
                self.table(
                    "category_table",
                    slice_of(inputs["candidate_categories"], candidates, user),
                ),
            )
            + self.block("action_block", self.weights["candidate_action"])
        )
        own = self.linear(
            "user_block", self.table("user_table", inputs["user"][user : user + 1])
        )
        times = slice_of(inputs["history_times"], history, user).tolist()
        ages = [0, *(time - t for t in times), *([0] * len(targets))]
        return torch.cat([own, past, future]), ages, len(items)

    def attention(self, layer, q, k, v, length):
        """SiLU attention of one head, query by query."""
        out = torch.zeros_like(v)
        for i in range(len(q)):
            seen = list(range(min(i, length) + 1))
            if i > length:
                seen.append(i)
            for j in seen:
                score = float(q[i] @ k[j]) * layer.attention_width**-0.5
                out[i] += silu(torch.tensor(score)) * layer.scale * v[j]
        return out

    def stu(self, index, x, length):
        layer, name = self.model.layers[index], f"layers.{index}"
        mixed = self.linear(f"{name}.uvqk", self.norm(f"{name}.norm", x, 1e-6))
        width, heads = layer.heads * layer.linear_width, layer.heads
        narrow = heads * layer.attention_width
        u, v, q, k = mixed.split([width, width, narrow, narrow], 1)
        attended = torch.cat(
            [
                self.attention(layer, *parts, length)
                for parts in zip(
                    q.chunk(heads, 1), k.chunk(heads, 1), v.chunk(heads, 1)
                )
            ],
            dim=1,
        )
        u = silu(u)
        gated = u * self.norm(f"{name}.attention_norm", attended, 1e-6)
        return x + self.linear(
            f"{name}.output", torch.cat([u, attended, gated], 1)
        )

    def scores(self, inputs):
        return torch.cat(
            [self.user(inputs, user) for user in range(len(inputs["user"]))]
        )

    def user(self, inputs, user):
        x, ages, length = self.sequence(inputs, user)
        x = x * math.sqrt(self.model.dim)
        rows = []
        for place, age in enumerate(ages):
            ago = min(max(length + 1 - place, 0), self.model.positions - 1)
            bucket = int(math.sqrt(max(age, 0) / generative.TIME_UNIT))
            rows.append(
                self.weights["position_table.weight"][ago]
                + self.weights["time_table.weight"][min(bucket, self.model.times)]
            )
        x = x + torch.stack(rows)
        for index in range(len(self.model.layers)):
            x = self.stu(index, x, length)
        time = int(inputs["time"][user])
        clock = []
        for period in (86_400, 7 * 86_400):
            angle = 2 * math.pi * (time % period) / period
            clock += [math.sin(angle), math.cos(angle)]
        ranked = x[length + 1 :]
        ranked = torch.cat(
            [ranked, torch.tensor([clock] * len(ranked)).reshape(-1, 4)], 1
        )
        ranked = self.norm("last_norm", self.linear("last", ranked))
        offsets = inputs["candidate_offsets"]
        items = torch.cat(
            [
                self.table("item_table", slice_of(inputs["candidates"], offsets, user)),
                self.table(
                    "category_table",
                    slice_of(inputs["candidate_categories"], offsets, user),
                ),
            ],
            1,
        )
        joint = ranked * self.block("item_block", items)
        joint = self.swish("joint.1", self.linear("joint.0", joint))
        return torch.sigmoid(self.linear("head", joint)).squeeze(1)


class DlrmV3Test(unittest.TestCase):
    def setUp(self):
        self.zoo = exported("dlrm_v3")
        self.oracle = Oracle(self.zoo.eager)

    def check(self, inputs):
        wanted = self.oracle.scores(inputs)
        torch.testing.assert_close(
            self.zoo.scores(inputs), wanted, rtol=0, atol=TOLERANCE
        )
        for suffix in (".pt2", ".pt"):
            torch.testing.assert_close(
                self.zoo.run(suffix, inputs), wanted, rtol=0, atol=TOLERANCE
            )

    def test_scores_are_those_of_the_formulas(self):
        for batch, seed in ((1, 3), (2, 4), (7, 5)):
            with self.subTest(batch=batch, seed=seed):
                self.check(self.zoo.inputs(batch, seed=seed))

    def test_users_without_history_or_candidates(self):
        inputs = self.zoo.inputs(3, "published")
        # The first user has no history, the second no candidates.
        inputs["history_offsets"] = torch.tensor([0, 0, 5, 18])
        inputs["candidate_offsets"] = torch.tensor([0, 4, 4, 9])
        self.check(inputs)

    def test_long_histories_and_old_steps_share_the_last_buckets(self):
        inputs = self.zoo.inputs(1, "published")
        count = 2 * self.zoo.eager.positions
        generator = torch.Generator().manual_seed(8)
        for name, rows in (
            ("history", 200),
            ("history_categories", 128),
            ("history_actions", 32),
            ("history_times", 10**7),
        ):
            inputs[name] = torch.randint(rows, (count,), generator=generator)
        inputs["history_offsets"] = torch.tensor([0, count])
        self.check(inputs)

    def test_a_users_scores_do_not_depend_on_other_users(self):
        inputs = self.zoo.inputs(4)
        together = self.zoo.scores(inputs)
        alone = {
            name: tensor[2:3]
            for name, tensor in inputs.items()
            if name in ("user", "time")
        }
        for prefix in ("history", "candidate"):
            offsets = inputs[f"{prefix}_offsets"]
            alone[f"{prefix}_offsets"] = offsets[2:4] - offsets[2]
            for name, tensor in inputs.items():
                if name.startswith(prefix) and not name.endswith("offsets"):
                    alone[name] = slice_of(tensor, offsets, 2)
        torch.testing.assert_close(
            self.zoo.scores(alone),
            slice_of(together, inputs["candidate_offsets"], 2),
            rtol=0,
            atol=TOLERANCE,
        )

    def test_published_shapes(self):
        model = generative.DlrmV3(
            {"item": 5, "user": 5, "category": 5},
            **generative.DlrmV3.presets["default"],
        )
        layer = model.layers[0]
        self.assertEqual(len(model.layers), 5)
        self.assertEqual(layer.uvqk.weight.shape, (2048, 512))
        self.assertEqual(layer.output.weight.shape, (512, 1536))
        self.assertEqual(model.item_block[0].weight.shape, (512, 1024))
        self.assertEqual(model.last.weight.shape, (512, 516))
        tables = {id(x.weight) for x in model.table_modules().values()}
        dense = sum(
            p.numel() for p in model.parameters() if id(p) not in tables
        ) + (8192 + 2049) * 512
        # 16.7 million parameters in MLPerf's model.
        self.assertLess(abs(dense / 16.7e6 - 1), 0.03)


if __name__ == "__main__":
    unittest.main()
