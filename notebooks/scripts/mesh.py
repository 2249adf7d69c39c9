"""A transformer trained on a mesh of data x tensor or data x pipe, which goes on from its last complete checkpoint.

    torchrun --nproc-per-node 4 --max-restarts 3 scripts/mesh.py --folder /tmp/run
    torchrun --nproc-per-node 4 --max-restarts 3 scripts/mesh.py --folder /tmp/run --cut pipe --die 1:30

Rank 0 prints the loss of each training step: those of the capstone. Kill any process while it runs (or let `--die
RANK:STEP` do that, in the first attempt): torchrun ends the others, starts all of them again, and the run ends with
the loss of one that nobody disturbed. Without `--folder` nothing is saved. A folder is for one mesh.

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/mesh.py &
    done; wait; rm -f $meet
"""

import argparse
import os
import signal
import sys
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: its functions keep the group that they find as their default
from torch import nn
from torch.distributed.rendezvous import rendezvous
from torch.nn import functional

from labkit.rank import tiny  # the model and its text: torch and Python's own documentation

LAYERS, WIDTH, HEADS, ROWS, PIECES, LR, EVERY = 4, 32, 4, 96, 4, 0.01, 10
Rows = tuple[torch.Tensor, torch.Tensor]
Group = dist.ProcessGroup


# -- the mesh ---------------------------------------------------------------------------------------------------------


def make_groups(shape: dict[str, int]) -> dict[str, Group]:
    """This rank's group along each dimension; neighbours differ along the last one. Every rank makes all groups."""
    table, groups = torch.arange(dist.get_world_size()).view(*shape.values()), {}
    for i, name in enumerate(shape):
        for ranks in table.movedim(i, -1).reshape(-1, shape[name]).tolist():
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                groups[name] = group
    return groups


def step(read, compute, params: list[nn.Parameter], optimizer, data: Group) -> float:
    """A training step on this copy's share of the batch; the loss of the whole batch."""
    optimizer.zero_grad()
    loss = compute(*read(dist.get_rank(data), dist.get_world_size(data)))
    gradients = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(gradients, group=data)
    gradients /= dist.get_world_size(data)
    for p, mean in zip(params, gradients.split([p.numel() for p in params]), strict=True):
        p.grad.copy_(mean.view_as(p))
    optimizer.step()
    dist.all_reduce(loss, group=data)
    return loss.item() / dist.get_world_size(data)


# -- a model that a team holds: every layer in parts, or in stages ----------------------------------------------------


class Over(torch.autograd.Function):
    """Adds up over the team on the way forward (Megatron's g), or on the way back (its f)."""

    @staticmethod
    def forward(ctx, x, team, there):
        ctx.team, ctx.there = team, there
        return total(x, team) if there else x.view_as(x)

    @staticmethod
    def backward(ctx, dx):
        return dx if ctx.there else total(dx, ctx.team), None, None


def total(x: torch.Tensor, team: Group) -> torch.Tensor:
    """The sum over the team."""
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=team)
    return x


def part(t: torch.Tensor, team: Group, runs: int = 1) -> nn.Parameter:
    """This rank's share of each of so many runs of rows."""
    size, place = dist.get_world_size(team), dist.get_rank(team)
    return nn.Parameter(torch.cat([run.chunk(size)[place] for run in t.detach().chunk(runs)]))


def cut_layers(model: tiny.Transformer, team: Group) -> nn.Module:
    """Each layer's heads and wide middle, shared out over the team."""
    for block in model.blocks:
        block.heads //= dist.get_world_size(team)
        for linear, runs in ((block.qkv, 3), (block.widen, 1)):
            linear.weight, linear.bias = part(linear.weight, team, runs), part(linear.bias, team, runs)
            linear.register_forward_pre_hook(lambda _, x: Over.apply(*x, team, False))
        for linear in (block.project, block.narrow):
            linear.weight = nn.Parameter(part(linear.weight.T, team).detach().T.contiguous())
            linear.after, linear.bias = linear.bias, None
            linear.register_forward_hook(lambda its, _, y: Over.apply(y, team, True) + its.after)
    return model


