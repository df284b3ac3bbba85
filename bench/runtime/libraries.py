"""Models of torchfm and deepctr-torch, at the sizes of Criteo's fields.

    pip install scikit-learn pandas tqdm requests
    pip install --no-deps deepctr-torch==0.3.0 torchfm==0.7.0

26 fields of up to 20,000 ids, vectors of 16, layers of 256 and 128.
"""

import inspect

import torch
from deepctr_torch import models
from deepctr_torch.inputs import DenseFeat, SparseFeat, build_input_features
from torchfm.model import afi, afm, afn, dcn, dfm, fm, fnn, nfm, pnn, wd, xdfm

from tests.models.survey.case import Case, dense, ids

FIELDS = [20_000, 5_000, 1_000, 300, 100, 50] * 4 + [10_000, 7]
NUMBERS = 13
DIM = 16
MLP = (256, 128)
DROP = (0.2, 0.2)


def columns(batch, generator):
    return (torch.cat([ids(generator, rows, batch, 1) for rows in FIELDS], 1),)


def features():
    names = [f"C{i}" for i in range(len(FIELDS))]
    return [
        *[SparseFeat(n, rows, embedding_dim=DIM) for n, rows in zip(names, FIELDS)],
        DenseFeat("I", NUMBERS),
    ]


def float_columns(batch, generator):
    numbers = dense(generator, batch, NUMBERS)
    # In the order in which the models look for them.
    parts = {"I": numbers}
    for i, column in enumerate(columns(batch, generator)[0].split(1, 1)):
        parts[f"C{i}"] = column.float()
    return (torch.cat([parts[name] for name in build_input_features(features())], 1),)


CASES = []


def add(name, build, inputs=columns):
    CASES.append(Case(name, build, inputs, script=False))


add("fm_fm", lambda: fm.FactorizationMachineModel(FIELDS, DIM))
add("fm_fnn", lambda: fnn.FactorizationSupportedNeuralNetworkModel(FIELDS, DIM, MLP, 0.2))
add("fm_wd", lambda: wd.WideAndDeepModel(FIELDS, DIM, MLP, 0.2))
add("fm_dfm", lambda: dfm.DeepFactorizationMachineModel(FIELDS, DIM, MLP, 0.2))
add("fm_nfm", lambda: nfm.NeuralFactorizationMachineModel(FIELDS, DIM, MLP, DROP))
add("fm_dcn", lambda: dcn.DeepCrossNetworkModel(FIELDS, DIM, 3, MLP, 0.2))
add("fm_ipnn", lambda: pnn.ProductNeuralNetworkModel(FIELDS, DIM, MLP, 0.2, "inner"))
add("fm_opnn", lambda: pnn.ProductNeuralNetworkModel(FIELDS, DIM, MLP, 0.2, "outer"))
# Without dropout, which this model applies in evaluation, too.
add("fm_afm", lambda: afm.AttentionalFactorizationMachineModel(FIELDS, DIM, 16, (0, 0)))
add("fm_afn", lambda: afn.AdaptiveFactorizationNetwork(FIELDS, DIM, 64, MLP, DROP))
add(
    "fm_afi",
    lambda: afi.AutomaticFeatureInteractionModel(FIELDS, DIM, 32, 2, 3, MLP, DROP),
)
add(
    "fm_xdfm",
    lambda: xdfm.ExtremeDeepFactorizationMachineModel(FIELDS, DIM, MLP, 0.2, (64, 64)),
)


def ranking(name):
    model = getattr(models, name)
    known = inspect.signature(model).parameters
    options = {"dnn_hidden_units": MLP} if "dnn_hidden_units" in known else {}
    lists = 2 if "linear_feature_columns" in known else 1
    return model(*[features() for _ in range(lists)], **options)


for each in ("WDL", "DeepFM", "DCN", "NFM", "PNN", "AutoInt", "xDeepFM", "IFM", "MLR"):
    add(f"deepctr_{each}", lambda name=each: ranking(name), float_columns)
