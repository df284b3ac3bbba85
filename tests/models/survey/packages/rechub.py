"""torch-rechub 0.9.0: a dictionary of features by name."""

from torch_rechub.basic.features import DenseFeature, SequenceFeature, SparseFeature
from torch_rechub.models import matching, multi_task, ranking

from tests.models.survey.case import Case, dense, ids

DIM = 8
ITEMS = 30
STEPS = 5
ROWS = (50, 30, 20, 40)
MLP = {"dims": [16, 8], "dropout": 0.1, "activation": "relu"}
TOWER = {"dims": [16, 8]}
TASKS = [{"dims": [8]}, {"dims": [8]}]

sparse = [SparseFeature(f"C{i}", r, embed_dim=DIM) for i, r in enumerate(ROWS)]
numbers = [DenseFeature(f"I{i}") for i in range(3)]
target = SparseFeature("target", ITEMS, embed_dim=DIM)
item = SparseFeature("item", ITEMS, embed_dim=DIM)


def sequence(name, pooling, shared=None, padding=None):
    return SequenceFeature(
        name, ITEMS, embed_dim=DIM, pooling=pooling, shared_with=shared, padding_idx=padding
    )


bags = [sequence("hist", "mean", padding=0), sequence("click", "sum", "hist", 0)]
negatives = sequence("negatives", "concat", "item")

CASES = []


def add(name, build, features, **options):
    """features: names or features; each is an input."""
    names = sorted({getattr(f, "name", f) for f in features})

    def inputs(batch, generator):
        features = {}
        for name in names:
            if name[0] == "C":
                features[name] = ids(generator, ROWS[int(name[1:])], batch)
            elif name[0] == "I":
                features[name] = dense(generator, batch)
            elif name in ("item", "target"):
                features[name] = ids(generator, ITEMS, batch)
            elif name == "session":  # NARM itself fails where all are padded
                features[name] = ids(generator, ITEMS - 1, batch, STEPS) + 1
            else:
                features[name] = ids(generator, ITEMS, batch, STEPS)
        return (features,)

    CASES.append(Case(f"rechub_{name}", build, inputs, script=False, **options))


both = sparse + numbers
add("WideDeep", lambda: ranking.WideDeep(both, sparse + bags, MLP), both + bags)
add("DeepFM", lambda: ranking.DeepFM(both, sparse, MLP), both)
add("DCN", lambda: ranking.DCN(both + bags, 3, TOWER), both + bags)
for structure in ("parallel", "stacked", "crossnet_only"):
    add(
        f"DCNv2_{structure}",
        lambda s=structure: ranking.DCNv2(both, 3, TOWER, model_structure=s),
        both,
        smallest=2,
    )
add("DCNv2_full", lambda: ranking.DCNv2(both, 3, TOWER, use_low_rank_mixture=False), both)
for bridge in (
    "hadamard_product",
    "pointwise_addition",
    "concatenation",
    "attention_pooling",
):
    add(
        f"EDCN_{bridge}",
        lambda b=bridge: ranking.EDCN(sparse, 2, {"dims": [16]}, bridge_type=b),
        sparse,
    )
for kind in ("field_all", "field_each", "field_interaction"):
    add(
        f"FiBiNet_{kind}",
        lambda k=kind: ranking.FiBiNet(sparse, MLP, bilinear_type=k),
        sparse,
    )
add("AFM", lambda: ranking.AFM(sparse, DIM), sparse)
add("AutoInt", lambda: ranking.AutoInt(sparse, numbers, mlp_params=MLP), both)
linear = [SparseFeature(f"C{i}", r, embed_dim=1) for i, r in enumerate(ROWS)]
crossed = [SparseFeature(f"C{i}", r * 4, embed_dim=DIM) for i, r in enumerate(ROWS)]
add("DeepFFM", lambda: ranking.DeepFFM(linear, crossed, DIM, MLP), sparse)
add("FatDeepFFM", lambda: ranking.FatDeepFFM(linear, crossed, DIM, 2, MLP), sparse)

history = [sequence("hist", "concat", "target")]
for softmax in (True, False):
    add(
        "DIN_softmax" if softmax else "DIN",
        lambda s=softmax: ranking.DIN(
            sparse, history, [target], TOWER, {"dims": [16, 8], "use_softmax": s}
        ),
        [*sparse, "hist", target],
    )
add(
    "DIEN",
    lambda: ranking.DIEN(
        sparse, history, [sequence("neghist", "concat", "target")], [target], TOWER
    ),
    [*sparse, "hist", "neghist", target],
)
add(
    "BST",
    lambda: ranking.BST(sparse, history, [target], TOWER, nhead=2),
    [*sparse, "hist", target],
)


def user_side(model):
    model.mode = "user"
    return model


dssm = lambda: matching.DSSM(sparse + bags, [item], TOWER, TOWER)
add("DSSM", dssm, [*sparse, *bags, item])
add("DSSM_user", lambda: user_side(dssm()), [*sparse, *bags, item])
pooled = [sequence("hist", "mean", "item")]
whole = [sequence("hist", "concat", "item")]
given = [*sparse, "hist", item, negatives]
youtube = lambda: matching.YoutubeDNN(sparse + pooled, [item], [negatives], TOWER)
add("YoutubeDNN", youtube, given)
add("YoutubeDNN_user", lambda: user_side(youtube()), given)
add(
    "GRU4Rec",
    lambda: matching.GRU4Rec(sparse, whole, [item], [negatives], dict(TOWER)),
    given,
)
add("ComirecSA", lambda: matching.ComirecSA(sparse, whole, [item], [negatives]), given)
add(
    "ComirecDR",
    lambda: matching.ComirecDR(sparse, whole, [item], [negatives], STEPS),
    given,
)
for dynamic in (True, False):
    add(
        "MIND_dynamic" if dynamic else "MIND",
        lambda d=dynamic: matching.MIND(
            sparse, whole, [item], [negatives], STEPS, dynamic_interest=d
        ),
        given,
        # Its routing starts from random numbers also in evaluation.
        refused={form: "randn" for form in ("pt2", "decomposed", "trace", "frozen")},
    )
add(
    "SINE",
    lambda: matching.SINE(["hist"], ["item"], ["negatives"], ITEMS, DIM, DIM, 4, 2, STEPS),
    ["hist", item, negatives],
)
session = sequence("session", "concat", padding=0)
add("NARM", lambda: matching.NARM(session, DIM, 0.1, 0.1), [session])
add("STAMP", lambda: matching.STAMP(session, 0.1, 0.1), [session])
sequences = [sequence("seq", "concat")] + [
    sequence(name, "concat", "seq") for name in ("pos", "neg")
]
add("SASRec", lambda: matching.SASRec(sequences, max_len=STEPS), sequences, smallest=2)

two = ["classification", "classification"]
add(
    "SharedBottom",
    lambda: multi_task.SharedBottom(both, two, {"dims": [16]}, TASKS),
    both,
)
add(
    "MMOE",
    lambda: multi_task.MMOE(
        both, ["classification", "regression"], 3, {"dims": [16]}, TASKS
    ),
    both,
)
add("PLE", lambda: multi_task.PLE(both, two, 2, 2, 1, {"dims": [16]}, TASKS), both)
add("AITM", lambda: multi_task.AITM(both, 2, {"dims": [32, 16]}, TASKS), both)
add(
    "ESMM",
    lambda: multi_task.ESMM(sparse, [target], {"dims": [16]}, {"dims": [16]}),
    [*sparse, target],
)
