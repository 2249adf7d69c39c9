"""One transformer trained with its optimizer's states, gradients and weights in shards: ZeRO by hand, PyTorch's, FSDP.

    torchrun --nproc-per-node 4 scripts/zero_and_fsdp.py

Prints the losses of four training steps for each way, and the bytes that rank 0 holds of weights, gradients and
optimizer states: those of lessons 11 and 11b. Every way has the losses of one process. Where DeepSpeed is installed,
its ZeRO trains as well, with the same model.

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/zero_and_fsdp.py &
    done; wait; rm -f $meet
"""

import importlib.util
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from labkit.rank import tiny
from labkit.rank.footprint import footprint

STEPS, LR = 4, 0.003
gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the older name warns since 2.13
scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def fresh() -> tiny.Transformer:
    """The model, with the same weights on every rank."""
    torch.manual_seed(0)
    return tiny.Transformer(layers=4, width=64)


def train(name, model, optimizer, update, share=True):
    """Train, `update()` ending each step; print the losses, and what this rank holds before the last update."""
    rank, n = (dist.get_rank(), dist.get_world_size()) if share else (0, 1)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = tiny.loss(model, tiny.batch(step, rank, n))
        loss.backward()
        held = footprint(model, optimizer)
        update()
        losses.append(mean(loss))
    say(name, losses, held)


def mean(loss: torch.Tensor) -> float:
    """The mean of all ranks' losses."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def say(name: str, losses: list[float], held: dict[str, int]) -> None:
    """One line, from rank 0."""
    if dist.get_rank() == 0:
        bytes_held = ", ".join(f"{kind} {size:,}" for kind, size in held.items())
        print(f"{name}: {' '.join(f'{loss:.5f}' for loss in losses)} · {bytes_held}", flush=True)


def average(model: nn.Module) -> None:
    """Replace each gradient by its mean over the ranks."""
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


# -- ZeRO by hand -----------------------------------------------------------------------------------------------------


def flat_buffer(params: list[nn.Parameter]) -> tuple[torch.Tensor, nn.Parameter]:
    """One padded buffer that these parameters become views of, and this rank's shard of it."""
    n = dist.get_world_size()
    weights = parameters_to_vector(params).detach()
    weights = nn.functional.pad(weights, (0, -len(weights) % n))
    vector_to_parameters(weights, params)
    return weights, nn.Parameter(weights.chunk(n)[dist.get_rank()])


def mean_part(params: list[nn.Parameter], shard: torch.Tensor) -> torch.Tensor:
    """This rank's part of the mean gradient; the parameters' own gradients are let go."""
    n = dist.get_world_size()
    gradient = torch.cat([p.grad.flatten() for p in params])
    gradient = nn.functional.pad(gradient, (0, n * len(shard) - len(gradient)))
    for p in params:
        p.grad = None
    mine = torch.empty_like(shard)
    scatter(mine, gradient)
    return mine / n


def stage_1() -> None:
    """The optimizer's states in shards."""
    model = fresh()
    params = list(model.parameters())
    weights, shard = flat_buffer(params)
    optimizer = torch.optim.Adam([shard], lr=LR)

    def update():
        shard.grad = mean_part(params, shard)
        optimizer.step()
        gather(weights, shard.detach())

    train("ZeRO-1", model, optimizer, update)


class Part(nn.Module):
    """Some modules of a model, and what they compute together."""

    def __init__(self, compute, *modules):
        super().__init__()
        self.compute = compute
        self.parts = nn.ModuleList(modules)

    def forward(self, x):
        return self.compute(*self.parts, x)


def in_layers(model: tiny.Transformer) -> nn.Sequential:
    """The model as a chain of layers, each of which has weights of its own."""
    first = Part(lambda embedding, position, x: embedding(x) + position.weight, model.embedding, model.position)
    last = Part(lambda norm, output, x: output(norm(x[:, -1])), model.norm, model.output)
    return nn.Sequential(first, *model.blocks, last)


def stage_2() -> None:
    """The gradients in shards, too: each layer's as soon as they are complete."""
    model = in_layers(fresh())
    buffers = []
    for layer in model:
        params = list(layer.parameters())
        weights, shard = flat_buffer(params)
        buffers.append((weights, shard))

        def arrived(_, params=params, shard=shard):
            if all(p.grad is not None for p in params):
                shard.grad = mean_part(params, shard)

        for p in params:
            p.register_post_accumulate_grad_hook(arrived)
    optimizer = torch.optim.Adam([shard for _, shard in buffers], lr=LR)

    def update():
        optimizer.step()
        for weights, shard in buffers:
            gather(weights, shard.detach())

    train("ZeRO-2", model, optimizer, update)


