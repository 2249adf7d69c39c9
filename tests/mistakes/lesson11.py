"""Planted mistakes of lesson 11, in the form that `tests.mistakes` tells."""

from labkit.content import exercises
from tests.mistakes import named

zero1_step = """
wrong | forgets the division | if the function adds up and does not divide by the number of ranks
    shard.grad /= world_size →
wrong | divides twice | if the function divides the mean by the number of ranks once more
    shard.grad /= world_size → shard.grad /= world_size**2
wrong | gives every rank the part of rank 0 | if the function gives every rank the part of rank 0
    -     dist.reduce_scatter_single(shard.grad, gradient)
    +     first = gradient.chunk(world_size)[0]
    +     dist.reduce_scatter_single(shard.grad, first.repeat(world_size))
wrong | gathers the gradients | Gather what the optimizer has updated
    dist.all_gather_single(weights, shard.detach()) → dist.all_gather_single(weights, shard.grad)
wrong | takes its own gradient | if the function takes this rank's own gradient for the mean
    -     dist.reduce_scatter_single(shard.grad, gradient)
    -     shard.grad /= world_size
    +     shard.grad.copy_(gradient.chunk(world_size)[rank])
wrong | divides its own gradient | if the function divides this rank's own gradient by the number of ranks
    dist.reduce_scatter_single(shard.grad, gradient) → shard.grad.copy_(gradient.chunk(world_size)[rank])
wrong | leaves the gradients where they are | there still is a gradient in `p.grad`
    -     for p in params:
    -         p.grad = None
wrong | clears what the optimizer knows | `optimizer.zero_grad()` clears that of `shard` alone
    -     for p in params:
    -         p.grad = None
    +     optimizer.zero_grad()
wrong | gathers before the optimizer steps | the part of rank 1 in `weights` is what it was before
    -     optimizer.step()
          dist.all_gather_single(weights, shard.detach())
    +     optimizer.step()
raises | gives the shard itself to the all-gather | Autograd watches this tensor: pass `x.detach()`
    dist.all_gather_single(weights, shard.detach()) → dist.all_gather_single(weights, shard)
wrong | never waits for the weights | started all_gather_single (line 12) and never waited for it
    -     dist.all_gather_single(weights, shard.detach())
    +     import time
    +
    +     time.sleep(0.1 * rank)
    +     dist.all_gather_single(weights, shard.detach(), async_op=True)
wrong | never waits for its gradient | started reduce_scatter_single (line 9) and never waited for it
    -     shard.grad = torch.empty_like(shard)
    -     dist.reduce_scatter_single(shard.grad, gradient)
    +     import time
    +
    +     time.sleep(0.1 * rank)
    +     shard.grad = torch.zeros_like(shard)
    +     dist.reduce_scatter_single(shard.grad, gradient, async_op=True)
wrong | lets no optimizer step | `optimizer.step()` has run 0 times by the end of step 1 | optimizer.step() →
wrong | gives the optimizer a gradient that it does not know | `shard.grad` is None
    -     shard.grad = torch.empty_like(shard)
    -     dist.reduce_scatter_single(shard.grad, gradient)
    -     shard.grad /= world_size
    +     mine = torch.empty_like(shard)
    +     dist.reduce_scatter_single(mine, gradient)
    +     mine /= world_size
forbidden | averages the whole gradient on every rank | It calls dist.all_reduce
    -     dist.reduce_scatter_single(shard.grad, gradient)
    +     dist.all_reduce(gradient)
    +     shard.grad.copy_(gradient.chunk(world_size)[rank])
not as asked | reduces each part by itself | Rank 0 makes 15 calls that communicate
    -     shard.grad = torch.empty_like(shard)
    -     dist.reduce_scatter_single(shard.grad, gradient)
    -     shard.grad /= world_size
    +     for r, part in enumerate(gradient.chunk(world_size)):
    +         dist.reduce(part, dst=r)
    +     shard.grad = gradient.chunk(world_size)[rank] / world_size
not as asked | gathers the weights twice | Rank 0 makes 9 calls that communicate
    +     dist.all_gather_single(weights, shard.detach())
          for p in params:
"""

shed_gradients = """
wrong | does not reduce | if the function divides this rank's own gradient by the number of ranks
    dist.reduce_scatter_single(mine, gradient) → mine.copy_(gradient.chunk(world_size)[rank])
wrong | keeps the last micro-batch's gradient | and does not add to what is there
    mine / world_size if shard.grad is None else shard.grad + mine / world_size → mine / world_size
wrong | forgets the division | if the function adds up and does not divide
    -         shard.grad = mine / world_size if shard.grad is None else shard.grad + mine / world_size
    +         shard.grad = mine if shard.grad is None else shard.grad + mine
wrong | counts on from one backward pass to the next | after backward pass 2 of 2. What counts the gradients
    -         if any(p.grad is None for p in params):
    +         arrived.came = getattr(arrived, "came", 0) + 1
    +         if arrived.came != len(params):
                  return
wrong | keeps the whole gradients | still have a whole gradient after backward pass 1 of 2
    -         for p in params:
    -             p.grad = None
raises | does not wait for the layer's other gradients | Ranks 0, 1: AttributeError
    -         if any(p.grad is None for p in params):
    -             return
not as asked | reduces each parameter by itself | Rank 0 makes 12 calls that communicate
    def shed_gradients(params, shard):
        def arrived(_):
            if any(p.grad is None for p in params):
                return
            whole = torch.zeros(len(shard) * world_size, dtype=shard.dtype)
            at = 0
            for p in params:
                alone = torch.zeros_like(whole)
                alone[at : at + p.numel()] = p.grad.flatten()
                at += p.numel()
                mine = torch.empty_like(shard)
                dist.reduce_scatter_single(mine, alone)
                shard.grad = mine / world_size if shard.grad is None else shard.grad + mine / world_size
                p.grad = None
        for p in params:
            p.register_post_accumulate_grad_hook(arrived)
forbidden | leaves the sum to an all-reduce | It calls dist.all_reduce
    dist.reduce_scatter_single(mine, gradient) → dist.all_reduce(gradient); mine.copy_(gradient.chunk(world_size)[rank])
"""

