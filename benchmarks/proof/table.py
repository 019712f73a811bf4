"""All models of parts a and c."""

from benchmarks.proof.case import Case
from benchmarks.proof.cases.right_boosters import RIGHT_BOOSTERS
from benchmarks.proof.cases.right_networks import RIGHT_NETWORKS
from benchmarks.proof.cases.right_sklearn import RIGHT_SKLEARN
from benchmarks.proof.cases.right_texts import RIGHT_TEXTS
from benchmarks.proof.cases.wrong_networks import WRONG_NETWORKS
from benchmarks.proof.cases.wrong_tables import WRONG_TABLES
from benchmarks.proof.cases.wrong_texts import WRONG_TEXTS

CASES: tuple[Case, ...] = (
    *WRONG_TABLES,
    *WRONG_NETWORKS,
    *WRONG_TEXTS,
    *RIGHT_SKLEARN,
    *RIGHT_BOOSTERS,
    *RIGHT_NETWORKS,
    *RIGHT_TEXTS,
)
