"""RecBole 1.2.1: each model's own predict(), over a dictionary of its fields.

Its data sets are not needed: what a model asks of one is counts of ids, types of
fields and features of the items.
"""

import sys
from unittest import mock

import numpy as np
import torch
from recbole.config import Config
from recbole.model import context_aware_recommender as context
from recbole.model import general_recommender as general
from recbole.model import sequential_recommender as sequential
from recbole.utils import FeatureSource, FeatureType
from scipy.sparse import coo_matrix, dok_matrix
from torch import nn

from tests.models.survey.case import Case, dense, ids

# RecBole 1.2.1 uses names that numpy 2 and scipy 1.12 have dropped.
for old, new in (
    ("float_", np.float64), ("complex_", np.complex128), ("unicode_", np.str_),
):  # fmt: skip
    if old not in np.__dict__:
        setattr(np, old, new)
if not hasattr(dok_matrix, "_update"):
    dok_matrix._update = lambda self, cells: self._dict.update(cells)

STEPS = 6
ROWS = {"user_id": 20, "item_id": 30, "class": 9, "genres": 7, "age": 4}
TYPES = {
    "user_id": FeatureType.TOKEN,
    "item_id": FeatureType.TOKEN,
    "class": FeatureType.TOKEN,
    "genres": FeatureType.TOKEN_SEQ,
    "age": FeatureType.TOKEN,
    "price": FeatureType.FLOAT,
    "label": FeatureType.FLOAT,
}
USER = ("user_id", "age")
ITEM = ("item_id", "class", "genres", "price")
SMALL = {
    "embedding_size": 8, "hidden_size": 8, "inner_size": 16, "n_heads": 2,
    "mlp_hidden_size": [16, 8], "MAX_ITEM_LIST_LENGTH": STEPS, "attention_size": 8,
    "numerical_features": ["price"], "train_neg_sample_args": None,
}  # fmt: skip


def numbers(generator, count):
    """Numbers, each beside the row of its vector."""
    return torch.cat([dense(generator, count, 1), torch.zeros(count, 1)], 1)


class Features(dict):
    """Features of all users or items, as recbole.data.Interaction has them."""

    @property
    def interaction(self):
        return self

    def to(self, device):
        return self


class Data:
    """What the models read of recbole.data.Dataset."""

    uid_field, iid_field = "user_id", "item_id"
    user_num, item_num = ROWS["user_id"], ROWS["item_id"]
    field2type = TYPES
    field2seqlen = {"item_id_list": STEPS, "genres": 3, "price": 1}

    def __init__(self, config):
        self.config = config
        generator = torch.Generator().manual_seed(5)
        count = {name: ROWS.get(name, 1) for name in TYPES}
        self.features = {}
        for side, rows in ((USER, self.user_num), (ITEM, self.item_num)):
            self.features[side] = Features(
                {
                    name: torch.arange(rows)
                    if name == side[0]
                    else numbers(generator, rows)
                    if name == "price"
                    else ids(generator, count[name], rows, *((3,) * (name == "genres")))
                    for name in side
                }
            )
        self.inter_feat = {
            "item_id": ids(generator, self.item_num, 40),
            "user_id": ids(generator, self.user_num, 40),
        }

    def num(self, field):
        return ROWS.get(field, 1)

    def fields(self, source=None, **_):
        wanted = {
            FeatureSource.USER_ID: USER[:1], FeatureSource.USER: USER[1:],
            FeatureSource.ITEM_ID: ITEM[:1], FeatureSource.ITEM: ITEM[1:],
            FeatureSource.INTERACTION: ("label",),
        }  # fmt: skip
        return [name for kind in source for name in wanted[kind]]

    def get_user_feature(self):
        return self.features[USER]

    def get_item_feature(self):
        return self.features[ITEM]

    def inter_matrix(self, form="csr", value_field=None):
        feature = self.inter_feat
        cells = (feature["user_id"].numpy(), feature["item_id"].numpy())
        shape = (self.user_num, self.item_num)
        ones = torch.ones(len(cells[0])).numpy()
        return getattr(coo_matrix((ones, cells), shape), f"to{form}")()

    def history_matrix(self, rows, own, other):
        matrix = torch.zeros(rows, 5, dtype=torch.int64)
        length = torch.zeros(rows, dtype=torch.int64)
        for a, b in zip(self.inter_feat[own], self.inter_feat[other]):
            if length[a] < 5:
                matrix[a, length[a]] = b
                length[a] += 1
        return matrix, (matrix != 0).float(), length

    def history_item_matrix(self, value_field=None, max_history_len=None):
        return self.history_matrix(self.user_num, "user_id", "item_id")

    def history_user_matrix(self, value_field=None, max_history_len=None):
        return self.history_matrix(self.item_num, "item_id", "user_id")


