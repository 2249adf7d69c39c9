"""One transformer with its vocabulary cut over the ranks by hand, and with every matrix cut by annotation.

    torchrun --nproc-per-node 4 scripts/vocabulary_parallel.py

Prints the losses of three training steps for each way: those of lesson 13c. First with tied weights, in one process
and with both ends cut; then untied, in one process and as DTensors in two layouts. Before that, the loss of a token
whose vocabulary is padded, and the gradients of both ends, are held against one process.

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/vocabulary_parallel.py &
    done; wait; rm -f $meet
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, embedding, pad

from labkit.rank import tiny

STEPS, LR, WIDTH = 3, 0.3, 48
WORDS = len(tiny.CHARACTERS)


# -- both ends by hand ------------------------------------------------------------------------------------------------


class AddUp(torch.autograd.Function):
    """The sum over the ranks forward, and the gradient as it is backward."""

    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def vocab_embedding(part: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The rows of the whole table for these ids."""
    place = ids - dist.get_rank() * len(part)
    here = (place >= 0) & (place < len(part))
    return AddUp.apply(part[torch.where(here, place, 0)] * here.unsqueeze(-1))


class VocabHead(torch.autograd.Function):
    """The mean loss of features under an output layer whose rows are cut; rows from WORDS on are padding."""

    @staticmethod
    def forward(ctx, x, part, target):
        first = dist.get_rank() * len(part)
        scores = x @ part.T
        scores[:, max(0, WORDS - first) :] = -torch.inf
        top = scores.max(dim=1).values
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        scores -= top[:, None]
        column = target - first
        here = (column >= 0) & (column < len(part))
        sums = scores.new_zeros(2, len(target))
        sums[1, here] = scores[here, column[here]]
        sums[0] = scores.exp_().sum(dim=1)
        dist.all_reduce(sums)
        ctx.save_for_backward(x, part, scores / sums[0][:, None], here, column)
        return (sums[0].log() - sums[1]).mean()

    @staticmethod
    def backward(ctx, d_loss):
        x, part, shares, here, column = ctx.saved_tensors
        shares[here, column[here]] -= 1
        shares *= d_loss / len(x)
        d_x = shares @ part
        dist.all_reduce(d_x)
        return d_x, shares.T @ x, None


def whole_table() -> torch.Tensor:
    """The tied table of all words, with padding up to an even number of rows on each rank."""
    n = dist.get_world_size()
    rows = 2 * -(-WORDS // (2 * n))
    torch.manual_seed(1)
    return pad(0.1 * torch.randn(WORDS, WIDTH, dtype=torch.float64), (0, 0, 0, n * rows - WORDS))


def mine(table: torch.Tensor) -> torch.Tensor:
    """This rank's rows."""
    return table.chunk(dist.get_world_size())[dist.get_rank()]


def hold_against_one_process() -> None:
    """The ends alone, on a few rows: how far loss and gradients are from those of one process."""
    inputs, targets = tiny.batch(0, size=64)
    table = whole_table()
    whole, part = table.clone().requires_grad_(), mine(table).clone().requires_grad_()
    alone = cross_entropy(embedding(inputs, whole).mean(1) @ whole[:WORDS].T, targets)
    cut = VocabHead.apply(vocab_embedding(part, inputs).mean(1), part, targets)
    alone.backward()
    cut.backward()
    off = torch.stack([(cut - alone).abs().detach(), (part.grad - mine(whole.grad)).abs().max()])
    dist.all_reduce(off, op=dist.ReduceOp.MAX)
    say(f"loss off by {off[0]:.0e}, gradient of the table off by {off[1]:.0e}")


# -- training ---------------------------------------------------------------------------------------------------------


def fresh() -> tiny.Transformer:
    """The model, with the same weights on every rank."""
    torch.manual_seed(0)
    return tiny.Transformer(layers=2, width=WIDTH, heads=12).double()


def body(rows: torch.Tensor, model: tiny.Transformer) -> torch.Tensor:
    """The transformer without its ends."""
    x = rows + model.position.weight
    for block in model.blocks:
        x = block(x)
    return model.norm(x[:, -1])


def train(name: str, parameters, loss_of) -> None:
    """Train on whole batches, the same on every rank; print the losses."""
    optimizer = torch.optim.SGD(parameters, lr=LR)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(*tiny.batch(step))
        with implicit_replication(), loss_parallel():
            loss.backward()
        optimizer.step()
        losses.append((loss.full_tensor() if isinstance(loss, DTensor) else loss).item())
    say(f"{name}: {' '.join(f'{loss:.6f}' for loss in losses)}")


def tied(name: str, table: torch.Tensor, lookup, head) -> None:
    """Train with one table at both ends."""
    model, table = fresh(), table.clone().requires_grad_()
    train(
        name,
        [table, *model.parameters()],
        lambda inputs, targets: head(body(lookup(table, inputs), model), table, targets),
    )


# -- by annotation ----------------------------------------------------------------------------------------------------


def columns_then_rows(name: str, key: str):
    """Megatron's cuts: a weight is [out, in], so `Shard(0)` cuts a layer's columns."""
    if name in ("embedding", "qkv", "widen", "output"):
        return Shard(0)
    return Shard(1) if name in ("project", "narrow") and key == "weight" else Replicate()


def every_matrix(name: str, key: str):
    """The same with the table of positions cut, too: sequence parallelism."""
    return Shard(0) if name == "position" else columns_then_rows(name, key)


def annotated(model: nn.Module, mesh, how) -> nn.Module:
    """The model with DTensors for its parameters."""
    for name, module in model.named_modules():
        for key, p in list(module.named_parameters(recurse=False)):
            cut = how(name.rpartition(".")[2], key)
            module.register_parameter(key, nn.Parameter(distribute_tensor(p.data, mesh, [cut])))
    return model


def by_annotation(name: str, mesh, how) -> None:
    """Train the untouched model with its parameters in this layout; the scores stay cut."""
    model = annotated(fresh(), mesh, how)

    def loss_of(inputs, targets):
        with implicit_replication(), sdpa_kernel(SDPBackend.MATH), loss_parallel():
            return cross_entropy(model(inputs), targets)

    train(name, model.parameters(), loss_of)


def say(words: str) -> None:
    """One line, from rank 0."""
    if dist.get_rank() == 0:
        print(words, flush=True)


def main() -> None:
    """Every way, one after the other."""
    hold_against_one_process()
    table = whole_table()
    tied("tied, one process", table, lambda t, ids: t[ids], lambda x, t, goal: cross_entropy(x @ t[:WORDS].T, goal))
    tied("tied, both ends cut", mine(table), vocab_embedding, VocabHead.apply)
    model = fresh()
    train("one process", model.parameters(), lambda *batch: tiny.loss(model, batch))
    if torch.__version__ < "2.12":
        return say("as DTensors: not with torch 2.11, which cannot flatten dimensions of which an inner one is cut")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    by_annotation("columns, then rows", mesh, columns_then_rows)
    by_annotation("every matrix cut", mesh, every_matrix)


if __name__ == "__main__":
    if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:  # all on one host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", os.environ.get("INIT_METHOD", "env://"), rank=rank, world_size=world_size)
    main()
    dist.destroy_process_group()
    # Torch's caches keep the mesh, and with it the group and its threads. One that wants Python's lock while Python
    # takes itself apart would abort the process (before Python 3.14): so there is nothing to take apart.
    sys.stdout.flush()
    os._exit(0)
