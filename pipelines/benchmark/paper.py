"""The figures of the paper and of its author's package, with which a run is compared.

ARI is the adjusted Rand index, NMI normalized mutual information. Figures are rounded as printed.
"""

from __future__ import annotations

import dataclasses
import re

Table = dict[str, dict[str, float]]
"""Figures by dataset, then method."""

SPORE = "SPORE"
BASELINES = ("DBSCAN", "DPC", "HDBSCAN", "KMeans", "SNN_DBSCAN")
ABLATIONS = ("SPORE-ANN", "SPORE-MSR-0", "SPORE-RandSeed")
METHODS = (SPORE, *ABLATIONS, *BASELINES)
NOT_DENSITY_BASED = ("KMeans",)
ONE_CONFIGURATION = ("KMeans",)
"""Methods of which there is nothing to draw."""
SCALINGS = ("clip-minmax", "standard")
"""The one of all tables first."""
LIMIT_SECONDS = 120
"""For one configuration."""
N_TRIALS = 51
"""The default configuration and those that are drawn."""
SEED = 42
"""Of the draws."""
N_RERUNS = 10
N_CORES = 12
THRESHOLDS = tuple(percent / 100 for percent in range(30, 101, 5))
"""Of the mean best ARI, in the anytime tables."""


def is_main(scaling: str) -> bool:
    """Tell whether the figures by dataset, and the tests, are of a scaling."""
    return scaling == SCALINGS[0]


def table(text: str) -> Table:
    """Read a block: a line of methods, then one for each dataset."""
    head, *lines = text.strip().splitlines()
    rows = (line.split() for line in lines)
    return {
        name: dict(zip(head.split(), map(float, figures), strict=True)) for name, *figures in rows
    }


ARI = table("""
                 DBSCAN    DPC HDBSCAN KMeans SNN_DBSCAN  SPORE SPORE-ANN SPORE-MSR-0 SPORE-RandSeed
compound           0.87   0.82    0.84   0.59       0.86   0.98      0.98        0.98           1.00
spiral             1.00   1.00    1.00  -0.01       1.00   1.00      1.00        1.00           1.00
flame              0.91   1.00    0.92   0.46       0.95   0.97      0.97        0.88           0.97
smile              0.97   0.95    1.00   0.48       0.99   1.00      1.00        1.00           1.00
wingnut            0.99   1.00    1.00   0.44       0.97   1.00      1.00        1.00           1.00
aggregation        0.97   1.00    0.91   0.73       0.90   0.99      0.99        0.91           0.99
isolation          0.99   0.02    1.00  -0.00       1.00   1.00      1.00        1.00           1.00
trapped_lovers_2d  0.53   0.32    0.64   0.15       0.00   0.85      0.85        0.85           0.78
trapped_lovers_3d  1.00   0.49    1.00   0.15       1.00   1.00      1.00        0.99           1.00
chainlink          1.00   1.00    1.00   0.09       1.00   1.00      1.00        1.00           1.00
mk3                0.54   0.87    0.57   0.88       0.57   0.85      0.85        0.51           0.83
mk4                0.61   0.76    1.00   0.41       1.00   1.00      1.00        1.00           1.00
tetra              0.88   1.00    0.98   1.00       0.98   1.00      1.00        0.94           0.94
fish               0.87   0.87    0.87   0.81       0.78   0.60      0.60        0.25           0.59
iris               0.62   0.89    0.57   0.72       0.88   0.89      0.89        0.59           0.68
banknote           0.80   0.97    0.82   0.02       0.56   0.96      0.96        0.68           0.96
ecoli              0.52   0.48    0.41   0.43       0.71   0.73      0.73        0.49           0.74
seeds              0.53   0.76    0.42   0.70       0.82   0.77      0.77        0.46           0.77
wine               0.46   0.80    0.53   0.85       0.83   0.90      0.90        0.52           0.92
pendigits          0.55   0.66    0.63   0.56       0.58   0.76      0.76        0.63           0.76
wdbc               0.46   0.45    0.23   0.71       0.37   0.78      0.78        0.31           0.63
pbmc3k             0.27   0.35    0.05   0.75       0.61   0.81      0.81        0.13           0.80
digits             0.41   0.54    0.65   0.66       0.78   0.85      0.85        0.48           0.79
g2mg_128_20        0.00   0.86    0.06   1.00       0.11   1.00      1.00        0.04           1.00
g2mg_128_30        0.00   0.11    0.01   0.95       0.00   0.89      0.89        0.01           0.76
usps               0.15   0.25    0.10   0.54       0.36   0.64      0.64        0.36           0.62
har                0.32   0.46    0.29   0.46       0.28   0.60      0.60        0.27           0.50
fashion            0.05   0.13    0.02   0.35       0.00   0.23      0.28        0.15           0.17
""")
"""Tables full_ari and ablation_ari: of the best configuration, mean over re-runs."""

