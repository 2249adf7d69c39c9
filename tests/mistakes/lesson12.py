"""Planted mistakes of lesson 12, in the form that `tests.mistakes` tells."""

cut_linear = """
wrong | cuts the weight along the other dimension, as if it were stored as [in, out] | the shape in result[0] is (4, 1)
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
wrong | returns a view of the whole weight | Return a clone
    weight.tensor_split(size, dim=0)[place].clone() → weight.tensor_split(size, dim=0)[place]
not as asked | asks the other ranks for what it holds | Rank 0 makes 1 call that communicates, dist.broadcast
    +     dist.broadcast(weight, src=0)
          if kind == "row":
"""

column_backward = """
wrong | gathers pieces of the gradient in the backward pass | The backward pass calls all_gather. The ranks' gradients
    -     dist.all_reduce(dx)
    +     piece = dx.chunk(world_size, dim=1)[rank].contiguous()
    +     pieces = [torch.empty_like(piece) for _ in range(world_size)]
    +     dist.all_gather(pieces, piece)
    +     dx = torch.cat(pieces, dim=1)
wrong | leaves the gradient of x as this rank's columns have it | The backward pass communicates nothing
    dist.all_reduce(dx) →
not as asked | gathers everyone's gradients and adds them up itself | all_reduce does it
    -     dist.all_reduce(dx)
    +     everyones = [torch.empty_like(dx) for _ in range(world_size)]
    +     dist.all_gather(everyones, dx)
    +     dx = sum(everyones)
wrong | takes the mean | on ranks 0, 1 element [0, 0] in result['gradient of x'] is 1.5
    return dx, dy.T @ x, dy.sum(0) → dx /= world_size; return dx, dy.T @ x, dy.sum(0)
wrong | adds up the weights' gradients, which belong to different columns | result['gradient of the weight'] is 2
    -     return dx, dy.T @ x, dy.sum(0)
    +     slope = dy.T @ x
    +     dist.all_reduce(slope)
    +     return dx, slope, dy.sum(0)
wrong | returns no gradient of the bias | on ranks 0, 1 None comes back in result['gradient of the bias']
    dy.T @ x, dy.sum(0) → dy.T @ x, None
not as asked | adds up in two calls | all_reduce does it, called once
    dist.all_reduce(dx) → dist.all_reduce(dx[:1]); dist.all_reduce(dx[1:]) if len(dx) > 1 else None
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
wrong | adds up in place, in a tensor that belongs to others as well | result['gradient of what was added'] is -0.1
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
wrong | forgets f | on rank 0 element [0, 0] in result['gradient of x'] is -0.135 | f(x) → x
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
wrong | cuts the 3 * width outputs into equal runs | 2 of queries, 1 of keys and 0 of values
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

gather_sequence = """
wrong | takes its own slice of the gradient and adds nothing up | The backward pass communicates nothing
    -             dist.reduce_scatter(dx, parts)
    -             return dx
    +             return parts[rank]
wrong | adds everything up on every rank, and takes a slice | The backward pass calls all_reduce
    -             dist.reduce_scatter(dx, parts)
    -             return dx
    +             dy = dy.contiguous()
    +             dist.all_reduce(dy)
    +             return dy.chunk(world_size, dim=1)[rank]
wrong | gathers everyone's gradients and adds them up itself | The backward pass calls all_gather
    -             dist.reduce_scatter(dx, parts)
    -             return dx
    +             everyones = [torch.empty_like(dy) for _ in range(world_size)]
    +             dist.all_gather(everyones, dy)
    +             return sum(everyones).chunk(world_size, dim=1)[rank]
wrong | puts the positions behind each other in rows | The result has the shape
    torch.cat(parts, dim=1) → torch.cat(parts)
wrong | gathers without a Function | No gradient flows back
    def gather_sequence(x):
        parts = [torch.empty_like(x) for _ in range(world_size)]
        dist.all_gather(parts, x.detach())
        return torch.cat(parts, dim=1)
