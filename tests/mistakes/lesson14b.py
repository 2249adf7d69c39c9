"""Planted mistakes of lesson 14b, in the form that `tests.mistakes` tells."""

step_or_skip = """
wrong | looks at the last rank's numbers only | on ranks 0, 1 element 0 is 10
    dist.all_reduce(bad) → dist.broadcast(bad, src=world_size - 1)
wrong | skips every step | on ranks 0, 1 element 0 is 0 | bad > 0 → bad >= 0
wrong | never skips | on ranks 0, 1 element 0 is 10 | bad > 0 → bad < 0
raises | raises on all ranks | Ranks 0, 1: ValueError
    return torch.zeros_like(gradient) → raise ValueError("a bad batch somewhere")
"""

from_the_second = """
wrong | counts the members from 1 | Rank 1 holds rank 1's numbers where rank 2's belong | group_src=1 → group_src=0
wrong | receives into x | on rank 1 the argument is changed | got = x.clone() → got = x
not as asked | lets only the members make the team | Rank 0 makes no group
    team = dist.new_group(range(1, world_size)) → team = dist.new_group(range(1, world_size)) if rank > 0 else None
raises | names a rank that is not in the team | Ranks 1, 2: ValueError | group_src=1 → src=0
"""

count_hits = """
wrong | returns its own count | on rank 1 element 0 is 0 | dist.all_reduce(count) →
wrong | returns a float | on ranks 0, 1 there are floats (float32) | return count → return count.float()
raises | asks for the mean of no rows | Rank 1: RuntimeError | return count → return count // len(hits) * len(hits)
not as asked | counts twice | Rank 0 makes 2 calls that communicate, dist.all_reduce
    dist.all_reduce(count) → dist.all_reduce(count.clone()); dist.all_reduce(count)
"""

gather_features = """
wrong | lets the gradient stop at the gather | no gradient reaches x | everyone[rank] = x  # with its graph →
wrong | puts the graph in the first place | Rank 1 holds rank 1's elements 0, 1 | everyone[rank] = x → everyone[0] = x
wrong | counts its own features twice | Rank 0 counts rank 0 twice | everyone[rank] = x → everyone[rank] = 2 * x
not as asked | gathers a second time | Rank 0 makes 2 calls that communicate, dist.all_gather
    +     dist.all_gather([y.detach().clone() for y in everyone], x.detach())
          return torch.cat(everyone)
"""

mean_in_background = """
wrong | returns the sum | on ranks 0, 1 element 0 is 10 | total / world_size → total
wrong | divides twice | on ranks 0, 1 element 0 is 2.5
    return total / world_size → total /= world_size; return total / world_size
wrong | sums into x | on ranks 0, 1 the argument is changed | x.clone() → x
not as asked | sums twice | Rank 0 makes 2 calls that communicate, dist.all_reduce
    +     total.copy_(x)
    +     dist.all_reduce(total)
          return total / world_size
"""

sums_in_two_groups = """
wrong | returns them the other way round | Ranks 0, 1 hold elements 1, 2, 3, 4, 5, 0
    return first, second → return second, first
wrong | forgets the activation | Rank 0 lacks rank 1's elements 2, 3 | dist.all_reduce(second, group=model) →
wrong | sums the gradient twice | Rank 0 lacks rank 1's elements 2, 3
    dist.all_reduce(second, group=model) → dist.all_reduce(first, group=model)
wrong | sums into the arguments | on ranks 0, 1 the argument is changed
    gradient.clone(), activation.clone() → gradient, activation
raises | keeps one group only, and uses two | name 'model' is not defined
    data, model = dist.new_group(), dist.new_group() → data = dist.new_group()
"""
