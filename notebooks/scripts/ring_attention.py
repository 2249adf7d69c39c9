"""One text, its positions cut over the ranks: attention by all-gather, round a ring, and with heads for positions.

    torchrun --nproc-per-node 4 scripts/ring_attention.py

Prints a line for each way, from rank 0: the loss of the small transformer on a text of about 1,000 characters, and how
far the gradient of all its weights is from that of one process. These are the losses of lesson 13e, in float64. The
number of ranks has to divide 12, the number of heads.

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/ring_attention.py &
    done; wait; rm -f $meet
"""

import os
import sys
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: its functions keep the group that they find as their default
from torch import nn
from torch.nn import functional

from labkit.rank import tiny

WIDTH, HEADS = 48, 12


class Layer(tiny.Block):
    """A transformer layer for [positions, width], whose attention is given to it."""

    attend = staticmethod(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(0, 1) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.project(self.attend(q, k, v).transpose(0, 1).flatten(-2))
        return x + self.narrow(functional.gelu(self.widen(self.norm2(x))))


class Reader(tiny.Transformer):
    """A guess after each position of one long text."""

    def __init__(self, text, attend=None):
        super().__init__(width=WIDTH, heads=HEADS)
        self.text = text
        self.position = nn.Embedding(len(text), WIDTH)
        self.blocks = nn.ModuleList(Layer(WIDTH, HEADS) for _ in range(2))
        for block in self.blocks:
            block.attend = attend or block.attend

    def forward(self, positions):
        x = self.embedding(self.text[positions]) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))


# -- gathered ---------------------------------------------------------------------------------------------------------


class Gather(torch.autograd.Function):
    """All ranks' positions of [heads, positions, size]; backward, a rank gets the sum of all gradients of its own."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx, slope):
        total = slope.contiguous()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]


def gathered(where):
    """Attention to the gathered keys and values."""

    def attend(q, k, v):
        seen = torch.cat(where) <= where[dist.get_rank()][:, None]
        return functional.scaled_dot_product_attention(q, Gather.apply(k), Gather.apply(v), attn_mask=seen)

    return attend


# -- round a ring -----------------------------------------------------------------------------------------------------


def pass_on(parcel):
    """Begin to send to the next rank and to receive from the one before; the room, and what to wait for."""
    rank, n, room = dist.get_rank(), dist.get_world_size(), torch.empty_like(parcel)
    exchange = [dist.P2POp(dist.isend, parcel, (rank + 1) % n), dist.P2POp(dist.irecv, room, (rank - 1) % n)]
    return room, dist.batch_isend_irecv(exchange)


def scores_of(q, k, here, there):
    """What queries at these positions make of keys at those."""
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(there > here[:, None], -torch.inf)


class Ring(torch.autograd.Function):
    """Ring attention; backward, the blocks' gradients travel with them and come home after a whole round."""

    @staticmethod
    def forward(ctx, q, kv, where):
        rank, n, block = dist.get_rank(), dist.get_world_size(), kv
        top, total, out = torch.full_like(q[..., 0], -torch.inf), torch.zeros_like(q[..., 0]), torch.zeros_like(q)
        for step in range(n):
            room, works = pass_on(block) if step < n - 1 else (block, [])
            scores = scores_of(q, block[0], where[rank], where[(rank - step) % n])
            new = torch.maximum(top, scores.amax(-1))  # a rank's own block comes first, so it is never -inf
            old, powers = (top - new).exp(), (scores - new[..., None]).exp()
            top, total, out = new, total * old + powers.sum(-1), out * old[..., None] + powers @ block[1]
            for work in works:
                work.wait()
            block = room
        out /= total[..., None]
        ctx.where = where
        ctx.save_for_backward(q, kv, out, top + total.log())
        return out

    @staticmethod
    def backward(ctx, slope):
        q, block, out, logs = ctx.saved_tensors
        rank, n = dist.get_rank(), dist.get_world_size()
        dq, carried = torch.zeros_like(q), torch.zeros_like(block)
        for step in range(n):
            k, v = block
            p = (scores_of(q, k, ctx.where[rank], ctx.where[(rank - step) % n]) - logs[..., None]).exp()
            ds = p * (slope @ v.mT - (slope * out).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
            dq, carried = dq + ds @ k, carried + torch.stack([ds.mT @ q, p.mT @ slope])
            if n > 1:
                room, works = pass_on(torch.stack([carried, block]) if step < n - 1 else carried[None])
                for work in works:
                    work.wait()
                carried, block = room[0], room[-1]
        return dq, carried, None


def ring(where):
    """Attention round the ring, for any order of the positions."""
    return lambda q, k, v: Ring.apply(q, torch.stack([k, v]), where)


# -- heads for positions ----------------------------------------------------------------------------------------------


class Swap(torch.autograd.Function):
    """An all-to-all of equal parts along the first dimension, which is its own backward pass."""

    @staticmethod
    def forward(ctx, x):
        got = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(got, x.contiguous())
        return got

    @staticmethod
    def backward(ctx, slope):
        return Swap.apply(slope)


def ulysses(q, k, v):
    """Attention of some heads for all positions, between two exchanges."""
    n, (heads, length, size) = dist.get_world_size(), q.shape
    got = Swap.apply(torch.stack([q, k, v]).view(3, n, -1, length, size).transpose(0, 1))
    q, k, v = got.permute(1, 2, 0, 3, 4).reshape(3, -1, n * length, size)
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return Swap.apply(out.view(-1, n, length, size).transpose(0, 1)).view(heads, length, size)


# -- compared ---------------------------------------------------------------------------------------------------------


def gradient(text, positions, attend=None):
    """The gradient of the mean loss over these positions, and the loss."""
    torch.manual_seed(0)
    model = Reader(text[:-1], attend).double()
    loss = functional.cross_entropy(model(positions), text[positions + 1])
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]), loss.detach()


def main() -> None:
    """One process, then every way."""
    rank, n = dist.get_rank(), dist.get_world_size()
    length = 1024 - 1024 % (4 * n)
    words = " ".join(topics[name] for name in sorted(topics)).lower().split()
    text = torch.tensor([max(0, tiny.CHARACTERS.find(c)) for c in " ".join(words)[: length + 1]])
    right, loss = gradient(text, torch.arange(length))
    if rank == 0:
        print(f"one process: loss {loss.item():.5f}, gradient up to {right.abs().max():.2g}")

    in_order = list(torch.arange(length).chunk(n))
    pieces = torch.arange(length).chunk(2 * n)
    zigzag = [torch.cat([pieces[r], pieces[-1 - r]]) for r in range(n)]
    ways = {
        "gathered": (gathered(in_order), in_order),
        "ring": (ring(in_order), in_order),
        "ring, zigzag": (ring(zigzag), zigzag),
        "heads for positions": (ulysses, in_order),
    }
    for name, (attend, where) in ways.items():
        found, loss = gradient(text, where[rank], attend)
        for t in (found, loss):
            dist.all_reduce(t)
            t /= n
        if rank == 0:
            print(f"{name}: loss {loss.item():.5f}, gradient off by {(found - right).abs().max():.0e}")


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