def whole_pass(model: nn.Module, team: Group, text: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Forward and backward where every rank has all layers, or its part of each."""
    loss = functional.cross_entropy(model(text), wanted)
    loss.backward()
    return loss.detach()


class Stage(nn.Module):
    """Some of the layers, with the embeddings at the beginning and the output at the end of the pipeline."""

    def __init__(self, model: tiny.Transformer, team: Group):
        super().__init__()
        size, place = dist.get_world_size(team), dist.get_rank(team)
        self.blocks = model.blocks[len(model.blocks) * place // size : len(model.blocks) * (place + 1) // size]
        self.embedding, self.position = (model.embedding, model.position) if place == 0 else (None, None)
        self.output = nn.Sequential(model.norm, model.output) if place == size - 1 else None

    def forward(self, x):
        x = self.embedding(x) + self.position.weight if self.embedding else x
        for block in self.blocks:
            x = block(x)
        return self.output(x[:, -1]) if self.output else x


def pipe_pass(stage: Stage, team: Group, text: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """GPipe: all micro-batches forward, then all of them backward. The loss is on every rank of the team."""
    place, kept, loss = dist.get_rank(team), [], torch.zeros(())
    for x, target in zip(text.chunk(PIECES), wanted.chunk(PIECES), strict=True):
        if not stage.embedding:
            x = torch.empty(len(x), tiny.CONTEXT, WIDTH)
            dist.recv(x, group=team, group_src=place - 1)
            x.requires_grad_()
        out = stage(x)
        if stage.output:
            out = functional.cross_entropy(out, target) / PIECES
            loss += out.detach()
        else:
            dist.send(out.detach(), group=team, group_dst=place + 1)
        kept.append((x, out))
    for x, out in kept:
        slope = torch.ones_like(out)
        if not stage.output:
            dist.recv(slope, group=team, group_src=place + 1)
        out.backward(slope)
        if not stage.embedding:
            dist.send(x.grad, group=team, group_dst=place - 1)
    dist.broadcast(loss, group=team, group_src=dist.get_world_size(team) - 1)
    return loss


class Reader:
    """Reads batches, a share of each, and blanks out a tenth of the characters."""

    def __init__(self):
        self.step, self.noise = 0, torch.Generator()

    def read(self, place: int, size: int) -> Rows:
        if self.step == 0:
            self.noise.manual_seed(place)
        text, wanted = tiny.batch(self.step, place, size, size=ROWS)
        self.step += 1
        return text * (torch.rand(text.shape, generator=self.noise) > 0.1), wanted

    def state_dict(self) -> dict:
        return {"step": self.step, "noise": self.noise.get_state()}

    def load_state_dict(self, state: dict) -> None:
        self.step = state["step"]
        self.noise.set_state(state["noise"])


# -- checkpoints ------------------------------------------------------------------------------------------------------


def put(state: dict, path: str) -> None:
    """Write a file, whole or not at all."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


def save(folder: str, model: nn.Module, optimizer, reader: Reader, data: Group, team: Group) -> None:
    """One copy's parts, every copy's reader, and when all of them are there, the mark."""
    here = f"{folder}/step-{reader.step}"
    if dist.get_rank(data) == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        put(state, f"{here}/part-{dist.get_rank(team)}.pt")
    if dist.get_rank(team) == 0:
        put(reader.state_dict(), f"{here}/reader-{dist.get_rank(data)}.pt")
    dist.barrier()
    if dist.get_rank() == 0:
        put({}, f"{here}/complete")


def load(folder: str, model: nn.Module, optimizer, reader: Reader, data: Group, team: Group) -> None:
    """The newest complete checkpoint, if there is one; rank 0 chooses it for all."""
    os.makedirs(folder, exist_ok=True)
    names = [name for name in os.listdir(folder) if os.path.exists(f"{folder}/{name}/complete")]
    newest = torch.tensor(max((int(name.removeprefix("step-")) for name in names), default=0))
    dist.broadcast(newest, src=0)
    if newest:
        here = f"{folder}/step-{int(newest)}"
        state = torch.load(f"{here}/part-{dist.get_rank(team)}.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        reader.load_state_dict(torch.load(f"{here}/reader-{dist.get_rank(data)}.pt", weights_only=True))


# -- the training -----------------------------------------------------------------------------------------------------


def train(cut: str, data_size: int, folder: str, steps: int, dies: tuple[int, int] | None) -> None:
    """Train, from the last complete checkpoint on; rank 0 prints each training step's loss."""
    groups = make_groups({"data": data_size, cut: dist.get_world_size() // data_size})
    data, team = groups.values()
    torch.manual_seed(0)
    model = tiny.Transformer(LAYERS, WIDTH, HEADS)
    model = cut_layers(model, team) if cut == "tensor" else Stage(model, team)
    optimizer, reader = torch.optim.Adam(model.parameters(), lr=LR), Reader()
    if folder:
        load(folder, model, optimizer, reader, data, team)
    if dist.get_rank() == 0:
        print(f"data {data_size} x {cut} {dist.get_world_size(team)}, from step {reader.step} on", flush=True)
    run = partial(whole_pass if cut == "tensor" else pipe_pass, model, team)
    while reader.step < steps:
        if (dist.get_rank(), reader.step) == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = step(reader.read, run, list(model.parameters()), optimizer, data)
        if dist.get_rank() == 0:
            print(f"step {reader.step}: {loss!r}", flush=True)
        if folder and reader.step % EVERY == 0:
            save(folder, model, optimizer, reader, data, team)
    if cut == "tensor":
        with torch.no_grad():
            other = tiny.loss(model, tiny.validation()).item()
        if dist.get_rank() == 0:
            print(f"on other text: {other:.3f}", flush=True)


def asked(world_size: int) -> argparse.Namespace:
    """What the command line says; it ends the program with a sentence where no such mesh can be made."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cut", choices=("tensor", "pipe"), default="tensor", help="how a copy of the model is cut")
    parser.add_argument("--data", type=int, default=2, help="how many copies there are")
    parser.add_argument("--folder", default="", help="where checkpoints are")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--die", default="", metavar="RANK:STEP", help="kill this rank after this training step")
    wish = parser.parse_args()
    team = world_size // wish.data if wish.data > 0 else 0
    if team * wish.data != world_size or LAYERS % team or HEADS % team or ROWS % (wish.data * PIECES):
        parser.error(
            f"{world_size} ranks are no mesh of {wish.data} copies in 1, 2 or 4 parts. "
            "Start 4 ranks, or name another number of copies with --data."
        )
    return wish


def main() -> None:
    """One run."""
    wish = asked(dist.get_world_size())
    first_attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    dies = tuple(int(number) for number in wish.die.split(":")) if wish.die and first_attempt else None
    train(wish.cut, wish.data, wish.folder, wish.steps, dies)


if __name__ == "__main__":
    if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:  # all on one host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store, *_ = next(rendezvous(os.environ.get("INIT_METHOD", "env://"), rank, world_size))
    # torchrun keeps its store when it starts the ranks again, and the addresses of the old ones are still in it.
    # Without a place of its own for each attempt the new ranks wait for the old ones (seen with torch 2.13 and Gloo).
    store = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    main()
    dist.barrier()  # nobody leaves while others still talk
    dist.destroy_process_group()
    # Gloo's threads would abort a process that Python takes apart (before Python 3.14): there is nothing to take apart.
    sys.stdout.flush()
    os._exit(0)
