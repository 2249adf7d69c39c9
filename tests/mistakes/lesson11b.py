"""Planted mistakes of lesson 11b, in the form that `tests.mistakes` tells."""

forward_ahead = """
wrong | gathers each layer when it is needed | is not under way
    def forward_ahead(layers, gather, x):
        for i, layer in enumerate(layers):
            work, weights = gather(i)
            work.wait()
            x = layer(weights, x)
        return x
wrong | gathers all layers at the start | has begun already
    def forward_ahead(layers, gather, x):
        coming = [gather(i) for i in range(len(layers))]
        for layer, (work, weights) in zip(layers, coming):
            work.wait()
            x = layer(weights, x)
        return x
wrong | does not wait for the weights | computes before its weights have arrived | work.wait() →
wrong | keeps what it has gathered | still in memory | work.wait() → work.weights = ahead; work.wait()
raises | gathers one layer too many | Ranks 0, 1: IndexError | if i + 1 < len(layers) else None →
"""

hsdp_gradient = """
wrong | divides by a group | if the function divides by the size of `inner`
    mine / world_size → mine / dist.get_world_size(inner)
wrong | averages twice | and the size of `outer` | dist.all_reduce(mine, → dist.all_reduce(mine, op=dist.ReduceOp.AVG,
wrong | forgets the other copies | if the function adds up over `inner` alone | dist.all_reduce(mine, group=outer) →
wrong | takes the part of its rank in the world | on ranks 0, 1 element 0 is -1.75
    def hsdp_gradient(gradient, inner, outer):
        parts = gradient.clone().chunk(dist.get_world_size(inner))
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter_single(mine, gradient.roll(len(mine) * (dist.get_rank(inner) - rank)), group=inner)
        dist.all_reduce(mine, group=outer)
        return mine / world_size
wrong | takes the groups for one another | on ranks 0, 1 the shape is (4,)
    def hsdp_gradient(gradient, inner, outer): → def hsdp_gradient(gradient, outer, inner):
not as asked | reduces the whole gradient across the copies first | the whole gradient
    def hsdp_gradient(gradient, inner, outer):
        total = gradient.clone()
        dist.all_reduce(total, group=outer)
        mine = gradient.new_empty(len(gradient) // dist.get_world_size(inner))
        dist.reduce_scatter_single(mine, total, group=inner)
        return mine / world_size
"""

clip_shards = """
wrong | adds up norms | if the function adds up the ranks' norms, and not their squares
    -     dist.all_reduce(squares)
          norm = squares.sqrt()
    +     dist.all_reduce(norm)
wrong | averages the squares | divides the sum of squares by the number of ranks
    dist.all_reduce(squares) → dist.all_reduce(squares, op=dist.ReduceOp.AVG)
wrong | takes the largest norm | if the function takes the largest of the ranks' norms
    -     dist.all_reduce(squares)
          norm = squares.sqrt()
    +     dist.all_reduce(norm, op=dist.ReduceOp.MAX)
wrong | returns the norm after the scaling | returns the norm after the scaling
    return norm → return norm.clamp(max=most)
wrong | clips by the norm of its own shards | on rank 0 element 0 in result['norm'] is 3 | dist.all_reduce(squares) →
wrong | makes small gradients longer | no more than 1, and it scales the gradients | .clamp(max=1) →
wrong | reduces only where there is a shard | it stays away from the collective, where the others wait
    dist.all_reduce(squares) → if shards: dist.all_reduce(squares)
not as asked | reduces once for each shard | calls that communicate
    -         squares += (shard.grad.double() ** 2).sum()
    -     dist.all_reduce(squares)
    +         part = (shard.grad.double() ** 2).sum()
    +         dist.all_reduce(part)
    +         squares += part
    +     dist.all_reduce(squares) if not shards else None
"""
