"""A small transformer whose MLPs are experts, one on each rank: tokens travel to them and back by all-to-all.

    torchrun --nproc-per-node 4 scripts/experts.py

Trains for four training steps in several ways and prints a line for each, from rank 0: the losses, how many tokens of
the last step each rank's experts got, the part of the tokens that was dropped, and the last step's gradients: how large
they are in one process, or how far off they are from that, the copies' and the experts'. "alone" holds all experts in
one process, and has the losses and gradients of "spread" and of "capped" with enough places: those of lesson 13d.

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/experts.py &
    done; wait; rm -f $meet
"""

import math
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: its functions keep the group that they find as their default
from torch import nn
from torch.nn import functional

from labkit.rank import tiny

STEPS, LR, WIDTH, HEADS = 4, 0.6, 32, 4


class Exchange(torch.autograd.Function):
    """An all-to-all of rows; backward, their gradients go the other way."""

    @staticmethod
    def forward(ctx, x, give, take):
        ctx.splits = give, take
        got = x.new_empty(sum(take), *x.shape[1:])
        dist.all_to_all_single(got, x.contiguous(), take, give)
        return got

    @staticmethod
    def backward(ctx, slope):
        give, take = ctx.splits
        back = slope.new_empty(sum(give), *slope.shape[1:])
        dist.all_to_all_single(back, slope.contiguous(), give, take)
        return back, None, None


class Mixture(nn.Module):
    """A router, and an expert for each rank; what becomes of the tokens is the subclass's matter."""

    def __init__(self, top=1):
        super().__init__()
        n = dist.get_world_size()
        self.top, self.router = top, nn.Linear(WIDTH, n)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(n)
        )
        self.dropped = 0

    def forward(self, x, h):
        x, h = x.flatten(0, -2), h.flatten(0, -2)
        gate, self.chosen = self.router(h).softmax(-1).topk(self.top)
        return self.mix(x, h, gate)


class Alone(Mixture):
    """All experts in one process."""

    def mix(self, x, h, gate):
        for e, compute in enumerate(self.experts):
            token, k = (self.chosen == e).nonzero(as_tuple=True)
            x = x.index_add(0, token, gate[token, k, None] * compute(h[token]))
        return x


class Spread(Mixture):
    """One expert on each rank; as many tokens travel as there are."""

    def __init__(self, **options):
        super().__init__(**options)
        self.experts = nn.ModuleList([self.experts[dist.get_rank()]])

    def mix(self, x, h, gate):
        order = self.chosen.flatten().argsort(stable=True)
        give = self.chosen.flatten().bincount(minlength=dist.get_world_size())
        take = torch.empty_like(give)
        dist.all_to_all_single(take, give)
        give, take, token = give.tolist(), take.tolist(), order // self.top
        back = Exchange.apply(self.experts[0](Exchange.apply(h[token], give, take)), take, give)
        return x.index_add(0, token, back * gate.flatten()[order, None])


class Capped(Spread):
    """One expert on each rank, with places for so many tokens of each rank; the rest goes on without it."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def mix(self, x, h, gate):
        n, chosen = dist.get_world_size(), self.chosen[:, 0]
        places = math.ceil(self.factor * len(h) / n)
        place = functional.one_hot(chosen, n).cumsum(0)[torch.arange(len(h)), chosen] - 1
        (token,) = (place < places).nonzero(as_tuple=True)
        self.dropped = 1 - len(token) / len(h)
        row, equal = (chosen * places + place)[token], [places] * n
        room = h.new_zeros(n * places, h.shape[1]).index_copy(0, row, h[token])
        back = Exchange.apply(self.experts[0](Exchange.apply(room, equal, equal)), equal, equal)
        return x.index_add(0, token, back[row] * gate[token])


class Layer(tiny.Block):
    """A transformer layer with a mixture in place of its MLP."""

    def __init__(self, mixture):
        super().__init__(WIDTH, HEADS)
        self.widen = self.narrow = None
        self.mixture = mixture

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).flatten(-2))
        return self.mixture(x, self.norm2(x)).view_as(x)


def train(name: str, kind: type[Mixture], right=None, **options) -> list[torch.Tensor]:
    """Train and print a line; the last gradients, to be held against `right`. All ways begin with the same weights."""
    torch.manual_seed(0)
    model = tiny.Transformer(width=WIDTH, heads=HEADS)
    model.blocks = nn.ModuleList(Layer(kind(**options)) for _ in model.blocks)
    model = model.double()
    rank, n = (0, 1) if kind is Alone else (dist.get_rank(), dist.get_world_size())
    optimizer, losses = torch.optim.SGD(model.parameters(), LR), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = tiny.loss(model, tiny.batch(step, rank, n))
        loss.backward()
        average(model, n)
        optimizer.step()
        losses.append(mean(loss.detach()))
    mixtures = [block.mixture for block in model.blocks]
    tokens = sum(m.chosen.flatten().bincount(minlength=dist.get_world_size()) for m in mixtures)
    if n > 1:
        dist.all_reduce(tokens)
    dropped = mean(torch.tensor(sum(float(m.dropped) for m in mixtures) / len(mixtures)))
    found = gradients(model)
    off = torch.stack([(g if right is None else g - right[i]).abs().max() for i, g in enumerate(found)])
    dist.all_reduce(off, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(
            f"{name}: {' '.join(f'{x:.5f}' for x in losses)} · tokens {tokens.tolist()}, {dropped:.1%} dropped · "
            f"gradients {'up to' if right is None else 'off by'} {off[0]:.0e}, {off[1]:.0e}"
        )
    return found


def gradients(model: nn.Module) -> list[torch.Tensor]:
    """Those of what every rank has a copy of, and those of this rank's experts, also where all experts are here."""
    experts = [block.mixture.experts for block in model.blocks]
    mine = [p.grad for some in experts for p in some[dist.get_rank() % len(some)].parameters()]
    copies = [p.grad for name, p in model.named_parameters() if ".experts." not in name]
    return [torch.cat([g.flatten() for g in some]) for some in (copies, mine)]


def average(model: nn.Module, n: int) -> None:
    """Leave in each p.grad that of the mean loss: an expert's is the sum over the ranks already."""
    experts = {p for block in model.blocks for p in block.mixture.experts.parameters()}
    for p in model.parameters():
        if n > 1 and p not in experts:
            dist.all_reduce(p.grad)
        p.grad /= n


def mean(x: torch.Tensor) -> float:
    """The mean over the ranks."""
    total = x.clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def main() -> None:
    """Every way, one after the other."""
    right = train("alone", Alone)
    train("spread", Spread, right)
    if dist.get_world_size() > 1:
        right_of_two = train("alone, two experts a token", Alone, top=2)
        train("spread, two experts a token", Spread, right_of_two, top=2)
    train("capped, places for all", Capped, right, factor=dist.get_world_size())
    train("capped, factor 1", Capped, right, factor=1)


if __name__ == "__main__":
    if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:  # all on one host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", os.environ.get("INIT_METHOD", "env://"), rank=rank, world_size=world_size)
    main()
    dist.destroy_process_group()
    # A thread of Gloo's that wants Python's lock while Python takes itself apart would abort the process (before
    # Python 3.14): so there is nothing to take apart.
    sys.stdout.flush()
    os._exit(0)
