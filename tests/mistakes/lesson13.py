"""Planted mistakes of lesson 13, in the form that `tests.mistakes` tells."""

cut_linear = """
wrong | cuts the weight along the other dimension, as if it were stored as [in, out] | the shape in result[0] is (2, 1)
    -         return weight.tensor_split(size, dim=1)[place].clone(), bias.clone()
    -     return weight.tensor_split(size, dim=0)[place].clone(), bias.tensor_split(size)[place].clone()
    +         return weight.tensor_split(size, dim=0)[place].clone(), bias.clone()
    +     return weight.tensor_split(size, dim=1)[place].clone(), bias.tensor_split(size)[place].clone()
raises | takes the part of its rank in the world | Rank 1: IndexError
    dist.get_world_size(group), dist.get_rank(group) → dist.get_world_size(group), dist.get_rank()
wrong | takes the part of its rank in the world, of so many | take those of `group`
    dist.get_world_size(group), dist.get_rank(group) → world_size, rank
wrong | deals the outputs out in turn | on rank 0 element [1, 0] in result[0] is 31
    -     return weight.tensor_split(size, dim=0)[place].clone(), bias.tensor_split(size)[place].clone()
    +     return weight[place::size].clone(), bias[place::size].clone()
wrong | cuts with autograd, and returns a part with a graph | The weight that comes back still has a graph
    weight, bias = linear.weight.detach(), linear.bias.detach() → weight, bias = linear.weight, linear.bias
wrong | returns a view of the whole weight | Return a clone
    weight.tensor_split(size, dim=0)[place].clone() → weight.tensor_split(size, dim=0)[place]
not as asked | asks the other ranks for what it holds | Rank 0 makes 1 call that communicates, dist.broadcast
    +     dist.broadcast(weight, src=0)
          if kind == "row":
"""

copy_in = """
wrong | gathers in the backward pass | The backward pass calls all_gather
    -             dist.all_reduce(dx, group=group)
    -             return dx
    +             pieces = [torch.empty_like(dx) for _ in range(dist.get_world_size(group))]
    +             dist.all_gather(pieces, dx, group=group)
    +             return torch.cat(pieces)[: len(dx)]
wrong | leaves the gradient as this rank has it | The backward pass communicates nothing
    dist.all_reduce(dx, group=group) →
wrong | adds up in place, in a tensor that belongs to others as well | Add up in a copy of `dy`
    dy.clone(memory_format=torch.contiguous_format) → dy
wrong | adds up in the forward pass, where all have the same | The forward pass calls all_reduce
    -             return x.view_as(x)
    +             x = x.clone()
    +             dist.all_reduce(x, group=group)
    +             return x
wrong | takes the mean | on ranks 0, 1 element 0 in result['gradient of x'] is -0.05
    return dx → return dx / dist.get_world_size(group)
not as asked | waits for the others first | all_reduce does it, called once
    dist.all_reduce(dx, group=group) → dist.barrier(group); dist.all_reduce(dx, group=group)
"""

sum_out = """
wrong | adds up in the backward pass, too | The backward pass calls all_reduce. All ranks go on with the same numbers
    +             dy = dy.clone()
    +             dist.all_reduce(dy, group=group)
                  return dy
wrong | forgets to add up | on ranks 0, 1 element 0 in result['y'] is 0.664 | dist.all_reduce(total, group=group) →
wrong | adds up in place | Add up in a copy | partial.clone(memory_format=torch.contiguous_format) → partial
wrong | calls dist.all_reduce without a Function of its own | No gradient flows back
    def sum_out(partial, group=None):
        total = partial.detach().clone()
        dist.all_reduce(total, group=group)
        return total
wrong | divides the gradient by the number of ranks | on ranks 0, 1 element 0 in result['gradient of x'] is 0.0838
    return dy → return dy / dist.get_world_size(group)
not as asked | gathers all parts on every rank and adds them up there | all_reduce does it
    -             dist.all_reduce(total, group=group)
    -             return total
    +             parts = [torch.empty_like(total) for _ in range(dist.get_world_size(group))]
    +             dist.all_gather(parts, total, group=group)
    +             return sum(parts)
"""

