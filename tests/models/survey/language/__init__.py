"""The language of graphs: one small model per operator class or spelling.

None is a paper's. Each asks for one thing that PyTorch can export, in a forward
that also looks items up and has a dense layer, so that there is something to
split. In every form that PyTorch can give it.
"""

from tests.models.survey.language import (
    data,
    dtypes,
    flow,
    interface,
    lookups,
    norms,
    orders,
    practice,
    products,
    shapes,
    steps,
    weights,
)

CASES = [
    *lookups.case,
    *shapes.case,
    *products.case,
    *steps.case,
    *norms.case,
    *orders.case,
    *dtypes.case,
    *weights.case,
    *interface.case,
    *flow.case,
    *data.case,
    *practice.case,
]
