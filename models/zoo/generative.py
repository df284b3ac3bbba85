"""DLRM-v3: HSTU, a transformer over what a user did, ranks candidates."""

import math

import torch
from torch import nn
from torch.nn import functional

from models.zoo.layers import Input, ZooModel, embedding

ACTIONS = 5  # bits of a rating
ACTION_WIDTH = 8  # learnt numbers per bit
TIME_FEATURES = 4  # sine and cosine of the hour and of the weekday
TIME_UNIT = 60.0  # seconds
DAY = 86_400  # seconds
WEEK = 7 * DAY
HISTORY_DAYS = 30  # of the requests that the zoo draws


class SwishLayerNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return x * torch.sigmoid(self.norm(x))


def block(inputs, hidden, outputs):
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        SwishLayerNorm(hidden),
        nn.Linear(hidden, outputs),
        nn.LayerNorm(outputs),
    )


class Layout:
    """Where the tokens of each user stand when the ragged sequences of all
    users follow one another: user token, history, candidates of the first
    user, then of the second one, and so on.

    `history` and `candidates` are offsets of batch + 1 entries.
    """

    def __init__(self, history, candidates, histories, candidate_count):
        users = history.shape[0] - 1
        self.tokens = users + histories + candidate_count
        ends = torch.arange(users + 1) + history + candidates
        lengths = torch.diff(history)
        token = torch.arange(self.tokens)
        # The user of a token; empty sequences are no trouble: each user has a
        # token of its own.
        self.user = torch.searchsorted(ends, token, right=True) - 1
        self.start = ends[self.user]
        self.place = token - self.start  # 0: the user's own token
        self.length = lengths[self.user]
        self.is_candidate = self.place > self.length
        # Jagged concatenation: rows of [user tokens, histories, candidates].
        past = users + history[self.user] + self.place - 1
        future = (
            users
            + histories
            + candidates[self.user]
            + self.place
            - 1
            - self.length
        )
        self.rows = torch.where(
            self.place == 0,
            self.user,
            torch.where(self.is_candidate, future, past),
        )
        # Jagged split: the tokens of the candidates, in order.
        index = torch.arange(candidate_count)
        owner = torch.searchsorted(candidates, index, right=True) - 1
        self.candidate_owner = owner
        self.candidate_tokens = index + 1 + owner + history[owner + 1]

    def mask(self):
        """[tokens, tokens]: a token sees its user's history up to itself; a
        candidate sees the user's history and itself."""
        token = torch.arange(self.tokens)
        last = self.start + torch.minimum(self.place, self.length)
        column = token.unsqueeze(0)
        seen = (column >= self.start.unsqueeze(1)) & (
            column <= last.unsqueeze(1)
        )
        return seen | (column == token.unsqueeze(1))


class StuLayer(nn.Module):
    """Sequential transduction unit (arXiv 2402.17152, section 3): pointwise
    SiLU attention, gated by SiLU."""

    def __init__(self, dim, heads, attention, linear, scale):
        super().__init__()
        self.heads = heads
        self.attention_width = attention
        self.linear_width = linear
        self.scale = scale
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.uvqk = nn.Linear(dim, heads * (2 * linear + 2 * attention))
        self.attention_norm = nn.LayerNorm(heads * linear, eps=1e-6)
        self.output = nn.Linear(3 * heads * linear, dim, bias=False)

    def forward(self, x, mask):
        linear = self.heads * self.linear_width
        attention = self.heads * self.attention_width
        u, v, q, k = torch.split(
            self.uvqk(self.norm(x)), [linear, linear, attention, attention], 1
        )
        u = functional.silu(u)
        q = q.view(-1, self.heads, self.attention_width).transpose(0, 1)
        k = k.view(-1, self.heads, self.attention_width).transpose(0, 1)
        v = v.view(-1, self.heads, self.linear_width).transpose(0, 1)
        scores = torch.matmul(q, k.transpose(1, 2))
        weights = functional.silu(scores * self.attention_width**-0.5)
        # Divided by a constant, not by the longest sequence at hand: a score
        # must not depend on who else is in the batch.
        weights = torch.where(mask, weights * self.scale, 0.0)
        attended = torch.matmul(weights, v)
        attended = attended.transpose(0, 1).reshape(-1, linear)
        gated = u * self.attention_norm(attended)
        return x + self.output(torch.cat([u, attended, gated], dim=1))


