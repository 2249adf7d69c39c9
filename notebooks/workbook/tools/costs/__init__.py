"""What a collective costs: α-β-γ for each algorithm, NCCL's own model, whole clusters. Neither torch nor a cluster.

    machine    clusters described: GPUs per node, NVLink, rails, network, oversubscription
    nccl       the model by which NCCL itself chooses an algorithm and a protocol
    estimate   how long NCCL really takes: that model's shape, with constants that published tables teach
    calibrate  the same for one's own machine, from a few measured rows; robust: least squares for both
    predict    the algorithms by their steps and bytes alone, on links that are alike and on a cluster

Everything is a closed formula over numpy arrays: a hundred thousand ranks cost as much time as four.
"""

from workbook.tools.costs.calibrate import Calibrated, calibrate
from workbook.tools.costs.estimate import estimate
from workbook.tools.costs.machine import A100, B200, GB200, H100, H200, RENTED, Cluster
from workbook.tools.costs.nccl import choose
from workbook.tools.costs.predict import ALGORITHMS, flat, seconds

__all__ = [
    "A100",
    "ALGORITHMS",
    "B200",
    "GB200",
    "H100",
    "H200",
    "RENTED",
    "Calibrated",
    "Cluster",
    "calibrate",
    "choose",
    "estimate",
    "flat",
    "seconds",
]
