"""deepctr-torch 0.3.0: one float matrix holds ids, lengths and dense features."""

import inspect

import torch
from deepctr_torch import models
from deepctr_torch.inputs import (
    DenseFeat,
    SparseFeat,
    VarLenSparseFeat,
    build_input_features,
)
from deepctr_torch.models import multitask

from tests.models.survey.case import Case, dense, ids

ROWS = {"C0": 50, "C1": 30, "C2": 20, "C3": 40, "genres": 25, "tags": 25}
DIM = 8
HIDDEN = (16, 8)


def sparse():
    return [SparseFeat(f"C{i}", ROWS[f"C{i}"], embedding_dim=DIM) for i in range(4)]


def fields():
    return [*sparse(), DenseFeat("I1", 1), DenseFeat("I2", 3)]


def with_lists():
    """Beside the fields two lists of ids, one of them with its length."""
    genres = SparseFeat("genres", ROWS["genres"], embedding_dim=DIM)
    tags = SparseFeat("tags", ROWS["tags"], embedding_dim=DIM)
    return [
        *fields(),
        VarLenSparseFeat(genres, maxlen=4, combiner="mean"),
        VarLenSparseFeat(tags, maxlen=3, combiner="sum", length_name="tags_length"),
    ]


HISTORY = ["item", "brand"]
HISTORY_ROWS = {"user": 9, "gender": 2, "item": 30, "brand": 8}


def with_history():
    columns = [SparseFeat(k, v, embedding_dim=DIM) for k, v in HISTORY_ROWS.items()]
    columns.append(DenseFeat("score", 1))
    for name in HISTORY:
        feature = SparseFeat(
            f"hist_{name}", HISTORY_ROWS[name], embedding_dim=DIM, embedding_name=name
        )
        columns.append(VarLenSparseFeat(feature, 4, length_name="hist_length"))
    return columns


def inputs(columns):
    index = build_input_features(columns())
    rows = {**ROWS, **HISTORY_ROWS, **{f"hist_{n}": HISTORY_ROWS[n] for n in HISTORY}}
    most = {"tags_length": 3, "hist_length": 4}

    def draw(batch, generator):
        parts = []
        for name, (first, last) in index.items():
            if name in most:
                part = ids(generator, most[name], batch, 1) + 1
            elif name in rows:
                part = ids(generator, rows[name], batch, last - first)
            else:
                part = dense(generator, batch, last - first)
            parts.append(part.float())
        return (torch.cat(parts, 1),)

    return draw


CASES = []


def add(name, columns, build, **options):
    CASES.append(Case(f"deepctr_{name}", build, inputs(columns), script=False, **options))


def ranking(name, columns, tag="", smallest=1, **options):
    model = getattr(models, name)
    known = inspect.signature(model).parameters
    chosen = {"dnn_hidden_units": HIDDEN} if "dnn_hidden_units" in known else {}
    chosen.update(options)

    def build():
        given = [columns()]
        if "linear_feature_columns" in known:
            given.append(columns())
        return model(*given, **chosen)

    add(name + tag, columns, build, smallest=smallest)


for model in ("WDL", "DeepFM", "DCN", "NFM"):
    ranking(model, with_lists)
ranking("DCNMix", with_lists, smallest=2)
ranking("xDeepFM", with_lists, cin_layer_size=(8, 4))
ranking("DCN", with_lists, "_matrix", cross_parameterization="matrix")
for model in ("AutoInt", "FiBiNET", "IFM", "DIFM", "AFN", "ONN", "MLR", "PNN"):
    ranking(model, fields)
for model in ("AFM", "CCPM"):
    ranking(model, sparse)
ranking("FiBiNET", fields, "_each", bilinear_type="each")
ranking("PNN", fields, "_outer", use_outter=True)
ranking("PNN", fields, "_vec", use_outter=True, kernel_type="vec")
ranking("WDL", fields, "_norm", dnn_use_bn=True, dnn_activation="linear")
ranking("WDL", fields, "_prelu", dnn_use_bn=True, dnn_activation="prelu")
for model in ("SharedBottom", "ESMM", "MMOE", "PLE"):
    add(model, with_lists, lambda model=model: getattr(multitask, model)(with_lists()))
add("DIN", with_history, lambda: models.DIN(with_history(), HISTORY))
add(
    "DIN_softmax",
    with_history,
    lambda: models.DIN(
        with_history(), HISTORY, att_weight_normalization=True, att_activation="sigmoid"
    ),
)
for cell in ("GRU", "AIGRU", "AGRU", "AUGRU"):
    add(
        f"DIEN_{cell}",
        with_history,
        lambda cell=cell: models.DIEN(
            with_history(), HISTORY, gru_type=cell, dnn_hidden_units=HIDDEN
        ),
    )
