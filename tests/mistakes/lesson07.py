"""Planted mistakes of lesson 07, in the form that `tests.mistakes` tells."""

fit_alpha_beta = """
wrong | minimises the absolute error | on ranks 0, 1 element 0 is 1.13
    def fit_alpha_beta(sizes, seconds):
        columns = torch.stack([torch.ones_like(sizes), sizes / sizes.max()], 1)
        alpha, beta = torch.linalg.lstsq(columns, seconds[:, None]).solution.flatten()
        return torch.stack([alpha, beta / sizes.max()])
wrong | takes the sizes as they are | on ranks 0, 1 element 0 is 0.000101 | sizes / seconds → sizes
wrong | leaves α as it is | Divide t = α + β · size | solve(1 / seconds → solve(torch.ones_like(seconds)
wrong | exchanges α and β | on ranks 0, 1 element 0 is 1e-09
    1 / seconds, sizes / seconds → sizes / seconds, 1 / seconds
wrong | fits one byte for every size | on ranks 0, 1 element 0 is 0.000125 | sizes / seconds → 1 / sizes
raises | makes columns of the vectors | Ranks 0, 1: RuntimeError
    solve(1 / seconds, sizes / seconds) → solve(1 / seconds[:, None], (sizes / seconds)[:, None])
"""

ring_time = """
wrong | sends the whole buffer in every step | on rank 0 element 0 is 0.00606 | nbytes / n → nbytes
wrong | goes round once | on rank 0 element 0 is 0.00078 | 2 * (n - 1) → (n - 1)
wrong | has n steps a lap | on rank 0 element 0 is 0.00208 | 2 * (n - 1) → 2 * n
raises | takes the bytes for a tensor | Ranks 0, 1: AttributeError | nbytes / n → nbytes.numel() / n
wrong | pays the latency once | on rank 0 element 0 is 0.00151 | (alpha + beta * nbytes / n) → beta * nbytes / n + alpha
"""

best_buckets = """
wrong | starts when the whole pass has ended | on rank 0 element 0 is 1 | backward * i / k → backward
wrong | forgets that a call has a price | on rank 1 element 0 is 64 | + price + → +
wrong | lets the all-reduces run at the same time | on rank 1 element 0 is 64
    max(end, backward * i / k) → backward * i / k
raises | has the first of them ready when the pass begins | Ranks 0, 1: ZeroDivisionError
    backward * i / k → backward * (i - 1) / (k - 1)
wrong | has every bucket ready at the beginning | on rank 0 element 0 is 1 | max(end, backward * i / k) → end
"""

busbw_of_all_gather = """
wrong | takes one rank's part for S | on ranks 0, 1 element 0 is 0.25
    * part.element_size() * world_size → * part.element_size()
wrong | counts elements, not bytes | on ranks 0, 1 element 0 is 0.125 | * part.element_size() →
wrong | counts 4 bytes an element | on ranks 0, 1 element 0 is 0.0262 | part.element_size() → 4
deadlock | lets rank 0 alone ask who is slowest | Rank 1 finished the function without it
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX) → if rank == 0: dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
wrong | returns algbw | on ranks 0, 1 element 0 is 1 | * (world_size - 1) / world_size / 1e9 → / 1e9
"""

slow_servers = """
wrong | reads its own lines only | on rank 1 the list in result[1] has 0 entries
    -     everyone = [None] * world_size
    -     dist.all_gather_object(everyone, lines)
    +     everyone = [lines] if lines else [['x,y 1']]
wrong | takes every server of a slow run for slow | on ranks 0, 1 the list in result[0] has 5 entries
    {server for pair in bad if pair & sound for server in pair - sound} → {server for pair in bad for server in pair}
wrong | does not clear who was fast elsewhere | on ranks 0, 1 the list in result[0] has 3 entries
    for server in pair - sound} → for server in pair}
raises | has rank 0 alone gather | Rank 1: TypeError
    dist.all_gather_object(everyone, lines) → if rank == 0: dist.all_gather_object(everyone, lines)
"""