class Sharded(torch.autograd.Function):
    """A layer whose weights are gathered when it computes, forward and backward, and let go in between."""

    @staticmethod
    def forward(ctx, shard, x, layer):
        ctx.layer = layer
        ctx.save_for_backward(shard, x)
        return Sharded.compute(layer, Sharded.gathered(shard), x)

    @staticmethod
    def backward(ctx, dy):
        shard, x = (t.detach() for t in ctx.saved_tensors)
        weights = Sharded.gathered(shard).requires_grad_()
        x.requires_grad_(x.is_floating_point())
        with torch.enable_grad():
            y = Sharded.compute(ctx.layer, weights, x)
        y.backward(dy)
        mine = torch.empty_like(shard)
        scatter(mine, weights.grad)
        return mine / dist.get_world_size(), x.grad, None

    @staticmethod
    def gathered(shard):
        weights = shard.new_empty(dist.get_world_size() * len(shard))
        gather(weights, shard.detach())
        return weights

    @staticmethod
    def compute(layer, weights, x):
        own, at = {}, 0
        for name, p in layer.named_parameters():
            own[name] = weights[at : at + p.numel()].view(p.shape)
            at += p.numel()
        return torch.func.functional_call(layer, own, (x,))


class Zero3(nn.Module):
    """The shards of a chain of layers; the layers themselves are shapes without numbers."""

    def __init__(self, layers: nn.Sequential):
        super().__init__()
        pairs = [flat_buffer(list(layer.parameters())) for layer in layers]
        self.shards = nn.ParameterList([shard.detach().clone() for _, shard in pairs])
        self.chain = [layer.to("meta") for layer in layers]

    def forward(self, x):
        for layer, shard in zip(self.chain, self.shards, strict=True):
            x = Sharded.apply(shard, x, layer)
        return x


def stage_3() -> None:
    """Everything in shards."""
    model = Zero3(in_layers(fresh()))
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    train("ZeRO-3", model, optimizer, optimizer.step)


# -- and as libraries do it -------------------------------------------------------------------------------------------


def alone() -> None:
    """Whole batches on every rank."""
    model = fresh()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    train("one process", model, optimizer, optimizer.step, share=False)


def replicas(name: str = "replicas", sharded: bool = False) -> None:
    """A copy of the model on every rank, and of the optimizer's states, or with these in shards."""
    model = fresh()
    if sharded:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=LR)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=LR)

    def update():
        average(model)
        optimizer.step()

    train(name, model, optimizer, update)


def fsdp(name: str, *shape: int) -> None:
    """FSDP2 on a mesh of this shape; with two dimensions, shards along the second one."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    model = fresh()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    train(name, model, optimizer, optimizer.step)


def with_deepspeed(stage: int) -> None:
    """DeepSpeed's ZeRO on CPUs."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    import deepspeed

    model = fresh()
    settings = {
        "train_micro_batch_size_per_gpu": 240 // dist.get_world_size(),
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,  # torch's Adam, not DeepSpeed's
        "gradient_clipping": 0.0,  # 1.0 otherwise
    }
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings, dist_init_required=False)
    losses = []
    for step in range(STEPS):
        loss = tiny.loss(engine, tiny.batch(step, dist.get_rank(), dist.get_world_size()))
        engine.backward(loss)
        engine.step()
        losses.append(mean(loss))
    say(f"DeepSpeed {deepspeed.__version__}, stage {stage}", losses, {})


def main() -> None:
    """Every way, one after the other."""
    n = dist.get_world_size()
    alone()
    replicas()
    stage_1()
    stage_2()
    stage_3()
    replicas("ZeroRedundancyOptimizer", sharded=True)
    fsdp("fully_shard", n)
    if n % 2 == 0:
        fsdp("fully_shard, 2 a copy", n // 2, 2)
    if importlib.util.find_spec("deepspeed"):
        for stage in (1, 2, 3):
            with_deepspeed(stage)


if __name__ == "__main__":
    if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:  # all on one host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", os.environ.get("INIT_METHOD", "env://"), rank=rank, world_size=world_size)
    main()
    dist.destroy_process_group()
    # Torch's caches keep FSDP's mesh, and with it the group and its threads. One that wants Python's lock while Python
    # takes itself apart would abort the process (before Python 3.14): so there is nothing to take apart.
    sys.stdout.flush()
    os._exit(0)
