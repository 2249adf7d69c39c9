"""One all-reduce in four ways on hosts joined by a slow link: equal sums, and how much each way sends across.

    torchrun --nproc-per-node 4 scripts/hierarchical.py
    torchrun --nproc-per-node 4 scripts/hierarchical.py --hosts 1

On two hosts, on each of them, with the name of the first one:

    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29400 scripts/hierarchical.py

Rank 0 prints a line for each way: by how much its sum differs from dist.all_reduce's at most, relative to the largest
number, and the bytes that leave a host at most, in units of S, the bytes of a rank's buffer, as the kernel counts them
on the connections of this process (Linux, Gloo; else it says "not counted"). `--hosts` says how many hosts there are,
with as many ranks on each, in the order of the ranks: by default what torchrun says, and two where that is one.

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/hierarchical.py &
    done; wait; rm -f $meet
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from labkit.rank import tiny
from workbook.tools.rank import link
from workbook.tools.rank.ring import ring_in_order

Group = dist.ProcessGroup


def flat(x: torch.Tensor) -> torch.Tensor:
    """Add x up over the ranks as torch does it."""
    total = x.clone()
    dist.all_reduce(total)
    return total


def ring(x: torch.Tensor, order: list[int]) -> torch.Tensor:
    """Add x up over the ranks by a ring that visits them in this order."""
    total = x.clone()
    ring_in_order(total, order)
    return total


def by_leaders(x: torch.Tensor, inside: Group, rail: Group) -> torch.Tensor:
    """Add x up within each host, between the first ranks of the hosts, and hand the sum out."""
    total = x.clone()
    dist.reduce(total, group_dst=0, group=inside)
    if inside.rank() == 0:
        dist.all_reduce(total, group=rail)
    dist.broadcast(total, group_src=0, group=inside)
    return total


def by_rails(x: torch.Tensor, inside: Group, rail: Group) -> torch.Tensor:
    """Add x up so that each rank of a host takes its share across."""
    g = inside.size()
    whole = torch.cat([x, x.new_zeros(-len(x) % g)])
    total, share = torch.empty_like(whole), whole.new_empty(len(whole) // g)
    dist.reduce_scatter(share, list(whole.chunk(g)), group=inside)
    dist.all_reduce(share, group=rail)
    dist.all_gather(list(total.chunk(g)), share, group=inside)
    return total[: len(x)]


def gradient() -> torch.Tensor:
    """The gradient of the small language model on this rank's share of a batch."""
    torch.manual_seed(0)
    model = tiny.Transformer(layers=4, width=128)
    tiny.loss(model, tiny.batch(0, dist.get_rank(), dist.get_world_size())).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def main() -> None:
    """All ways in turn."""
    n = dist.get_world_size()
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=max(min(2, n), n // int(os.environ.get("LOCAL_WORLD_SIZE", n))))
    h = parser.parse_args().hosts
    if h < 1 or n % h:
        parser.error(f"{n} ranks cannot be dealt out evenly to {h} hosts. Choose a divisor.")
    hosts = torch.arange(n).view(h, -1)
    mesh = init_device_mesh("cpu", tuple(hosts.shape), mesh_dim_names=("hosts", "gpus"))
    groups = mesh["gpus"].get_group(), mesh["hosts"].get_group()
    ends = link.connections(hosts.tolist())

    x = gradient()
    right = flat(x)
    ways = {
        "dist.all_reduce": lambda: flat(x),
        "ring by hosts": lambda: ring(x, hosts.flatten().tolist()),
        "ring in turn": lambda: ring(x, hosts.T.flatten().tolist()),
        "leaders": lambda: by_leaders(x, *groups),
        "rails": lambda: by_rails(x, *groups),
    }
    for name, way in ways.items():
        before = link.sent(ends)
        off = (way() - right).abs().max() / right.abs().max()
        after = link.sent(ends)
        dist.all_reduce(off, dist.ReduceOp.MAX)
        gone = torch.zeros(n)
        gone[dist.get_rank()] = float("nan") if before is None else (after - before) / (4 * len(x))
        dist.all_reduce(gone)
        if dist.get_rank() == 0:
            most = gone[hosts].sum(1).max().item()
            said = "not counted" if most != most else f"{most:.2f} S out of a host"
            print(f"{name:16} off by {off.item():.0e}, {said}", flush=True)


if __name__ == "__main__":
    if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:  # all on one host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    dist.init_process_group(
        "gloo",
        init_method=os.environ.get("INIT_METHOD", "env://"),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    main()
    dist.barrier()  # nobody leaves while others still talk
    dist.destroy_process_group()
    # Gloo's threads would abort a process that Python takes apart (before Python 3.14): there is nothing to take apart.
    sys.stdout.flush()
    os._exit(0)