NMI = table("""
                 DBSCAN    DPC HDBSCAN KMeans SNN_DBSCAN  SPORE
compound           0.89   0.84    0.86   0.71       0.90   0.97
spiral             0.99   1.00    1.00   0.00       1.00   1.00
flame              0.85   1.00    0.86   0.41       0.91   0.93
smile              0.92   0.94    1.00   0.76       0.98   1.00
wingnut            0.97   1.00    1.00   0.34       0.94   1.00
aggregation        0.96   0.99    0.95   0.84       0.94   0.99
isolation          0.99   0.03    1.00   0.00       1.00   1.00
trapped_lovers_2d  0.44   0.41    0.69   0.38       0.00   0.82
trapped_lovers_3d  0.99   0.67    1.00   0.38       1.00   1.00
chainlink          1.00   1.00    1.00   0.07       1.00   1.00
mk3                0.66   0.84    0.72   0.85       0.72   0.81
mk4                0.68   0.76    0.99   0.52       1.00   0.99
tetra              0.87   1.00    0.97   1.00       0.97   1.00
fish               0.95   0.96    0.95   0.91       0.90   0.81
iris               0.66   0.86    0.73   0.74       0.85   0.89
banknote           0.70   0.94    0.74   0.02       0.63   0.93
ecoli              0.51   0.46    0.41   0.60       0.67   0.69
seeds              0.59   0.72    0.49   0.67       0.77   0.73
wine               0.57   0.80    0.62   0.84       0.82   0.88
pendigits          0.72   0.78    0.76   0.69       0.78   0.83
wdbc               0.34   0.44    0.26   0.60       0.46   0.65
pbmc3k             0.27   0.52    0.17   0.83       0.69   0.82
digits             0.69   0.74    0.80   0.74       0.83   0.89
g2mg_128_20        0.00   0.78    0.23   1.00       0.27   1.00
g2mg_128_30        0.00   0.08    0.07   0.90       0.04   0.82
usps               0.33   0.45    0.42   0.63       0.54   0.72
har                0.47   0.66    0.43   0.59       0.47   0.71
fashion            0.11   0.37    0.07   0.52       0.02   0.45
""")

SECONDS = table("""
                 DBSCAN    DPC HDBSCAN KMeans SNN_DBSCAN  SPORE
compound           0.00   0.00    0.00   0.18       0.05   0.03
spiral             0.00   0.00    0.00   0.18       0.02   0.02
flame              0.00   0.00    0.00   0.03       0.01   0.02
smile              0.00   0.02    0.01   0.05       0.37   0.04
wingnut            0.00   0.02    0.01   0.04       0.39   0.04
aggregation        0.00   0.01    0.01   0.05       0.16   0.03
isolation          0.04   1.63    0.09   0.04      35.59   0.16
trapped_lovers_2d  0.02   0.47    0.06   0.04       5.63   0.10
trapped_lovers_3d  0.04   0.49    0.08   0.05       6.71   0.12
chainlink          0.01   0.02    0.01   0.05       0.23   0.03
mk3                0.00   0.01    0.01   0.04       0.15   0.03
mk4                0.01   0.04    0.02   0.05       0.59   0.05
tetra              0.00   0.00    0.01   0.04       0.04   0.03
fish               0.03   0.29    0.05   0.03       6.87   0.13
iris               0.00   0.00    0.00   0.03       0.01   0.02
banknote           0.01   0.04    0.02   0.05       0.90   0.07
ecoli              0.00   0.00    0.01   0.04       0.03   0.02
seeds              0.00   0.00    0.00   0.03       0.01   0.02
wine               0.00   0.00    0.00   0.03       0.01   0.02
pendigits          0.57   2.80    1.51   0.09      27.78   0.64
wdbc               0.04   0.01    0.01   0.04       0.19   0.05
pbmc3k             0.17   0.17    0.19   0.08       3.36   0.24
digits             0.07   0.09    0.15   0.07       1.53   0.17
g2mg_128_20        0.11   0.36    0.38   0.05       2.71   0.23
g2mg_128_30        0.11   0.34    0.39   0.06       2.75   0.22
usps               1.38  10.28   16.71   0.33      20.00   0.90
har                1.53  18.15   28.55   0.36      12.58   1.11
fashion           23.64 798.41  892.09   4.89     345.18  15.44
""")
"""Of the best configuration, from scratch, mean over re-runs."""

DATASETS = tuple(ARI)

