"""Planted mistakes of lesson 14, in the form that `tests.mistakes` tells."""

train_and_validate = """
wrong | keeps the score to rank 0 | on rank 1 element 0 in result[1] is 0 | dist.broadcast(score, src=0) →
wrong | takes the last rank's score | on ranks 0, 1 element 0 in result[1] is 0 | src=0 → src=world_size - 1
wrong | adds up what all ranks make of it, twice | on ranks 0, 1 element 0 in result[1] is -30
    score = (total → score = 2 * (total
raises | has no room for the score on the others | Rank 1: TypeError
    ()  # it counts on rank 0 only → () if rank == 0 else None
"""

train_until_worse = """
wrong | keeps the worse one as well | on ranks 0, 1 the shape is (3,) | break → history.append(mean); break
wrong | returns sums | on ranks 0, 1 element 0 is 16 | mean /= world_size →
raises | compares with a step that is not there | Ranks 0, 1: IndexError | if mean > before → if mean > history[-1]
raises | stops where it gets better | Ranks 0, 1: RuntimeError | mean > before → mean < before
"""

mean_loss = """
wrong | takes the mean of the ranks' means | on ranks 0, 1 element 0 is 2.75
    def mean_loss(losses):
        mean = losses.mean()
        dist.all_reduce(mean)
        return mean / world_size
wrong | divides by its own rows, times the ranks | on rank 0 element 0 is 2
    both[0] / both[1] → both[0] / len(losses) / world_size
wrong | returns its own mean | on rank 0 element 0 is 2.5 | dist.all_reduce(both) →
not as asked | sums in two calls | Rank 0 makes 2 calls that communicate, dist.all_reduce
    dist.all_reduce(both) → dist.all_reduce(both[0]); dist.all_reduce(both[1])
"""

sum_in_float32 = """
wrong | takes the largest | on ranks 0, 1 element 0 is 20
    dist.all_reduce(total) → dist.all_reduce(total, op=dist.ReduceOp.MAX)
wrong | changes x where it is float32 already | on rank 0 the argument is changed | , copy=True →
wrong | cuts the numbers to integers of 8 bits | on ranks 0, 1 there are integers (int8)
    x.to(torch.float32, copy=True) → x.to(torch.int8)
raises | calls a dtype by a name that torch does not know | Ranks 0, 1: AttributeError | torch.float32 → torch.single
"""

log_sums = """
wrong | returns them the other way round | Ranks 0, 1 hold elements 1, 0 where elements 0, 1 belong
    return loss, rows → return rows, loss
wrong | sums the losses twice | Rank 0 lacks rank 1's element 1 | dist.all_reduce(rows) → dist.all_reduce(loss)
wrong | leaves the rows alone | Rank 0 lacks rank 1's element 1 | dist.all_reduce(rows) →
wrong | sums into what it was given | on ranks 0, 1 the argument is changed | loss, rows = loss.clone(), rows.clone() →
not as asked | sums the loss of each element by itself, after the rows | Rank 0 makes 4 calls that communicate
    -     dist.all_reduce(loss)
    +     for part in loss:
    +         dist.all_reduce(part)
"""

reduce_as_set = """
wrong | takes the last rank's setting | on ranks 0, 1 element 0 is 10 | src=0 → src=world_size - 1
wrong | always sums | on ranks 0, 1 element 0 is 11 | if setting.item() → if setting.item() > 1
wrong | sums into x | on ranks 0, 1 the argument is changed | x.clone() → x
not as asked | broadcasts the setting twice | Rank 0 makes 3 calls that communicate
    +     dist.broadcast(setting, src=0)
          if setting.item():
"""
