"""FuxiCTR 2.3.10: its models of long histories, with the inputs of its loader.

A history and its target lie one after the other for each row, so that the sizes of
what is looked up are multiples of the batch.
"""

import importlib
import tempfile

import torch
from fuxictr.features import FeatureMap
from torch import nn

from tests.models.survey.case import Case, dense, ids

STEPS = 6
ROWS = {"item_id": 30, "category": 7, "user_id": 20, "age": 5}
DIM = 8
OPTIONS = {
    "gpu": -1, "embedding_dim": DIM, "learning_rate": 1e-3, "attention_dim": DIM,
    "optimizer": "adam", "loss": "binary_crossentropy", "task": "binary_classification",
    "metrics": ["AUC"], "dnn_hidden_units": [16, 8], "max_len": STEPS, "num_heads": 2,
    "topk": 3, "short_seq_len": 3, "hash_bits": 4, "num_hashes": 2, "verbose": 0,
    "model_root": tempfile.gettempdir(), "save_best_only": True, "monitor": "AUC", "monitor_mode": "max",
    "first_k_cols": 2, "transformer_n_layers": 1, "seq_len": STEPS,
}  # fmt: skip


def feature_map():
    features = FeatureMap("survey", ".")
    for name, rows in ROWS.items():
        features.features[name] = {
            "source": "item" if name in ("item_id", "category") else "user",
            "type": "categorical",
            "vocab_size": rows,
            "padding_idx": 0,
        }
    features.features["price"] = {"source": "user", "type": "numeric"}
    features.labels = ["label"]
    features.num_fields = 5
    features.default_emb_dim = DIM
    features.set_column_index()
    return features


class Scores(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, fields, items, mask):
        return self.model((dict(fields), dict(items), mask))["y_pred"]


def inputs(batch, generator):
    fields = {name: ids(generator, ROWS[name], batch) for name in ("user_id", "age")}
    fields["price"] = dense(generator, batch)
    length = ids(generator, STEPS, batch, 1) + 1
    mask = torch.arange(STEPS) >= STEPS - length  # padded in front
    items = {}
    for name in ("item_id", "category"):
        history = (ids(generator, ROWS[name] - 1, batch, STEPS) + 1) * mask
        target = ids(generator, ROWS[name] - 1, batch, 1) + 1
        items[name] = torch.cat([history, target], 1).flatten()
    return fields, items, mask


def build(name):
    module = importlib.import_module(f"model_zoo.LongCTR.{name}.{name}")
    return Scores(getattr(module, name)(feature_map(), model_id=name, **OPTIONS))


CASES = [
    Case(f"fuxi_{name}", lambda name=name: build(name), inputs, script=False)
    for name in (
        "DIN", "ETA", "FinalMLP", "MIRRN", "SDIM", "SIM", "TWIN",
        "TransAct",
    )
]  # fmt: skip
