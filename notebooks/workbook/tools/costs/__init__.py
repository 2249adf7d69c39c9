"""What a collective costs: α-β-γ for each algorithm, NCCL's own model, whole clusters. Neither torch nor a cluster.

    textbook   latency, bytes and additions of each algorithm on one kind of link
    machine    clusters described: GPUs a node, NVLink, rails, network, oversubscription
    nccl       the model by which NCCL itself chooses an algorithm and a protocol
    estimate   how long NCCL really takes: that model's shape, with constants that published tables teach
    calibrate  the same for one's own machine, from a few measured rows; robust: least squares for both
    predict    the algorithms on a described cluster, up to 100,000 ranks and beyond

Everything is a closed formula over numpy arrays: a hundred thousand ranks cost as much time as four.
"""

from workbook.tools.costs.calibrate import Calibrated, calibrate
from workbook.tools.costs.estimate import estimate
from workbook.tools.costs.machine import A100, B200, GB200, H100, H200, RENTED, Cluster
from workbook.tools.costs.nccl import choose
from workbook.tools.costs.textbook import ALGORITHMS, flat, seconds

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
