"""Published model libraries, as PyPI has them: nothing of theirs was changed.

    pip install scikit-learn pandas tqdm requests
    pip install --no-deps deepctr-torch==0.3.0 torch-rechub==0.9.0
    python -m tests.models.survey.survey --cases tests.models.survey.packages

takes these two; the others are lists of their own, --cases
tests.models.survey.packages.NAME:

    fm       pip install --no-deps torchfm==0.7.0
    bole     pip install scipy pyyaml colorlog colorama tabulate texttable psutil plotly
             pip install tensorboard
             pip install --no-deps recbole==1.2.1 thop
    fuxi     pip install pandas polars pyarrow h5py pyyaml scikit-learn ray tqdm
             pip install --no-deps fuxictr==2.3.10
    tabular  pip install scikit-learn scipy
             pip install --no-deps rtdl_revisiting_models==0.0.2 tabm==0.0.3
             pip install --no-deps rtdl_num_embeddings==0.0.12 pytorch-tabnet==4.1.0
"""

from tests.models.survey.packages import deepctr, rechub

CASES = [*deepctr.CASES, *rechub.CASES]
