"""Say what the shape of a log's curve usually means: what is seen, what gives it, and where to look.

Each is a rule over the rows; none claims a cause. Figures: data sheets, NCCL's source and `workbook.tools.published`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labkit.floor.words import count, listed, nbytes, seconds
from workbook.tools.atlas.nccl_tests import Log
from workbook.tools.costs import Cluster

MIB = 2**20
NVLINK = {"volta": 150.0, "ampere": 300.0, "hopper": 450.0, "blackwell": 900.0}  # GB/s per direction, data sheets
SLOW = 1.1  # times as long
SOCKETS = 10.5  # GB/s: what TCP reaches at most, as NCCL uses it
SPIKE = 2.5  # times as long as a larger message: more than a change of protocol costs
NETS = "Run once with NCCL_DEBUG=INFO and read its lines NET/… and 'Using network'"
TOPO = "See nvidia-smi topo -m"


def sheet(op: str, n: int, c: Cluster) -> tuple[str, float] | None:
    """Look up what data sheets promise as bus bandwidth, in words and GB/s: NVLink in a node, else a node's NICs.

    In an all-to-all each GPU sends only what leaves its node over the network, so its bus bandwidth may be more.
    """
    if n <= c.gpus_per_node:
        return ("NVLink of a GPU, one direction", NVLINK[c.generation]) if c.generation in NVLINK else None
    g = n / -(-n // c.gpus_per_node)
    share = (n - 1) / (n - g) / g if op == "all_to_all" else 1.0
    return f"{c.rails} NICs of {8 * c.rail:g} Gb/s in a node", c.network * share


@dataclass(frozen=True)
class Against:
    """A log's time / that of `what`, which is a published table or the model."""

    ratio: float
    what: str
    published: bool


def findings(log: Log, against: Mapping[str, Against], cluster: Cluster | None) -> Iterator[str]:
    """Yield sentences on what is wrong or odd; `against` has the ratios for "small", "middle" and "large" messages."""
    yield from _wrong(log)
    many, peak = log.crosses, max(log.busbw)
    large = [b for (size, _), b in zip(log.rows, log.busbw, strict=True) if size >= 16 * MIB]
    if not large:
        yield "No message of 16 MiB or more was timed, so bandwidth cannot be judged. Run it to 8 GiB: -b 8 -e 8G -f 2."
    else:
        beside = against.get("large")
        yield from _network(log, peak, beside, cluster) if many else _inside(log, peak, beside)
        if many is None:
            yield "How many hosts there were is not in the text: paste the lines '# Rank' too, and more can be said."
        if large[-1] < 0.85 * max(large):
            yield (
                f"Bus bandwidth falls from {max(large):.4g} to {large[-1]:.4g} GB/s towards the largest messages. "
                "Healthy machines hold it. Heat, power limits or other traffic on the switches can do that: repeat "
                "it, and watch nvidia-smi dmon."
            )
    yield from _latency(log, against.get("small"), bool(many))
    yield from _bumps(log, {name: a.ratio for name, a in against.items()})


def _wrong(log: Log) -> Iterator[str]:
    if log.wrong:
        where = listed([nbytes(size) + f" ({many:,.0f} elements)" * (many > 0) for size, many in log.wrong[:4]])
        more = f" and {count(len(log.wrong) - 4, 'more size')}" if len(log.wrong) > 4 else ""
        yield (
            f"{'#wrong is not 0: ' * (log.wrong[0][1] > 0)}NCCL delivered wrong numbers at {where}{more}. "
            "No time counts before that is mended. "
            "It points to hardware or its set-up: a GPU's memory, a link, or peer-to-peer copies that an IOMMU or "
            "PCIe ACS sends astray. Run it again, then by pairs of GPUs; dcgmi diag -r 3; NCCL_P2P_DISABLE=1 tells "
            "the two apart."
        )
    elif not log.checked:
        yield "Results were not checked (#wrong is N/A). Run it once with -c 1: a fast wrong sum is of no use."


def _network(log: Log, peak: float, beside: Against | None, cluster: Cluster | None) -> Iterator[str]:
    limit = sheet(log.op, log.n, cluster) if cluster else None
    if "socket" in log.network.lower():
        yield (
            f"NCCL says that it used sockets (network {log.network}): TCP, and {peak:.3g} GB/s of bus bandwidth. If "
            "the hosts have InfiniBand, RoCE or EFA, its driver or plugin was not found: look for NET/IB or NET/OFI "
            "lines above."
        )
    elif peak <= SOCKETS and limit and peak < limit[1] / 4:
        yield (
            f"{peak:.3g} GB/s between hosts is in the range of TCP sockets (1 to 10 GB/s), far below what "
            f"InfiniBand, RoCE or EFA give. {NETS}: NET/Socket means TCP, NET/IB InfiniBand or RoCE, NET/OFI a "
            "plugin such as EFA's."
        )
    elif cluster and limit and log.op != "all_to_all" and log.n <= 64 and (nics := _nics(peak, cluster)):
        carried = f"{count(nics, 'NIC')} of {8 * cluster.rail:.0f} Gb/s can carry ({nics * cluster.rail:g} GB/s)"
        yield (
            f"{peak:.3g} GB/s is about what {carried}; such servers have {cluster.rails}. {NETS}: they list the NICs "
            "that NCCL found (NCCL_IB_HCA can hide some). GPUDirect RDMA that is off looks alike."
        )
    elif beside and beside.ratio >= SLOW:
        model = "The model knows no slow GPU, no other job and no crowded switch"
        if cluster:
            model += f", and supposes {cluster.rails} NICs of {8 * cluster.rail:g} Gb/s in each node"
        why = _share(1 / beside.ratio) if beside.published else f"{model}."
        yield f"{_reach(beside)} {why} {NETS}, and hold each NIC against the others with ib_write_bw."


