"""Published model libraries, as PyPI has them: nothing of theirs was changed.

    pip install scikit-learn pandas tqdm requests scipy pyyaml colorlog colorama
    pip install tabulate texttable psutil plotly tensorboard
    pip install --no-deps deepctr-torch==0.3.0 torch-rechub==0.9.0 torchfm==0.7.0
    pip install --no-deps recbole==1.2.1 thop
    python -m tests.models.survey.survey --cases tests.models.survey.packages

or one of them, --cases tests.models.survey.packages.bole.
"""

from tests.models.survey.packages import bole, deepctr, fm, rechub

CASES = [*deepctr.CASES, *rechub.CASES, *fm.CASES, *bole.CASES]
