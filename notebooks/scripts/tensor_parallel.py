"""One transformer whose layers are cut across the ranks: by columns and rows, by sequence, and PyTorch's own plans.

    torchrun --nproc-per-node 4 scripts/tensor_parallel.py

Prints, for each way, the losses of three training steps, the largest difference of a gradient from that of one
process, and the collectives that a forward pass, a backward pass and the optimizer make: those of lessons 13 and 13b.
All ranks take the same rows. The number of ranks divides 12, the number of heads.

    MISTAKES=60 torchrun --nproc-per-node 4 scripts/tensor_parallel.py

trains 60 steps instead, with the right gradients and with wrong ones, and prints the mean of the last ten losses.

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/tensor_parallel.py &
    done; wait; rm -f $meet
"""

import os
import sys
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from labkit.rank import tiny

STEPS, LR, WIDTH = 3, 0.3, 48
NAMES = {  # what CommDebugMode calls what torch.distributed is asked for, and DTensor asks for
    "allreduce_": "all_reduce",
    "allgather_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
}


def fresh() -> tiny.Transformer:
    """The model, with the same weights on every rank; in float64, so that what is equal is equal to twelve digits."""
    torch.manual_seed(0)
    return tiny.Transformer(layers=2, width=WIDTH, heads=12).double()


# -- where the ranks meet ---------------------------------------------------------------------------------------------


def total(t: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' t."""
    t = t.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(t)
    return t


def whole(t: torch.Tensor) -> torch.Tensor:
    """All ranks' positions."""
    t = t.contiguous()
    parts = [torch.empty_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, t)
    return torch.cat(parts, dim=1)


def mine(t: torch.Tensor) -> torch.Tensor:
    """This rank's positions."""
    return t.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]


def total_of_mine(t: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' t, for this rank's positions."""
    parts = [part.contiguous() for part in t.chunk(dist.get_world_size(), dim=1)]
    out = torch.empty_like(parts[0])
    dist.reduce_scatter(out, parts)
    return out


def pair(there: Callable, back: Callable) -> Callable:
    """A function with this forward pass and this backward pass."""

    class Pair(Function):
        @staticmethod
        def forward(ctx, t):
            return there(t)

        @staticmethod
        def backward(ctx, dy):
            return back(dy)

    return Pair.apply


copy_in = pair(lambda t: t.view_as(t), total)  # Megatron's f
sum_out = pair(total, lambda dy: dy)  # and g
gather_sequence = pair(whole, total_of_mine)
scatter_sequence = pair(total_of_mine, whole)
whole_sequence = pair(whole, mine)  # where all ranks go on alike


# -- a model in parts -------------------------------------------------------------------------------------------------


class Columns(nn.Module):
    """This rank's outputs of a linear layer."""

    def __init__(self, weight, bias, meet):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.detach().clone()), nn.Parameter(bias.detach().clone())
        self.meet = meet

    def forward(self, x):
        return nn.functional.linear(self.meet(x), self.weight, self.bias)


class Rows(Columns):
    """The sum over the ranks of what each one's inputs give, and the bias once."""

    def forward(self, x):
        return self.meet(nn.functional.linear(x, self.weight)) + self.bias


def in_parts(model: tiny.Transformer, before: Callable, after: Callable) -> tiny.Transformer:
    """Leave this rank's part of each transformer layer in the model: whole heads, and some of the hidden numbers."""
    n, rank = dist.get_world_size(), dist.get_rank()
    for block in model.blocks:
        heads = torch.arange(WIDTH).view(block.heads, -1).tensor_split(n)[rank]
        block.heads, numbers = len(heads), heads.flatten()
        rows = torch.cat([numbers + kind * WIDTH for kind in range(3)])  # queries, keys, values
        block.qkv = Columns(block.qkv.weight[rows], block.qkv.bias[rows], before)
        block.project = Rows(block.project.weight[:, numbers], block.project.bias, after)
        hidden = torch.arange(4 * WIDTH).tensor_split(n)[rank]
        block.widen = Columns(block.widen.weight[hidden], block.widen.bias[hidden], before)
        block.narrow = Rows(block.narrow.weight[:, hidden], block.narrow.bias, after)
    return model


def by_sequence(model: tiny.Transformer) -> tiny.Transformer:
    """The model's forward pass, with this rank's positions only between the embeddings and the last norm."""

    def forward(text):
        x = model.embedding(text) + model.position.weight
        last = x.shape[1] - 1
        x = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % dist.get_world_size()))  # no position looks at later ones
        x = mine(x)
        for block in model.blocks:
            x = block(x)
        return model.output(model.norm(whole_sequence(x)[:, last]))

    model.forward = forward
    return model


def planned(model: tiny.Transformer, plan: dict) -> tiny.Transformer:
    """The layers cut by PyTorch, the rows of qkv in the order of the ranks that get them."""
    n = dist.get_world_size()
    mesh = init_device_mesh("cpu", (n,))
    order = torch.arange(3 * WIDTH).view(3, n, -1).transpose(0, 1).flatten()
    for block in model.blocks:
        block.heads //= n
        block.qkv.weight.data, block.qkv.bias.data = block.qkv.weight.data[order], block.qkv.bias.data[order]
        parallelize_module(block, mesh, plan)
    return model


