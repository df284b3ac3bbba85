"""Published model libraries, as PyPI has them: nothing of theirs was changed.

    pip install scikit-learn pandas tqdm requests
    pip install --no-deps deepctr-torch==0.3.0 torch-rechub==0.9.0
    python -m tests.models.survey.survey --cases tests.models.survey.packages
"""

from tests.models.survey.packages import deepctr, rechub

CASES = [*deepctr.CASES, *rechub.CASES]
