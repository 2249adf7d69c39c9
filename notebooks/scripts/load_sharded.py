"""One saved model, loaded for data, tensor and pipeline parallelism, then saved by four ranks and loaded by three.

    torchrun --nproc-per-node 4 scripts/load_sharded.py

Prints, for each way to load it, the loss of the model and the bytes of weights that each rank holds: the losses of
lessons 13f and 13g. All ways have the loss of the process that saved it. The files lie in a temporary folder, which
all ranks have to see, and which is removed.

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/load_sharded.py &
    done; wait; rm -f $meet
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import functional as F

from labkit.rank import tiny

LAYERS, WIDTH, HEADS = 6, 240, 12
Tensors = dict[str, torch.Tensor]


class Primed(tiny.Transformer):
    """The transformer, with a buffer: how frequent each character is adds to its score."""

    def __init__(self, layers: int = LAYERS):
        super().__init__(layers, WIDTH, HEADS)
        self.register_buffer("prior", torch.zeros(36))

    def forward(self, text):
        return super().forward(text) + self.prior


def part_of(count: int, n: int, place: int) -> tuple[int, int]:
    """Where the part at this place among n begins and ends; parts differ by one at most."""
    short, longer = divmod(count, n)
    start = place * short + min(place, longer)
    return start, start + short + (place < longer)


def train_and_save(path: Path) -> None:
    """Rank 0 trains for eight steps, as in the lesson, and saves the model."""
    torch.manual_seed(0)
    model = Primed()
    model.prior.copy_((torch.bincount(tiny.batch(0)[1], minlength=36) + 1).log())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for step in range(8):
        optimizer.zero_grad()
        tiny.loss(model, tiny.batch(step, size=48)).backward()
        optimizer.step()
    torch.save(model.state_dict(), path)
    say("saved", loss_of(model(tiny.validation(size=60)[0])), model.state_dict(), alone=True)


def loss_of(scores: torch.Tensor) -> float:
    """The loss of these scores for the rows that the lesson looks at."""
    return F.cross_entropy(scores, tiny.validation(size=60)[1]).item()


def say(way: str, loss: float, held: Tensors, alone: bool = False) -> None:
    """One line, from rank 0: the loss, and the bytes that each rank holds."""
    sizes = [sum(t.nbytes for t in held.values())]
    if not alone:
        everyones = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, sizes[0])
        sizes = everyones
    if dist.get_rank() == 0:
        print(f"{way}: {loss:.5f} · {' '.join(f'{size:,}' for size in sizes)}", flush=True)


# -- rank 0 reads, everybody receives ---------------------------------------------------------------------------------


def broadcast(path: Path) -> Primed:
    """The whole model on every rank, read once; on `meta` first, so that nobody has it twice."""
    with torch.device("meta"):
        model = Primed()
    if dist.get_rank() == 0:
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True), assign=True)
    else:
        model.to_empty(device="cpu")
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    say("broadcast", loss_of(model(tiny.validation(size=60)[0])), model.state_dict())
    return model


# -- every rank its slices --------------------------------------------------------------------------------------------


def plan() -> dict[str, tuple[int, int]]:
    """Which dimension of which tensor is cut, and how many matrices are stacked along it."""
    cuts = {}
    for block in range(LAYERS):
        for name, cut in (("qkv", (0, 3)), ("widen", (0, 1))):
            cuts |= {f"blocks.{block}.{name}.{what}": cut for what in ("weight", "bias")}
        cuts |= {f"blocks.{block}.{name}.weight": (1, 1) for name in ("project", "narrow")}
    return cuts


def slices(path: Path) -> None:
    """Tensor parallelism: each rank copies its slices out of the mapped file, and the ranks compute together."""
    whole = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    mine: Tensors = {}
    for name, tensor in whole.items():
        dim, stacked = plan().get(name, (0, 0))
        parts = [tensor]
        if stacked:
            start, end = part_of(tensor.shape[dim] // stacked, dist.get_world_size(), dist.get_rank())
            parts = [part.narrow(dim, start, end - start) for part in tensor.chunk(stacked, dim)]
        mine[name] = torch.cat(parts, dim)
    del whole
    say("slices", loss_of(computed(mine, tiny.validation(size=60)[0])), mine)


def computed(mine: Tensors, text: torch.Tensor) -> torch.Tensor:
    """What the model makes of the text, from slices: an all-reduce after each matrix that was cut by its inputs."""

    def summed(part: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(part)
        return part

    x = mine["embedding.weight"][text] + mine["position.weight"]
    for block in range(LAYERS):
        w = {name.split(".", 2)[2]: t for name, t in mine.items() if name.startswith(f"blocks.{block}.")}
        h = F.layer_norm(x, (WIDTH,), w["norm1.weight"], w["norm1.bias"])
        qkv = F.linear(h, w["qkv.weight"], w["qkv.bias"]).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for t in qkv)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + summed(F.linear(seen, w["project.weight"])) + w["project.bias"]
        h = F.layer_norm(x, (WIDTH,), w["norm2.weight"], w["norm2.bias"])
        h = F.gelu(F.linear(h, w["widen.weight"], w["widen.bias"]))
        x = x + summed(F.linear(h, w["narrow.weight"])) + w["narrow.bias"]
    x = F.layer_norm(x[:, -1], (WIDTH,), mine["norm.weight"], mine["norm.bias"])
    return F.linear(x, mine["output.weight"], mine["output.bias"]) + mine["prior"]


# -- every rank its layers --------------------------------------------------------------------------------------------


class Stage(Primed):
    """Some layers, numbered from 0; the first stage has the embeddings too, and the last one the output."""

    def __init__(self, layers: int, first: bool, last: bool):
        super().__init__(layers)
        for name in ("embedding", "position") * (not first) + ("norm", "output", "prior") * (not last):
            delattr(self, name)

    def forward(self, x):
        x = self.embedding(x) + self.position.weight if hasattr(self, "embedding") else x
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x[:, -1])) + self.prior if hasattr(self, "output") else x


def stages(path: Path) -> None:
    """Pipeline parallelism: each rank copies its layers out of the mapped file, and the text goes through them."""
    rank, n = dist.get_rank(), dist.get_world_size()
    start, end = part_of(LAYERS, n, rank)
    with torch.device("meta"):
        stage = Stage(end - start, first=rank == 0, last=rank == n - 1)
    whole = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    mine = {}
    for name in stage.state_dict():
        kind, _, rest = name.partition(".")
        number, _, what = rest.partition(".")
        there = f"blocks.{start + int(number)}.{what}" if kind == "blocks" else name
        mine[name] = whole[there].clone()
    del whole
    stage.load_state_dict(mine, assign=True)
    x = tiny.validation(size=60)[0] if rank == 0 else torch.empty(60, tiny.CONTEXT, WIDTH)
    if rank > 0:
        dist.recv(x, src=rank - 1)
    x = stage(x)
    if rank < n - 1:
        dist.send(x, dst=rank + 1)
    loss = torch.tensor(loss_of(x) if rank == n - 1 else 0.0)
    dist.broadcast(loss, src=n - 1)
    say("stages", loss.item(), stage.state_dict())


# -- another number of ranks ------------------------------------------------------------------------------------------


def reshard(model: Primed, folder: Path) -> None:
    """All ranks save their rows of every tensor by DCP; one rank fewer loads them, and no number has changed."""
    rank, n = dist.get_rank(), dist.get_world_size()
    fewer = max(1, n - 1)
    everyone, some = DeviceMesh("cpu", list(range(n))), DeviceMesh("cpu", list(range(fewer)))
    state = model.state_dict()
    dcp.save({name: distribute_tensor(t, everyone, [Shard(0)]) for name, t in state.items()}, checkpoint_id=folder)
    held, loss, same = {}, 0.0, True
    if rank < fewer:
        new = {name: distribute_tensor(torch.zeros_like(t), some, [Shard(0)]) for name, t in state.items()}
        dcp.load(new, checkpoint_id=folder, process_group=some.get_group())
        held = {name: t.to_local() for name, t in new.items()}
        whole = {name: t.full_tensor() for name, t in new.items()}
        same = all(torch.equal(whole[name], t) for name, t in state.items())
        again = Primed()
        again.load_state_dict(whole)
        loss = loss_of(again(tiny.validation(size=60)[0]))
    assert same, "a number has changed"
    say(f"saved by {n}, loaded by {fewer}", loss, held)


def main() -> None:
    """Save the model, and load it in each way."""
    box = [tempfile.mkdtemp(prefix="load_sharded_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    path = Path(box[0], "model.pt")
    if dist.get_rank() == 0:
        train_and_save(path)
    dist.barrier()
    with torch.no_grad():
        model = broadcast(path)
        slices(path)
        stages(path)
        reshard(model, Path(box[0], "sharded"))
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(box[0])


if __name__ == "__main__":
    if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:  # all on one host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", os.environ.get("INIT_METHOD", "env://"), rank=rank, world_size=world_size)
    main()
    dist.destroy_process_group()
    # Meshes keep their groups, and these their threads. One that wants Python's lock while Python takes itself apart
    # would abort the process (before Python 3.14): so there is nothing to take apart.
    sys.stdout.flush()
    os._exit(0)
