"""Networks for tables: rtdl_revisiting_models 0.0.2, rtdl_num_embeddings 0.0.12,
tabm 0.0.3 and pytorch-tabnet 4.1.0; floats beside columns of ids.
"""

import torch
from pytorch_tabnet.tab_network import TabNetNoEmbeddings, TabNet
from rtdl_num_embeddings import (
    LinearReLUEmbeddings,
    PeriodicEmbeddings,
    PiecewiseLinearEmbeddings,
    PiecewiseLinearEncoding,
)
from rtdl_revisiting_models import MLP, CategoricalEmbeddings, FTTransformer, ResNet
from tabm import TabM
from torch import nn

from tests.models.survey.case import Case, dense, ids

ROWS = [7, 3, 12]
NUMBERS = 4

CASES = []


def add(name, build, inputs, **options):
    CASES.append(Case(f"table_{name}", build, inputs, **options))


def numbers(batch, generator):
    return (dense(generator, batch, NUMBERS),)


def columns(batch, generator):
    return torch.cat([ids(generator, rows, batch, 1) for rows in ROWS], 1)


def both(batch, generator):
    return (*numbers(batch, generator), columns(batch, generator))


def bins():
    edges = torch.linspace(-2, 2, 6)
    return [edges[: 3 + i] for i in range(NUMBERS)]


mlp = {"n_blocks": 2, "d_block": 16, "dropout": 0.1}
add("MLP", lambda: MLP(d_in=NUMBERS, d_out=1, **mlp), numbers)
add(
    "ResNet",
    lambda: ResNet(
        d_in=NUMBERS, d_out=2, n_blocks=2, d_block=16, d_hidden=None,
        d_hidden_multiplier=2.0, dropout1=0.2, dropout2=0.0,
    ),
    numbers,
)  # fmt: skip
transformer = {**FTTransformer.get_default_kwargs(1), "d_block": 16}
for linformer in (False, True):
    more = {"linformer_kv_compression_ratio": 0.5, "linformer_kv_compression_sharing": "headwise"}
    add(
        "FTTransformer_linformer" if linformer else "FTTransformer",
        lambda more=more if linformer else {}: FTTransformer(
            n_cont_features=NUMBERS, cat_cardinalities=ROWS, d_out=1,
            **{**transformer, **more},
        ),
        both,
        script=False,
    )  # fmt: skip
add("FTTransformer_ids", lambda: nn.Sequential(CategoricalEmbeddings(ROWS, 8), nn.Flatten(1)),
    lambda b, g: (columns(b, g),))
for name, embedding in {
    "linear": lambda: LinearReLUEmbeddings(NUMBERS, 8),
    "periodic": lambda: PeriodicEmbeddings(NUMBERS, 8, lite=False),
    "periodic_lite": lambda: PeriodicEmbeddings(NUMBERS, 8, lite=True),
    "piecewise_A": lambda: PiecewiseLinearEmbeddings(bins(), 8, activation=True, version="A"),
    "piecewise_B": lambda: PiecewiseLinearEmbeddings(bins(), 8, activation=False, version="B"),
}.items():
    add(
        f"MLP_{name}",
        lambda e=embedding: nn.Sequential(
            e(), nn.Flatten(1), MLP(d_in=NUMBERS * 8, d_out=1, **mlp)
        ),
        numbers,
        script=False,
    )
add("encoding", lambda: PiecewiseLinearEncoding(bins()), numbers, script=False)
for kind in ("tabm", "tabm-mini", "tabm-packed"):
    add(
        kind,
        lambda kind=kind: TabM.make(
            n_num_features=NUMBERS, cat_cardinalities=ROWS, d_out=1, n_blocks=2,
            d_block=16, arch_type=kind, k=4,
        ),
        both,
        script=False,
    )  # fmt: skip
add(
    "tabm_embedded",
    lambda: TabM.make(
        n_num_features=NUMBERS, d_out=1, n_blocks=2, d_block=16, k=4,
        num_embeddings=PiecewiseLinearEmbeddings(bins(), 8, activation=False, version="B"),
    ),
    numbers,
    script=False,
)  # fmt: skip
for mask in ("sparsemax", "entmax"):
    add(
        f"TabNet_{mask}",
        lambda m=mask: TabNetNoEmbeddings(
            NUMBERS, 2, mask_type=m, group_attention_matrix=torch.eye(NUMBERS)
        ),
        numbers,
        script=False,
    )
add(
    "TabNet",
    lambda: TabNet(
        NUMBERS + 3, 1, cat_idxs=[4, 5, 6], cat_dims=ROWS, cat_emb_dim=[4, 4, 4],
        group_attention_matrix=torch.eye(NUMBERS + 3),
    ),
    lambda b, g: (torch.cat([*numbers(b, g), columns(b, g).float()], 1),),
    script=False,
)  # fmt: skip