def add_up(*among: str) -> Callable:
    """A function that adds up the gradients of which each rank has a part, in one all-reduce."""

    def finish(model):
        parts = [p.grad for name, p in model.named_parameters() if any(kind in name for kind in among)]
        totals = total(torch.cat([part.flatten() for part in parts]))
        nn.utils.vector_to_parameters(totals, parts)

    return finish


# -- train, compare, count --------------------------------------------------------------------------------------------


def train(model: nn.Module, finish: Callable = lambda model: None, steps: int = STEPS) -> list[float]:
    """Training steps on whole batches; the last gradients stay."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = tiny.loss(model, tiny.batch(step))
        loss.backward()
        finish(model)
        optimizer.step()
        losses.append(loss.item())
    return losses


def gradients(model: nn.Module) -> list[torch.Tensor]:
    """All gradients: of a DTensor this rank's part, after what is still a sum has been added up."""
    found = []
    for p in model.parameters():
        grad = p.grad
        if isinstance(p, DTensor):
            grad = grad.redistribute(p.device_mesh, p.placements).to_local()
        found.append(grad)
    return found


def off(model: nn.Module, alone: nn.Module) -> float:
    """The largest difference of a gradient from the part of it that one process has."""
    want = fresh()
    for p, one in zip(want.parameters(), alone.parameters(), strict=True):
        p.data = one.grad
    if model is not alone:
        want = in_parts(want, copy_in, sum_out)  # what cuts weights cuts gradients
    pairs = zip(gradients(model), want.parameters(), strict=True)
    return max((grad - one).abs().max().item() for grad, one in pairs)


def counted(call: Callable) -> tuple:
    """What a call returns, and its collectives."""
    with warnings.catch_warnings(action="ignore"), CommDebugMode() as mode:
        result = call()
    found: dict[str, int] = {}
    for op, times in mode.get_comm_counts().items():
        name = str(op).split(".")[-1]
        found[NAMES.get(name, name)] = found.get(NAMES.get(name, name), 0) + times
    return result, dict(sorted(found.items()))


def report(name: str, model: nn.Module, alone: nn.Module | None = None, finish: Callable = lambda model: None) -> None:
    """Train; one line from rank 0."""
    losses = train(model, finish)
    error = off(model, alone or model)
    loss, forward = counted(lambda: tiny.loss(model, tiny.batch(STEPS)))
    _, backward = counted(loss.backward)
    _, then = counted(lambda: (finish(model), torch.optim.SGD(model.parameters()).step()))
    if dist.get_rank() == 0:
        said = " ".join(f"{loss:.6f}" for loss in losses)
        print(f"{name}: {said} · off by {error:.0e} · {forward} · {backward} · {then}", flush=True)


def pieces(dy: torch.Tensor) -> torch.Tensor:
    """An all-gather where a sum is meant: this rank's piece of its gradient, and the other ranks' pieces of theirs."""
    piece = dy.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()].contiguous()
    found = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
    dist.all_gather(found, piece)
    return torch.cat(found, dim=-1)


def with_mistakes(steps: int) -> None:
    """How far the model comes with wrong gradients."""
    ways = {
        "right": (copy_in, sum_out),
        "all-gather before the columns, backward": (pair(lambda t: t.view_as(t), pieces), sum_out),
        "nothing before the columns, backward": (pair(lambda t: t.view_as(t), lambda dy: dy), sum_out),
        "all-reduce after the rows, both ways": (copy_in, pair(total, total)),
    }
    for name, (before, after) in ways.items():
        last = train(in_parts(fresh(), before, after), steps=steps)[-10:]
        if dist.get_rank() == 0:
            print(f"{name}: {sum(last) / len(last):.6f}", flush=True)


def main() -> None:
    """Every way, one after the other."""
    alone = fresh()
    report("one process", alone)
    alone = fresh()
    train(alone)
    report("in parts", in_parts(fresh(), copy_in, sum_out), alone)
    sums = add_up("embedding", "position", ".norm", "project.bias", "narrow.bias")
    report("by sequence", by_sequence(in_parts(fresh(), gather_sequence, scatter_sequence)), alone, sums)
    cols, rows = ColwiseParallel(), RowwiseParallel()
    plan = {"qkv": cols, "project": rows, "widen": cols, "narrow": rows}
    report("parallelize_module", planned(fresh(), plan), alone)
    norm, part = SequenceParallel(), Shard(1)
    cols, rows = ColwiseParallel(input_layouts=part), RowwiseParallel(output_layouts=part)
    plan = {"norm1": norm, "qkv": cols, "project": rows, "norm2": norm, "widen": cols, "narrow": rows}
    model = by_sequence(planned(fresh(), plan))
    report("parallelize_module, by sequence", model, alone, add_up("embedding", "position"))


if __name__ == "__main__":
    if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:  # all on one host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", os.environ.get("INIT_METHOD", "env://"), rank=rank, world_size=world_size)
    with_mistakes(int(os.environ["MISTAKES"])) if "MISTAKES" in os.environ else main()
    dist.destroy_process_group()
    # Torch's caches keep the mesh, and with it the group and its threads. One that wants Python's lock while Python
    # takes itself apart would abort the process (before Python 3.14): so there is nothing to take apart.
    sys.stdout.flush()
    os._exit(0)