parallel_mlp = """
wrong | forgets f | if the function leaves out f: each rank has only its own columns' share | f(x) → x
wrong | forgets g | on rank 0 element [0, 0] in result['y'] is 0.122
    g(torch.nn.functional.linear(hidden, weight)) → torch.nn.functional.linear(hidden, weight)
wrong | adds the bias on every rank before the sum: N times | narrow's bias is in the result
    linear(hidden, weight)) + bias → linear(hidden, weight, bias))
wrong | adds an N-th of the bias on each rank, whose gradient is too small then | result["gradient of narrow's bias"]
    linear(hidden, weight)) + bias → linear(hidden, weight, bias / world_size))
not as asked | lets the hidden numbers wait for each other | Rank 0 makes 3 calls that communicate
    weight, bias = narrow → dist.barrier(); weight, bias = narrow
"""

whole_output = """
wrong | reduce-scatters the gradient | The backward pass calls reduce_scatter. All ranks go on with the same numbers
    -             return dy.chunk(world_size, dim)[rank]
    +             slopes = [t.contiguous() for t in dy.chunk(world_size, dim)]
    +             mine = torch.empty_like(slopes[rank])
    +             dist.reduce_scatter(mine, slopes)
    +             return mine
wrong | takes the differentiable all-gather, whose transpose is a reduce-scatter | too large by the number of ranks
    def whole_output(part, dim):
        return torch.cat(comms.all_gather(part), dim)
raises | passes the gradient of the whole to its part | Ranks 0, 1: RuntimeError
    return dy.chunk(world_size, dim)[rank] → return dy
wrong | takes torch's functional all-gather, whose backward pass reduce-scatters | too large by the number of ranks
    def whole_output(part, dim):
        import torch.distributed._functional_collectives as funcol

        return funcol.all_gather_tensor_autograd(part.contiguous(), dim % part.dim(), dist.group.WORLD)
wrong | passes the gradient of the first part to all ranks | element [0, 0] in result['gradient of part'] is -6
    dy.chunk(world_size, dim)[rank] → dy.chunk(world_size, dim)[0]
wrong | puts the parts together along the first dimension | The result has the shape
    torch.cat(parts, dim) → torch.cat(parts)
wrong | returns what `dist.all_gather` has filled, without a gradient | No gradient flows back
    def whole_output(part, dim):
        part = part.detach().contiguous()
        parts = [torch.empty_like(part) for _ in range(world_size)]
        dist.all_gather(parts, part)
        return torch.cat(parts, dim)
"""

my_heads = """
wrong | cuts the 3 * width outputs into equal runs | Rank 0 has 2 of queries, 1 of keys and none of values
    -     rows = torch.cat([mine, mine + width, mine + 2 * width])
    +     rows = torch.arange(3 * width).view(3 * heads, -1).tensor_split(size)[place].flatten()
    +     rows = rows if len(rows) == 3 * len(mine) else torch.arange(3 * len(mine))
wrong | cuts the projection by its outputs | The weight of `project` has the shape
    project.weight.detach()[:, mine] → project.weight.detach()[mine]
wrong | takes heads in turns | Its queries are those of heads [0, 2], and this rank's are heads [0, 1] of 4
    torch.arange(width).view(heads, -1).tensor_split(size)[place] → torch.arange(width).view(heads, -1)[place::size]
wrong | takes a query, a key and a value in turns | are queries, keys and values in turns
    torch.cat([mine, mine + width, mine + 2 * width]) → torch.stack([mine, mine + width, mine + 2 * width], 1).flatten()
wrong | takes the first columns of the projection | of heads [0], and its queries those of heads [1]
    project.weight.detach()[:, mine] → project.weight.detach()[:, : len(mine)]
wrong | cuts the bias into equal runs | Its bias of `qkv` is not that of its rows
    qkv.bias.detach()[rows] → qkv.bias.detach()[len(rows) * place :][: len(rows)]
wrong | takes the heads of its rank in the world, modulo the group | Its queries are those of heads [0, 1]
    dist.get_rank(group) → dist.get_rank() % dist.get_world_size(group)
wrong | cuts through a head where the heads cannot be dealt out evenly | The weight of `qkv` is [9, 6], and its bias [9]
    torch.arange(width).view(heads, -1).tensor_split(size) → torch.arange(width).tensor_split(size)
not as asked | asks the other ranks for what it holds | Rank 0 makes 1 call that communicates, dist.broadcast
    width = qkv.in_features → dist.broadcast(qkv.bias.detach(), src=0); width = qkv.in_features
"""