def _nics(peak: float, cluster: Cluster) -> int:
    """Return how many NICs carry that, if it is one or two of more; else 0."""
    near = [k for k in (1, 2) if 2 * k < cluster.rails and 0.75 * k * cluster.rail <= peak <= 1.05 * k * cluster.rail]
    return near[0] if near else 0


def _share(share: float) -> str:
    """Say what large messages at this share of another machine's bandwidth usually mean, if the links are the same."""
    if 0.83 <= share <= 0.91:
        return (
            "If yours has the same NICs: about 7/8 is what is left when one NIC of eight drops out; "
            "settings can cost as much."
        )
    if 0.43 <= share <= 0.57:
        return (
            "If yours has the same NICs: about half is what is left when two GPUs share a NIC, as they do where one "
            "NIC of a pair is missing, or where NICs run at half their speed or width."
        )
    if share < 0.43:
        return (
            "If yours has the same NICs: that much is lost where most NICs go unused, or where data passes through "
            "the CPU's memory: GPUDirect RDMA off (nvidia-peermem not loaded), or PCIe ACS on."
        )
    return "If the NICs are the same: an oversubscribed network, or NCCL's choice (NCCL_ALGO, channels), can do that."


def _inside(log: Log, peak: float, beside: Against | None) -> Iterator[str]:
    nvlink = NVLINK.get(log.generation)
    if nvlink and peak <= 0.13 * nvlink and peak < 64:
        yield (
            f"{peak:.3g} GB/s inside one host is the speed of PCIe (16 lanes carry about 13, 26 or 52 GB/s in "
            f"generations 3, 4 and 5, and less through the CPU), not of NVLink ({nvlink:g} GB/s per GPU and "
            f"direction). {TOPO}: it should say NV… between GPUs and not PIX, NODE or SYS; NCCL_P2P_DISABLE must not "
            "be set; not every such card has NVLink."
        )
    elif beside and beside.ratio >= SLOW:
        nvls = log.generation in ("hopper", "blackwell") and log.op == "all_reduce"
        rings = nvls and beside.published and 1.15 <= beside.ratio <= 1.43
        why = (
            "That is what rings give where the NVLink switch does not add up: look whether NVLS is on "
            "(NCCL_NVLS_ENABLE, Fabric Manager)."
            if rings
            else f"{TOPO} and nvidia-smi nvlink -s: are all links of all GPUs up? NCCL_ALGO and the number of channels "
            "matter, too."
        )
        yield f"{_reach(beside)} {why}"


def _reach(beside: Against) -> str:
    return f"Large messages reach {100 / beside.ratio:.0f} % of the bandwidth of {beside.what}."


def _latency(log: Log, beside: Against | None, many: bool) -> Iterator[str]:
    if not beside or beside.ratio < 1.4:
        return
    least = min(us for _, us in log.rows)
    said = f"Small messages take {beside.ratio:.2g} times as long as {beside.what}: {seconds(least * 1e-6)} at least."
    if log.per_process > 1:
        yield (
            f"{said} One process launches for {log.per_process} GPUs here, one after the other, which costs 3 to 4 "
            "µs per GPU: run one process per GPU (mpirun, -g 1) before you look further."
        )
    elif many:
        yield (
            f"{said} Between hosts latency is the network's and its plugin's: AWS's EFA takes about 70 µs where "
            "InfiniBand takes 25. TCP, a slow protocol (NCCL_PROTO=Simple) or sleeping CPUs give such a shape, too."
        )
    else:
        yield (
            f"{said} Inside a host that is mostly the launch: a debug build, a busy or sleeping CPU, a process on "
            "the wrong socket (numactl), or NCCL_PROTO=Simple, which switches the short protocols LL and LL128 off."
        )


def _bumps(log: Log, ratios: Mapping[str, float | None]) -> Iterator[str]:
    rows = log.rows
    if len(rows) > 2 and rows[0][1] > 1.5 * rows[1][1]:
        yield (
            f"The first size ({nbytes(rows[0][0])}) takes {rows[0][1] / rows[1][1]:.2g} times as long as the next: "
            "usually the warm-up, not the network. Give it more warm-up iterations (-w 20)."
        )
    low = [min(us for _, us in rows[i + 1 :]) for i in range(len(rows) - 1)]
    bumps = [(size, us / after) for (size, us), after in zip(rows[1:-1], low[1:], strict=True) if us > 1.3 * after]
    if bumps:
        size, factor = max(bumps, key=lambda bump: bump[1])
        said = f"{nbytes(size)} takes {factor:.2g} times as long as a larger message."
        more = f" {count(len(bumps) - 1, 'other size')} stick out as well." if len(bumps) > 1 else ""
        if factor > SPIKE:
            yield (
                f"{said}{more} Something disturbed the run: another job, a process that slept, a connection made at "
                "its first use. Repeat it with more iterations (-w 20 -n 100)."
            )
        else:
            yield (
                f"{said}{more} NCCL changes its protocol or algorithm about there, early or late for this machine, or "
                "something disturbed the run. Repeat it; then compare NCCL_PROTO=LL128 and Simple there."
            )
    small, middle, large = (ratios.get(band) or 0.0 for band in ("small", "middle", "large"))
    if middle >= 1.4 and 0 < small < 1.25 and 0 < large < 1.25:
        yield (
            f"Only messages in the middle are slow ({middle:.2g} times the best's time). There pipelines fill and "
            "protocols change: look whether LL128 is switched off, or NCCL_BUFFSIZE or the number of channels is "
            "set low."
        )