class DlrmV3(ZooModel):
    """MLPerf inference's DLRM-v3 (2026): HSTU of Zhai et al., "Actions Speak
    Louder than Words", arXiv 2402.17152, as a ranker. The batch is one of
    users; each has a ragged history and ragged candidates, and every candidate
    gets a score.

    Requests have one hundredth of the published lengths here; widths are as
    published.
    """

    # User and item are hashed ids; the category is one of 128.
    published_rows = {
        "item": 1_000_000_000,
        "user": 10_000_000,
        "category": 128,
    }
    # 6,715 and 2,048 on average in MLPerf's inference requests.
    presets = {
        "default": {
            "dim": 512,
            "hidden": 256,
            "layers": 5,
            "heads": 4,
            "attention": 128,
            "positions": 8192,
            "times": 2048,
            "max_length": 16384,
            "history": 67,
            "candidates": 20,
        },
        "tiny": {
            "dim": 16,
            "hidden": 8,
            "layers": 2,
            "heads": 2,
            "attention": 8,
            "positions": 32,
            "times": 16,
            "max_length": 64,
            "history": 6,
            "candidates": 3,
        },
    }
    calibration_batch = 4
    output_shape = ("n_candidates",)

    @staticmethod
    def fixed_floats(widths):
        return (widths["positions"] + widths["times"] + 1) * widths["dim"]

    def __init__(
        self,
        rows,
        dim,
        hidden,
        layers,
        heads,
        attention,
        positions,
        times,
        max_length,
        history,
        candidates,
    ):
        super().__init__()
        self.dim = dim
        self.positions = positions
        self.times = times
        self.item_table = embedding(rows["item"], dim, std=1.0)
        self.user_table = embedding(rows["user"], dim, std=1.0)
        self.category_table = embedding(rows["category"], dim, std=1.0)
        # These two are learnt like weights, but are read like tables.
        self.position_table = embedding(positions, dim, std=0.5)
        self.time_table = embedding(times + 1, dim, std=0.5)
        self.register_buffer("action_bits", 2 ** torch.arange(ACTIONS))
        self.action_table = nn.Parameter(torch.zeros(ACTIONS, ACTION_WIDTH))
        width = ACTIONS * ACTION_WIDTH
        self.candidate_action = nn.Parameter(torch.zeros(1, width))
        self.user_block = nn.Linear(dim, dim)
        self.content = block(dim, hidden, dim)
        self.category_block = block(dim, hidden, dim)
        self.action_block = block(width, hidden, dim)
        scale = 1.0 / max_length
        self.layers = nn.ModuleList(
            StuLayer(dim, heads, attention, attention, scale)
            for _ in range(layers)
        )
        self.last = nn.Linear(dim + TIME_FEATURES, dim)
        self.last_norm = nn.LayerNorm(dim)
        self.item_block = block(2 * dim, dim, dim)
        self.joint = nn.Sequential(nn.Linear(dim, dim), SwishLayerNorm(dim))
        self.head = nn.Linear(dim, 1)

        past, future = ("n_history",), ("n_candidates",)
        item = {"tables": ["item_table.weight"], "rows": [rows["item"]]}
        category = {
            "tables": ["category_table.weight"],
            "rows": [rows["category"]],
        }
        seconds = HISTORY_DAYS * DAY
        self.inputs = [
            Input(
                "user",
                "ids",
                ("batch",),
                tables=["user_table.weight"],
                rows=[rows["user"]],
            ),
            Input("time", "ids", ("batch",), rows=[WEEK], first=seconds),
            Input("history", "ids", past, **item, per_item=history),
            Input(
                "history_categories",
                "ids",
                past,
                **category,
                per_item=history,
            ),
            Input(
                "history_actions",
                "ids",
                past,
                rows=[2**ACTIONS],
                per_item=history,
            ),
            Input(
                "history_times", "ids", past, rows=[seconds], per_item=history
            ),
            Input("history_offsets", "offsets", ("batch+1",), of="history"),
            Input("candidates", "ids", future, **item, per_item=candidates),
            Input(
                "candidate_categories",
                "ids",
                future,
                **category,
                per_item=candidates,
            ),
            Input(
                "candidate_offsets", "offsets", ("batch+1",), of="candidates"
            ),
        ]

    def forward(
        self,
        user,
        time,
        history,
        history_categories,
        history_actions,
        history_times,
        history_offsets,
        candidates,
        candidate_categories,
        candidate_offsets,
    ):
        layout = Layout(
            history_offsets,
            candidate_offsets,
            history.shape[0],
            candidates.shape[0],
        )
        candidate_items = self.item_table(candidates)
        categories = self.category_table(candidate_categories)
        past = (
            self.content(self.item_table(history))
            + self.category_block(self.category_table(history_categories))
            + self.action_block(self._actions(history_actions))
        )
        # A candidate has no action yet.
        future = (
            self.content(candidate_items)
            + self.category_block(categories)
            + self.action_block(self.candidate_action)
        )
        users = self.user_block(self.user_table(user))
        x = torch.cat([users, past, future], dim=0)[layout.rows]
        seconds = self._ages(layout, time, history_times)
        x = self._add_places(x * math.sqrt(self.dim), layout, seconds)
        mask = layout.mask()
        for layer in self.layers:
            x = layer(x, mask)
        ranked = x[layout.candidate_tokens]
        ranked = self.last_norm(
            self.last(
                torch.cat(
                    [ranked, self._clock(time[layout.candidate_owner])], dim=1
                )
            )
        )
        items = self.item_block(torch.cat([candidate_items, categories], dim=1))
        return torch.sigmoid(self.head(self.joint(ranked * items))).squeeze(1)

    def _actions(self, actions):
        """Returns the meaning of each bit of an action, side by side."""
        bits = (actions.unsqueeze(1) & self.action_bits) > 0
        chosen = bits.unsqueeze(2) * self.action_table
        return chosen.flatten(1)

    def _ages(self, layout, time, history_times):
        """Seconds between each token and its user's request."""
        times = torch.cat(
            [time, history_times, time[layout.candidate_owner]]
        )
        return time[layout.user] - times[layout.rows]

    def _add_places(self, x, layout, seconds):
        """Adds vectors for how many steps and how long ago a token was."""
        ago = (layout.length + 1 - layout.place).clamp(0, self.positions - 1)
        root = torch.sqrt(seconds.clamp(min=0).float() / TIME_UNIT)
        bucket = root.long().clamp(0, self.times)
        return x + self.position_table(ago) + self.time_table(bucket)

    def _clock(self, time):
        """Returns the hour of the day and the day of the week as angles."""
        day = (time % DAY).float() * (2 * math.pi / DAY)
        week = (time % WEEK).float() * (2 * math.pi / WEEK)
        return torch.stack(
            [torch.sin(day), torch.cos(day), torch.sin(week), torch.cos(week)],
            dim=1,
        )
