"""TorchRec's models: EmbeddingBagCollection with plain and KeyedJagged inputs.

Needs torchrec 1.6.1 and fbgemm-gpu-cpu 1.6.0, which are no dependency of
Refract; `python -m tests.models.survey.survey --cases
tests.models.survey.embedding_bags`, int8 tables with `--op-library
FBGEMM.so`, where the packages are.
"""

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from torchrec.models.dlrm import DLRM
from torchrec.models.deepfm import SimpleDeepFMNN

from tests.models.survey.case import Case, dense

ROWS = (50, 30, 40)
KEYS = ["user", "item", "tags"]
DIM = 8
DENSE = 5


def collection(pooling=PoolingType.SUM, weighted=False):
    return EmbeddingBagCollection(
        device=torch.device("cpu"),
        is_weighted=weighted,
        tables=[
            EmbeddingBagConfig(
                name=f"table_{key}",
                embedding_dim=DIM,
                num_embeddings=rows,
                feature_names=[key],
                pooling=pooling,
            )
            for key, rows in zip(KEYS, ROWS)
        ],
    )


def jagged(batch, generator, most=3):
    lengths = torch.randint(1, most + 1, (len(KEYS) * batch,), generator=generator)
    per_key = lengths.view(len(KEYS), batch).sum(1).tolist()
    values = torch.cat(
        [torch.randint(r, (n,), generator=generator) for r, n in zip(ROWS, per_key)]
    )
    return values, lengths


class Plain(nn.Module):
    """Values and lengths as tensors; the KeyedJaggedTensor is made inside."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, values, lengths):
        features = KeyedJaggedTensor(keys=KEYS, values=values, lengths=lengths)
        return self.inner(x, features)


class Pooled(nn.Module):
    """Pooled features by key, in another order, beside a dense layer."""

    def __init__(self, pooling=PoolingType.SUM):
        super().__init__()
        self.bags = collection(pooling)
        self.out = nn.Linear(3 * DIM + DENSE, 1)

    def forward(self, x, features):
        pooled = self.bags(features).to_dict()
        joined = torch.cat([pooled["tags"], pooled["user"], pooled["item"], x], 1)
        return self.out(joined).sigmoid().squeeze(-1), pooled["item"]


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = collection(weighted=True)
        self.out = nn.Linear(3 * DIM + DENSE, 1)

    def forward(self, x, values, lengths, weights):
        features = KeyedJaggedTensor(KEYS, values, weights=weights, lengths=lengths)
        return self.out(torch.cat([self.bags(features).values(), x], 1))


class Quantised(nn.Module):
    """int8 tables, as torchrec.inference makes them."""

    def __init__(self):
        super().__init__()
        from torchrec.inference.modules import quantize_embeddings

        self.bags = quantize_embeddings(
            nn.ModuleDict({"bags": collection()}), dtype=torch.int8, inplace=True
        )["bags"]
        self.out = nn.Linear(3 * DIM + DENSE, 1)

    def forward(self, x, features):
        return self.out(torch.cat([self.bags(features).values(), x], 1))


def dlrm():
    return DLRM(collection(), DENSE, [16, DIM], [16, 1])


def plain(batch, generator):
    return dense(generator, batch, DENSE), *jagged(batch, generator)


def keyed(batch, generator):
    values, lengths = jagged(batch, generator)
    return dense(generator, batch, DENSE), KeyedJaggedTensor(KEYS, values, lengths=lengths)


def weighted(batch, generator):
    values, lengths = jagged(batch, generator)
    return dense(generator, batch, DENSE), values, lengths, torch.rand(values.shape, generator=generator)


def add(name, build, inputs):
    return Case(name, build, inputs, script=False, trace=False)


CASES = [
    add("torchrec_dlrm_plain", lambda: Plain(dlrm()), plain),
    add("torchrec_dlrm_keyed", dlrm, keyed),
    add("torchrec_pooled_plain", lambda: Plain(Pooled()), plain),
    add("torchrec_mean_keyed", lambda: Pooled(PoolingType.MEAN), keyed),
    add("torchrec_weighted", Weighted, weighted),
    add("torchrec_int8_plain", lambda: Plain(Quantised()), plain),
    add("torchrec_int8_keyed", Quantised, keyed),
]
