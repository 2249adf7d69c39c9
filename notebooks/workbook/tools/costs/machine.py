"""Describe a cluster by a dozen numbers, and name those that one can rent. Neither torch nor a cluster that runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from labkit.floor.errors import LabError

GENERATIONS = ("volta", "ampere", "hopper", "blackwell")
FABRICS = ("infiniband", "roce", "efa1", "efa", "tcpx", "tcpxo", "slingshot")  # efa1: AWS up to p4; efa: from p5 on


@dataclass(frozen=True)
class Cluster:
    """GPUs in nodes: NVLink inside a node, a network between nodes. Bandwidths in GB/s (10⁹ bytes), one direction.

    A node is everything that NVLink joins: 8 GPUs of a server, or the 72 of a rack.

    >>> H100.but(oversubscription=2).network
    200.0
    """

    name: str
    gpus_per_node: int
    nvlink: float  # of one GPU, as NCCL counts it
    rails: int  # NICs of a node
    rail: float  # of one NIC
    nvlink_latency: float = 3.4  # µs per step, NCCL's ring over NVLink with the Simple protocol
    network_latency: float = 14.0  # µs per step, NCCL's ring over a network with the Simple protocol
    nic_latency: float = 0.0  # µs more, as the network's plugin for NCCL declares it
    oversubscription: float = 1.0  # 2: the switches above the nodes carry half of what the NICs could send
    generation: str = "hopper"
    cpu: str = "amd"  # NCCL's tables ask for it between nodes
    nvls: bool = False  # the NVLink switch adds up
    channels: int = 16
    fabric: str = "infiniband"  # what the network is, as one rents it: one of FABRICS
    gpus_per_process: int = 1  # 8: one process launches for eight GPUs, one after the other (nccl-tests -g 8)
    call_overhead: float = 0.0  # µs that each call costs where calls are timed one by one, as in torch: 20 or so
    algorithm: str = ""  # the one that NCCL_ALGO allows, where it is set
    nccl: str = "2.28.9"  # the version by whose model `choose` decides; torch 2.11 brings this one

    def __post_init__(self) -> None:
        counts = ("gpus_per_node", "nvlink", "rails", "rail", "channels", "gpus_per_process")
        latencies = (self.nvlink_latency, self.network_latency, self.nic_latency, self.call_overhead)
        bad = [name for name in counts if not getattr(self, name) > 0]
        if bad or self.oversubscription < 1 or min(latencies) < 0:
            named = ", ".join(bad) or "oversubscription (1 or more) or a latency (0 or more)"
            raise LabError(f"No cluster has such {named}. Give numbers above zero.")
        if self.generation not in GENERATIONS:
            raise LabError(f"generation={self.generation!r} is unknown. Choose one of: {', '.join(GENERATIONS)}.")
        if not re.fullmatch(r"\d+\.\d+\.\d+", self.nccl):
            raise LabError(f"nccl={self.nccl!r} is not a version. Give three numbers, such as 2.28.9.")
        if self.fabric not in FABRICS:
            raise LabError(f"fabric={self.fabric!r} is unknown. Choose one of: {', '.join(FABRICS)}.")

    @property
    def network(self) -> float:
        """The GB/s that all NICs of a node send together, after oversubscription."""
        return self.rails * self.rail / self.oversubscription

    def but(self, **changes: Any) -> Cluster:
        """Return the same cluster with some numbers changed."""
        try:
            return replace(self, **changes)
        except TypeError:
            known = ", ".join(f for f in self.__dataclass_fields__)
            raise LabError(f"A cluster has no such number. Change one of: {known}.") from None

    def __repr__(self) -> str:
        over = f", {self.oversubscription:g}:1 oversubscribed" if self.oversubscription > 1 else ""
        return (
            f"{self.name}: {self.gpus_per_node} GPUs per node, NVLink {self.nvlink:g} GB/s per GPU, "
            f"{self.rails} × {self.rail:g} GB/s of network per node{over}"
        )


# NVLink as NCCL 2.28 counts it (graph/topo.h): GB/s a link × links. The network of a DGX is InfiniBand.
A100 = Cluster("A100 servers, 8 × 200 Gb/s", 8, 240.0, 8, 25.0, generation="ampere", channels=24)  # 20 × 12
H100 = Cluster("H100 servers, 8 × 400 Gb/s", 8, 370.8, 8, 50.0, nvls=True)  # 20.6 × 18
H200 = H100.but(name="H200 servers, 8 × 400 Gb/s")  # the links of an H100, with more memory behind them
B200 = Cluster(  # 40.1 × 18
    "B200 servers, 8 × 400 Gb/s", 8, 721.8, 8, 50.0, generation="blackwell", nvls=True, channels=32
)
GB200 = Cluster(  # 40.1 × 18; 400 Gb/s of network a GPU
    "GB200 racks (NVL72)", 72, 721.8, 72, 50.0, generation="blackwell", cpu="arm", nvls=True, channels=32
)
EFA = 75.0  # µs that aws-ofi-nccl declares
RENTED = {  # and as some clouds have them
    "A100": A100,
    "H100": H100,
    "B200": B200,
    "GB200": GB200,
    "H200": H200,
    "A100 EFA": A100.but(
        name="A100 servers (AWS p4de)", rails=4, rail=12.5, fabric="efa1", nic_latency=EFA, cpu="intel"
    ),
    "H100 EFA": H100.but(name="H100 servers (AWS p5)", rails=32, rail=12.5, fabric="efa", nic_latency=EFA),
    "H100 TCPXO": H100.but(name="H100 servers (GCP a3-mega)", rails=8, rail=25.0, fabric="tcpxo", cpu="intel"),
    "H100 TCPX": H100.but(name="H100 servers (GCP a3-high)", rails=4, rail=25.0, fabric="tcpx", cpu="intel"),
    "A100 Slingshot": A100.but(name="A100 nodes, Slingshot 11", gpus_per_node=4, rails=4, fabric="slingshot"),
    "GH200": H100.but(
        name="GH200 nodes, Slingshot 11", gpus_per_node=4, rails=4, rail=25.0, fabric="slingshot", cpu="arm", nvls=False
    ),
    "B200 RoCE": B200.but(name="B200 servers (GCP a4)", fabric="roce", cpu="intel"),
}  # fmt: skip