MEAN_SECONDS = {"SPORE": 0.71, "SPORE-ANN": 0.38, "DBSCAN": 0.99}
"""Over the 28 datasets, as the text has them."""
MEAN_ARI = {"SPORE": 0.86, "SPORE-ANN": 0.86, "SPORE-MSR-0": 0.62}
"""Over the 28 datasets, as the text has them."""

REFERENCE_ARI = {
    name: float(figure)
    for name, figure in re.findall(
        r"(\S+) ([\d.]+)",
        """
        compound .982 spiral 1 flame .967 smile 1 wingnut 1 aggregation .992 isolation 1
        trapped_lovers_2d .854 trapped_lovers_3d 1 chainlink 1 mk3 .850 mk4 .995 tetra 1 fish .588
        iris .904 banknote .964 ecoli .735 seeds .766 wine .899 pendigits .764 wdbc .776
        pbmc3k .809 digits .847 g2mg_128_20 1 g2mg_128_30 .888 usps .636 har .604
        """,
    )
}
"""Best ARI of the author's package with the same draws and exact neighbours, without fashion."""


@dataclasses.dataclass(frozen=True)
class Anytime:
    """How the mean best ARI of a method grows with trials."""

    needed: dict[float, int | None]
    """Trials that it takes to reach a threshold; None if it is not reached."""
    maximum: float
    default: float


def anytime(text: str) -> dict[str, Anytime]:
    """Read a block: a line of thresholds, then one for each method."""
    rows = (line.split() for line in text.strip().splitlines()[1:])
    return {
        name: Anytime(
            {
                threshold: None if cell == "-" else int(cell)
                for threshold, cell in zip(THRESHOLDS, cells, strict=True)
            },
            float(maximum),
            float(default),
        )
        for name, *cells, maximum, default in rows
    }


ANYTIME = {
    "clip-minmax": anytime("""
           0.30 0.35 0.40 0.45 0.50 0.55 0.60 0.65 0.70 0.75 0.80 0.85 0.90 0.95 1.00    max default
SPORE         1    1    1    1    1    1    2    2    4    5   12   28    -    -    - 0.8590  0.5912
SNN_DBSCAN    1    1    2    6   15   17   25   35    -    -    -    -    -    -    - 0.6749  0.3634
DPC           1    1    2    2    3    8   12   36    -    -    -    -    -    -    - 0.6669  0.3990
HDBSCAN       1    1    1    2    3    6   10    -    -    -    -    -    -    -    - 0.6249  0.4165
DBSCAN        2    2    2    2    3    9   25    -    -    -    -    -    -    -    - 0.6164  0.2592
KMeans        1    1    1    1    1    -    -    -    -    -    -    -    -    -    - 0.5412  0.5412
"""),
    "standard": anytime("""
           0.30 0.35 0.40 0.45 0.50 0.55 0.60 0.65 0.70 0.75 0.80 0.85 0.90 0.95 1.00    max default
SPORE         1    1    1    1    1    1    2    3    5    6   13    -    -    -    - 0.8376  0.5940
SNN_DBSCAN    1    2    3    6   11   27   31   47    -    -    -    -    -    -    - 0.6514  0.3017
DPC           1    1    1    2    3    4   13    -    -    -    -    -    -    -    - 0.6302  0.4175
HDBSCAN       1    1    1    2    5    7   34    -    -    -    -    -    -    -    - 0.6092  0.4061
DBSCAN        2    2    2    2    4   16   49    -    -    -    -    -    -    -    - 0.6004  0.2691
KMeans        1    1    1    1    1    -    -    -    -    -    -    -    -    -    - 0.5266  0.5266
"""),
}


@dataclasses.dataclass(frozen=True)
class SignedRanks:
    """A signed-rank test of one method against another."""

    n_pairs: int
    median: float
    """Of the differences."""
    statistic: float
    p: float
    corrected: float
    """By Holm, among the tests of the same method."""


def tests(text: str) -> dict[str, SignedRanks]:
    """Read a block: a method, then the fields of its test."""
    rows = (line.split() for line in text.strip().splitlines())
    return {name: SignedRanks(int(n), *map(float, figures)) for name, n, *figures in rows}


WILCOXON = {
    "SPORE": tests("""
DBSCAN      28 0.21605 362.0 0.000016 0.000081
DPC         28 0.10395 269.0 0.000337 0.000337
HDBSCAN     28 0.17180 241.0 0.000101 0.000302
KMeans      28 0.19245 326.0 0.000066 0.000264
SNN_DBSCAN  28 0.06835 299.0 0.000120 0.000302
"""),
    "SPORE-ANN": tests("""
SPORE           28 0.00000  11.0 0.172616 0.172616
SPORE-MSR-0     28 0.19095 276.0 0.000014 0.000041
SPORE-RandSeed  28 0.00000 147.0 0.003699 0.007399
"""),
}
"""The method that is ahead, then those that it is tested against."""