class Scores(nn.Module):
    """A model's entry point of evaluation as forward()."""

    def __init__(self, model, entry):
        super().__init__()
        self.model = model
        self.entry = entry

    def forward(self, features):
        return getattr(self.model, self.entry)(features)


def build(kind, name, entry, options):
    with mock.patch.object(sys, "argv", sys.argv[:1]):  # Config reads it
        config = Config(
            model=name, dataset="survey", config_dict={**SMALL, "use_gpu": False, **options}
        )
    return Scores(getattr(kind, name)(config, Data(config)), entry)


def inputs(names):
    def draw(batch, generator):
        features = {}
        for name in names:
            if name == "item_id_list":
                features[name] = ids(generator, ROWS["item_id"] - 1, batch, STEPS) + 1
                length = ids(generator, STEPS, batch) + 1
                padded = torch.arange(STEPS) >= length[:, None]
                features[name][padded] = 0
                features["item_length"] = length
            elif name == "price":
                features[name] = numbers(generator, batch)
            elif name == "neg_item_id_list":
                features[name] = ids(generator, ROWS["item_id"], batch, STEPS)
            elif name == "genres":
                features[name] = ids(generator, ROWS[name], batch, 3)
            else:
                features[name] = ids(generator, ROWS[name], batch)
        return (features,)

    return draw


CASES = []


def add(kind, name, entry, names, tag="", options=(), **more):
    CASES.append(
        Case(
            f"bole_{name}{tag}",
            lambda: build(kind, name, entry, dict(options)),
            inputs(names),
            script=False,
            **more,
        )
    )


for name in (
    "AFM", "AutoInt", "DCN", "DCNV2", "DeepFM", "DSSM", "EulerNet", "FFM", "FiGNN", "FM",
    "FNN", "FwFM", "KD_DAGFM", "LR", "NFM", "PNN", "WideDeep", "xDeepFM",
):  # fmt: skip
    # One tower's product is squeezed. A trace that PyTorch gives up (FwFM, below
    # sparse matrices) leaves its tracer unusable.
    more = {"smallest": 2} if name == "DSSM" else {}
    add(context, name, "predict", (*USER, *ITEM), trace=name != "FwFM", **more)

history = ("user_id", "item_id_list")
for name in (
    "BERT4Rec", "Caser", "CORE", "FDSA", "FEARec", "FOSSIL", "FPMC", "GCSAN", "GRU4Rec",
    "GRU4RecF", "HGN", "HRM", "LightSANs", "NARM", "NextItNet", "NPE", "RepeatNet",
    "SASRec", "SASRecF", "SHAN", "SINE", "SRGNN", "STAMP", "TransRec",
):  # fmt: skip
    options = {"selected_features": ["class", "genres"]} if name[-1] in "AF" else {}
    add(sequential, name, "full_sort_predict", history, options=options)
for name in ("GRU4RecCPR", "SASRecCPR"):
    add(
        sequential,
        name,
        "full_sort_predict",
        (*history, "item_id"),
        options={"reranker_CAN_NUM": 10},
    )
add(sequential, "DIN", "predict", (*history, "item_id"))
add(sequential, "DIEN", "predict", (*history, "item_id", "neg_item_id_list"))
add(sequential, "SASRec", "predict", (*history, "item_id"), "_item")
pair = ("user_id", "item_id")
for name in (
    "BPR", "NeuMF", "DMF", "FISM", "NAIS", "LightGCN", "NGCF", "SGL", "MultiVAE",
    "MultiDAE", "CDAE", "RecVAE", "MacridVAE", "ENMF", "SimpleX", "LINE", "SpectralCF",
):  # fmt: skip
    sparse = name in ("LightGCN", "NGCF", "SGL", "SpectralCF")
    add(general, name, "predict", pair, trace=not sparse)
layers = {"cnn_channels": [1, 4, 4], "cnn_kernels": [4, 2], "cnn_strides": [4, 2]}
add(general, "ConvNCF", "predict", pair, options=layers)
