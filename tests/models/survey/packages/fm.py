"""torchfm 0.7.0 (pytorch-fm): one int64 matrix with a column per field."""

from torchfm.model.afi import AutomaticFeatureInteractionModel
from torchfm.model.afm import AttentionalFactorizationMachineModel
from torchfm.model.afn import AdaptiveFactorizationNetwork
from torchfm.model.dcn import DeepCrossNetworkModel
from torchfm.model.dfm import DeepFactorizationMachineModel
from torchfm.model.ffm import FieldAwareFactorizationMachineModel
from torchfm.model.fm import FactorizationMachineModel
from torchfm.model.fnfm import FieldAwareNeuralFactorizationMachineModel
from torchfm.model.fnn import FactorizationSupportedNeuralNetworkModel
from torchfm.model.lr import LogisticRegressionModel
from torchfm.model.ncf import NeuralCollaborativeFiltering
from torchfm.model.nfm import NeuralFactorizationMachineModel
from torchfm.model.pnn import ProductNeuralNetworkModel
from torchfm.model.wd import WideAndDeepModel
from torchfm.model.xdfm import ExtremeDeepFactorizationMachineModel

import numpy as np
import torch

from tests.models.survey.case import Case, ids

FIELDS = [50, 30, 20, 40]
DIM = 8
MLP = (16, 8)
DROP = (0.2, 0.2)


def inputs(batch, generator):
    return (torch.cat([ids(generator, rows, batch, 1) for rows in FIELDS], 1),)


CASES = []


def add(name, build, **options):
    # Offsets in numpy are no TorchScript.
    CASES.append(Case(f"fm_{name}", build, inputs, script=False, **options))


add("LR", lambda: LogisticRegressionModel(FIELDS))
add("FM", lambda: FactorizationMachineModel(FIELDS, DIM))
add("FFM", lambda: FieldAwareFactorizationMachineModel(FIELDS, DIM))
add("FNN", lambda: FactorizationSupportedNeuralNetworkModel(FIELDS, DIM, MLP, 0.2))
add("WD", lambda: WideAndDeepModel(FIELDS, DIM, MLP, 0.2))
add("IPNN", lambda: ProductNeuralNetworkModel(FIELDS, DIM, MLP, 0.2, "inner"))
add("OPNN", lambda: ProductNeuralNetworkModel(FIELDS, DIM, MLP, 0.2, "outer"))
add("DCN", lambda: DeepCrossNetworkModel(FIELDS, DIM, 3, MLP, 0.2))
add("NFM", lambda: NeuralFactorizationMachineModel(FIELDS, DIM, MLP, DROP))
add("FNFM", lambda: FieldAwareNeuralFactorizationMachineModel(FIELDS, DIM, MLP, DROP))
add("DFM", lambda: DeepFactorizationMachineModel(FIELDS, DIM, MLP, 0.2))
add("AFN", lambda: AdaptiveFactorizationNetwork(FIELDS, DIM, 12, MLP, DROP))
add("AFI", lambda: AutomaticFeatureInteractionModel(FIELDS, DIM, 16, 2, 3, MLP, DROP))
add("AFM_undropped", lambda: AttentionalFactorizationMachineModel(FIELDS, DIM, 8, (0, 0)))
add(
    "AFM",
    lambda: AttentionalFactorizationMachineModel(FIELDS, DIM, 8, DROP),
    # The model applies dropout in evaluation, too.
    refused={form: "dropout" for form in ("pt2", "decomposed", "trace", "frozen")},
)
for whole in (True, False):
    add(
        "xDFM" if whole else "xDFM_split",
        lambda w=whole: ExtremeDeepFactorizationMachineModel(
            FIELDS, DIM, MLP, 0.2, (8, 8), split_half=not w
        ),
    )
users, items = np.array([0], dtype=np.int64), np.array([1], dtype=np.int64)
add(
    "NCF",
    lambda: NeuralCollaborativeFiltering(FIELDS, users, items, DIM, MLP, 0.2),
)
