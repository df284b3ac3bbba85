"""The model of subject `batching`: MLPerf-v1's top MLP, for bench.runtime.prepare."""

from torch import nn

from tests.models.survey.case import Case, dense

WIDTHS = (479, 1024, 1024, 512, 256, 1)


def top_mlp():
    layers = []
    for width, wide in zip(WIDTHS, WIDTHS[1:]):
        layers += [nn.Linear(width, wide), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


CASES = [
    Case("top_mlp", top_mlp, lambda batch, generator: (dense(generator, batch, WIDTHS[0]),))
]
