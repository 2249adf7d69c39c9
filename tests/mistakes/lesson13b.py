"""Planted mistakes of lesson 13b, in the form that `tests.mistakes` tells."""

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
wrong | takes the differentiable all-gather of comms | The function calls comms.all_gather
    def gather_sequence(x):
        return torch.cat(comms.all_gather(x), 1)
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
