"""Which GPU is near which network card: read from `nvidia-smi topo -m` or from NCCL's XML. No GPU is asked.

>>> from workbook.tools import topology
>>> topology.find("ndv4")
NDv4, Azure: 8 GPUs, 8 NICs, 4 CPUs
CPU0: [GPU2 GPU3 NIC2 NIC3]
CPU1: [GPU0 GPU1 NIC0 NIC1]
CPU2: [GPU6 GPU7 NIC6 NIC7]
CPU3: [GPU4 GPU5 NIC4 NIC5]
[ ]: under one PCIe switch

`labkit.draw(machine)` draws one. The bundled examples lie in `bundled/`, each with its source and licence.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from labkit.floor.errors import LabError
from labkit.floor.words import listed
from workbook.tools.topology import matrix, xml
from workbook.tools.topology.machine import MEANS, Topology, by_pcie, level

BUNDLED = {  # file: name, source
    "p4d-24xl-topo.xml": ("p4d.24xlarge, AWS", "aws/aws-ofi-nccl, topology/p4d-24xl-topo.xml"),
    "ndv4-topo.xml": ("NDv4, Azure", "Azure/azhpc-images, topology/ndv4-topo.xml"),
    "ndv5-topo.xml": ("NDv5, Azure", "Azure/azhpc-images, topology/ndv5-topo.xml"),
    "ncv4-topo.xml": ("NCv4, Azure", "Azure/azhpc-images, topology/ncv4-topo.xml"),
    "h100-1453.txt": ("8 × H100, nccl issue 1453", "nccl issue 1453, rows left out"),
    "v100-29.txt": ("7 of 8 × V100, nccl-tests issue 29", "nccl-tests issue 29, a row left out"),
    "h200-one.xml": ("one H200, by NCCL", "NCCL 2.28.9 on one NVIDIA H200, NCCL_TOPO_DUMP_FILE"),
    "h200-one.txt": ("one H200, by the driver", "nvidia-smi topo -m on one NVIDIA H200, driver 580.159"),
    "hgx-h100-written.xml": ("HGX H100, written for this lesson", "written after NCCL's src/graph/xml.cc"),
}

# What else learners paste: its pattern, what it is, and what to do instead (where that is not the usual).
AMD = "Give RCCL's XML instead, which NCCL_TOPO_DUMP_FILE names"
OTHERS = (
    (r"^\W*GPU\d+\s.*\b(OK|CNS|GNS|TNS|NS)\b", "`nvidia-smi topo -p2p`: which GPUs can read each other's memory", ""),
    (r"ROCm System Management|between two GPUs|\(Topology\) Numa", "the output of rocm-smi, AMD's tool", AMD),
    (r"amd-smi|AMD-SMI|(LINK TYPE|ACCESS|WEIGHT|HOPS) TABLE:", "the output of amd-smi, AMD's tool", AMD),
    (r"^\W*Link \d+: ", "`nvidia-smi nvlink`: the NVLinks alone", ""),
    (r"NVIDIA-SMI \d|<nvidia_smi_log", "`nvidia-smi` on what its GPUs do", ""),
    (r"^\W*(Machine|Package|NUMANode|HostBridge|PCIBridge)\b.*[#(]|<topology\b", "the output of lstopo (hwloc)", ""),
    (r"^\W*CA '\w+'|hca_id:", "the output of ibstat or ibv_devinfo: the network cards alone", ""),
    (r"NCCL INFO", "a log of NCCL", "Read it with `workbook.tools.nccl_log.read`"),
    (r"nThread \d|out-of-place", "a table of nccl-tests", "Read it with `workbook.tools.atlas.nccl_tests.read`"),
    (r"<graphs?\b", "a graph of NCCL (NCCL_GRAPH_DUMP_FILE): its channels", "Give the file of NCCL_TOPO_DUMP_FILE"),
)
USUAL = "Paste what `nvidia-smi topo -m` prints, or the XML that NCCL_TOPO_DUMP_FILE names"

__all__ = ["BUNDLED", "MEANS", "Topology", "by_pcie", "find", "level", "read", "text"]


def read(told: str, name: str = "this machine", source: str = "") -> Topology:
    """Read a machine from NCCL's XML, or from the matrix of `nvidia-smi topo -m`.

    Raises `LabError` where it is neither; the error says what it is, if that is easily seen.
    """
    reads = xml.read if "<system" in told or told.lstrip("> \n").startswith("<") else matrix.read
    try:
        return reads(told, name, source) if source else reads(told, name)
    except LabError:
        for known, what, instead in OTHERS:
            if re.search(known, told, re.MULTILINE):
                raise LabError(f"This is {what}, and not the topology. {instead or USUAL}.") from None
        raise


@cache
def find(name: str) -> Topology:
    """Return a bundled machine by a part of its name or of its file's."""
    file = _file(name)
    return read(text(name), *BUNDLED[file])


def text(name: str) -> str:
    """Return the file of a bundled machine as it is."""
    return (Path(__file__).parent / "bundled" / _file(name)).read_text(encoding="utf-8")


def _file(name: str) -> str:
    found = [f for f, (called, _) in BUNDLED.items() if name.lower() in f.lower() or name.lower() in called.lower()]
    if len(found) != 1:
        raise LabError(f"{name!r} names {len(found)} of the bundled machines. There are {listed(list(BUNDLED))}.")
    return found[0]