my_shard = """
wrong | takes the part of its rank in the world | if the function takes the part of the rank's number in the world
    length * dist.get_rank(group) → length * dist.get_rank()
wrong | cuts for all ranks of the world | if the function cuts for all ranks of the world, and not for those
    size = dist.get_world_size(group) → size = dist.get_world_size()
wrong | returns a view of the whole where nothing is missing | Return a clone
    +     if len(mine) == length:
    +         return mine
          return torch.nn.functional.pad(mine, (0, length - len(mine)))  # a copy, also where nothing is missing
not as asked | asks the other ranks for what it holds | Rank 0 makes 1 call that communicates, dist.broadcast
    +     dist.broadcast(flat, src=0) if group is None else None
          size = dist.get_world_size(group)
"""

zero3_layer = """
wrong | does not reduce | if the function divides this rank's own gradient by the number of ranks
    dist.reduce_scatter_single(mine, weights.grad) → mine.copy_(weights.grad.chunk(world_size)[rank])
wrong | averages what is its own | each rank has its own `x`
    mine / world_size, x.grad → mine / world_size, None if x.grad is None else x.grad / world_size
wrong | forgets the division | if the function adds up and does not divide
    return mine / world_size, x.grad → return mine, x.grad
wrong | keeps the gathered weights for the backward pass | still in memory after the forward pass
    def zero3_layer(compute, shard, x):
        class Sharded(torch.autograd.Function):
            @staticmethod
            def forward(ctx, shard, x):
                weights = shard.new_empty(world_size * len(shard))
                dist.all_gather_single(weights, shard)
                ctx.save_for_backward(weights, x)
                return compute(weights, x)

            @staticmethod
            def backward(ctx, dy):
                weights, x = (t.detach() for t in ctx.saved_tensors)
                for t in (weights, x):
                    t.requires_grad_(t.is_floating_point())
                with torch.enable_grad():
                    compute(weights, x).backward(dy)
                mine = weights.new_empty(len(weights) // world_size)
                dist.reduce_scatter_single(mine, weights.grad)
                return mine / world_size, x.grad

        return Sharded.apply(shard, x)
not as asked | gathers weights that it still has | Rank 0 makes 4 calls that communicate
    y.backward(dy) → dist.all_gather_single(torch.empty_like(weights), shard); y.backward(dy)
wrong | returns no gradient of x | on ranks 0, 1 None comes back in result[2]
    mine / world_size, x.grad → mine / world_size, None
forbidden | averages the whole gradient on every rank | It calls dist.all_reduce
    -             dist.reduce_scatter_single(mine, weights.grad)
    +             dist.all_reduce(weights.grad)
    +             mine.copy_(weights.grad.chunk(world_size)[rank])
raises | lets integers have a gradient | Ranks 0, 1: RuntimeError
    t.requires_grad_(t.is_floating_point()) → t.requires_grad_()
"""

sharded_pass = """
not as asked | gathers the last layer again, whose weights it still has | Rank 0 makes 9 calls that communicate
    -         if i < len(layers) - 1:
    -             weights = gathered(shards[i])
    +         weights = gathered(shards[i])
wrong | keeps all weights for the backward pass | the whole weights of layer 0 are in memory
    def sharded_pass(layers, shards, x, dy):
        inputs, kept = [], []
        for layer, shard in zip(layers, shards):
            weights = shard.new_empty(world_size * len(shard))
            dist.all_gather_single(weights, shard)
            kept.append(weights)
            inputs.append(x)
            x = layer.forward(weights, x)
        gradients = [torch.empty_like(shard) for shard in shards]
        for i in reversed(range(len(layers))):
            d_weights, dy = layers[i].backward(kept[i], inputs[i], dy)
            dist.reduce_scatter_single(gradients[i], d_weights)
        return [gradient / world_size for gradient in gradients]
wrong | goes back with the last layer's weights only | layer 1 computes with weights that are not its own
    -         if i < len(layers) - 1:
    -             weights = gathered(shards[i])
wrong | forgets the division | on rank 0 element 0 in result[0] is -0.00171
    [gradient / world_size for gradient in gradients] → gradients
forbidden | averages the whole gradient on every rank | It calls dist.all_reduce
    -         dist.reduce_scatter_single(gradients[i], d_weights)
    +         dist.all_reduce(d_weights)
    +         gradients[i].copy_(d_weights.chunk(world_size)[rank])
"""

stage_price = (
    named(exercises.find("stage_price").slips)
    + """
not as asked | asks the ranks what a formula says | Rank 0 makes 1 call that communicates, dist.barrier
    +     dist.barrier()
          states = 12 * parameters / (gpus if stage >= 1 else 1)
"""
)