wrong | takes the mean of the gradients | divides by the number of ranks | return dx → return dx / world_size
wrong | lays the parts one behind the other | if the function puts the parts behind one another in memory
    torch.cat(parts, dim=1) → torch.cat(parts).view(len(x), -1, x.shape[-1])
wrong | cuts the gradient in memory's order, which is by rows | if the function cuts the gradient in memory's order
    -             parts = [part.contiguous() for part in dy.chunk(world_size, dim=1)]
    +             parts = list(dy.contiguous().view(world_size, len(dy), -1, dy.shape[-1]))
wrong | gathers in bfloat16 | if the function rounds the numbers to bfloat16 on their way
    -             x = x.contiguous()
    +             wide, x = x.dtype, x.contiguous().bfloat16()
                  parts = [torch.empty_like(x) for _ in range(world_size)]
                  dist.all_gather(parts, x)
    -             return torch.cat(parts, dim=1)
    +             return torch.cat(parts, dim=1).to(wide)
raises | hands the whole gradient over in place of a list of its parts | Ranks 0, 1: TypeError
    dist.reduce_scatter(dx, parts) → dist.reduce_scatter(dx, dy)
"""

lean_column = """
wrong | keeps the gathered sequence for the backward pass | bytes of activations are kept
    -             ctx.save_for_backward(x, weight)
    -             return torch.nn.functional.linear(gathered(x), weight, bias)
    +             whole = gathered(x)
    +             ctx.save_for_backward(whole, weight)
    +             return torch.nn.functional.linear(whole, weight, bias)
wrong | computes the weight's gradient from its own positions | result['gradient of the weight'] is 0.127
    dy.flatten(0, 1).T @ gathered(x).flatten(0, 1) → dy.chunk(world_size, dim=1)[rank].flatten(0, 1).T @ x.flatten(0, 1)
wrong | leaves the gradient of x as its own columns have it | element [0, 0, 0] in result['gradient of x'] is 0.148
    -             dx = torch.empty_like(parts[rank])
    -             dist.reduce_scatter(dx, parts)
    +             dx = parts[rank]
forbidden | adds up on every rank | It calls dist.all_reduce
    -             dist.reduce_scatter(dx, parts)
    +             for part in parts:
    +                 dist.all_reduce(part)
    +             dx = parts[rank]
not as asked | gathers once more than needed | Rank 0 makes 4 calls that communicate
    +             gathered(x)
                  parts = [part.contiguous() for part in (dy @ weight).chunk(world_size, dim=1)]
wrong | sums the bias's gradient over its own positions only | element 0 in result['gradient of the bias'] is 0.105
    dy.sum((0, 1)) → dy.chunk(world_size, dim=1)[rank].sum((0, 1))
"""

sequence_mlp = """
wrong | does not add up the gradients of the norm | element 0 in result["gradient of norm's weight"] is -0.0311
    (f(t) for t in norm) → norm
wrong | does not add up the gradient of narrow's bias | element 0 in result["gradient of narrow's bias"] is -1.74
    + f(bias) → + bias
wrong | adds the bias on every rank before the sum: N times | narrow's bias is in the result
    linear(hidden, weight)) + f(bias) → linear(hidden, weight, f(bias)))
wrong | puts f before the columns, as without sequence parallelism: the gather adds up already | result['gradient of
    linear(gather(y), *widen) → linear(f(gather(y)), *widen)
wrong | norms the whole sequence | the norm comes before the gather
    -     y = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)
    -     hidden = torch.nn.functional.gelu(torch.nn.functional.linear(gather(y), *widen))
    +     y = torch.nn.functional.layer_norm(gather(x), x.shape[-1:], weight, bias)
    +     hidden = torch.nn.functional.gelu(torch.nn.functional.linear(y, *widen))
not as asked | gathers once more than needed | Rank 0 makes 8 calls that communicate, dist.all_gather
    +     gather(y.detach())
          hidden = torch.nn.functional.gelu(torch.nn.functional.linear(gather(y), *widen))
"""
