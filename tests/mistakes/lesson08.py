"""Planted mistakes of lesson 08, in the form that `tests.mistakes` tells."""

distributed_mean = """
wrong | divides by its own count | on rank 0 element 0 is 20 | / stats[-1] → / len(x)
deadlock | leaves a rank without rows out | rank 0 has no row
    +     if len(x) == 0:
    +         return torch.zeros(x.shape[1]).double()
          count = torch.tensor([len(x)], dtype=torch.float64, device=x.device)
not as asked | sums and counts in two calls | Rank 0 makes 2 calls that communicate, dist.all_reduce
    def distributed_mean(x):
        total, count = x.double().sum(0), torch.tensor(float(len(x)), dtype=torch.float64, device=x.device)
        dist.all_reduce(total)
        dist.all_reduce(count)
        return total / count
not as asked | rounds to float32 before the call | float32 to dist.all_reduce
    +     stats = stats.float()
          dist.all_reduce(stats)
    +     stats = stats.double()
wrong | returns float32 | their dtype is float32 and should be float64
    return stats[:-1] / stats[-1] → return (stats[:-1] / stats[-1]).float()
costly | gathers all rows | Its busiest rank sends 1.88 S
    def distributed_mean(x):
        return torch.cat(comms.all_gather(x)).double().mean(0)
"""

in_sample_order = """
wrong | puts one rank's after the other's | on ranks 0, 1 element 1 is 2
    torch.stack(parts, dim=1).flatten() → torch.cat(parts)
wrong | keeps what was repeated | on ranks 0, 1 the shape is (6,) | [:rows] →
raises | makes room for floats only | Ranks 0, 1: ValueError
    torch.empty_like(mine) → torch.empty(len(mine), device=device)
not as asked | sends the predictions as objects | all_gather_object
    -     parts = [torch.empty_like(mine) for _ in range(world_size)]
    -     dist.all_gather(parts, mine)
    +     parts = [None] * world_size
    +     dist.all_gather_object(parts, mine)
"""

distributed_softmax = """
wrong | takes no maximum off | on rank 0 element 0 is nan | (x - top) → x
raises | asks nothing for its maximum | Rank 0: RuntimeError
    if len(x) else torch.tensor(-torch.inf, dtype=x.dtype, device=x.device) →
deadlock | stays away with an empty shard | Rank 0 finished the function without it
    +     if len(x) == 0:
    +         return x
          top = x.max() if len(x) else torch.tensor(-torch.inf, dtype=x.dtype, device=x.device)
costly | gathers the logits | Its busiest rank sends 3.0 S
    def distributed_softmax(x):
        parts = comms.all_gather(x)
        return torch.cat(parts).softmax(0).split([len(part) for part in parts])[rank]
"""

split_loss = """
wrong | looks targets up in its own words only | on rank 0 element 0 is 1.10
    dist.all_reduce(sums) → dist.all_reduce(sums[0])
wrong | takes nothing off the target's logit | A cross-entropy is never negative
    shifted[here, column[here]] → logits[here, column[here]]
raises | looks on ranks that have no such word | Rank 0: IndexError
    sums[1, here] = shifted[here, column[here]] → sums[1] = shifted[torch.arange(len(target)), column]
not as asked | reduces the two in two calls | Rank 0 makes 3 calls that communicate, dist.all_reduce
    dist.all_reduce(sums) → dist.all_reduce(sums[0]); dist.all_reduce(sums[1])
costly | gathers the logits | Its busiest rank sends 2.9 S
    def split_loss(logits, target, first):
        whole = torch.cat(comms.all_gather(logits), dim=1)
        return torch.nn.functional.cross_entropy(whole, target)
"""

sync_batch_norm = """
wrong | normalises its own rows | on rank 0 element [0, 0] is 1.74
    def sync_batch_norm(x, weight, bias):
        return (x - x.mean(0)) * (x.var(0, correction=0) + 1e-5).rsqrt() * weight + bias
wrong | takes the mean for a constant | the gradient of x is wrong: element [0, 0] is 1.22
    mean, count = stats[:-1] / stats[-1], stats[-1] → mean, count = stats[:-1].detach() / stats[-1], stats[-1]
wrong | takes the deviation for a constant | the gradient of x is wrong: element [0, 1] is -0.0834
    scale = (spread / count → scale = (spread.detach() / count
wrong | takes the mean of the squares minus the square of the mean | float32 near 1,000
    comms.all_reduce(((x - mean) ** 2).sum(0)) → comms.all_reduce((x**2).sum(0)) - count * mean**2
deadlock | stays away without rows | finished the function without it
    +     if len(x) == 0:
    +         return x * weight + bias
          stats = comms.all_reduce(torch.cat([x.sum(0), x.new_tensor([len(x)])]))
"""

distributed_variance = """
wrong | forgets how far the means lie apart | on ranks 0, 1 element 0 is 1
    spreads + counts * (means - mean) ** 2 → spreads
wrong | weighs every rank's mean alike | on ranks 0, 1 element 0 is 14.2
    (counts * means).sum() / counts.sum() → means.mean()
wrong | returns float32 | their dtype is float32 and should be float64
    ** 2).sum() / counts.sum() → ** 2).sum().float() / counts.sum().float()
costly | gathers all numbers | Its busiest rank sends 3.0 S
    def distributed_variance(x):
        return torch.cat(comms.all_gather(x)).double().var(correction=0)
"""

distributed_argmax = """
wrong | every rank names itself | on rank 0 element 1 is 2 | dist.all_reduce(first, op=dist.ReduceOp.MIN) →
wrong | lets the last one win a tie | ties: on ranks 0, 1 element 1 is 1
    -     first = torch.cat([offers, (rank << 40) + places]).min()
    -     dist.all_reduce(first, op=dist.ReduceOp.MIN)
    +     first = torch.cat([0 * offers, (rank << 40) + places]).max()
    +     dist.all_reduce(first, op=dist.ReduceOp.MAX)
raises | asks nothing for its maximum | Rank 0: RuntimeError
    if len(x) else torch.tensor(smallest, dtype=x.dtype, device=x.device) →
deadlock | stays away with an empty shard | Rank 0 finished the function without it
    +     if len(x) == 0:
    +         return 0.0, 0, 0
          smallest = -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
"""

softmax_in_one_trip = """
wrong | merges without a guard for −inf | all of rank 0's are −inf: on rank 0 element 0 is nan | (x - shift) → (x - top)
raises | asks nothing for its maximum | Rank 0: RuntimeError
    if len(x) else torch.tensor(-torch.inf, dtype=x.dtype, device=x.device) →
not as asked | reduces twice | Rank 0 makes 2 calls that communicate, dist.all_reduce
    def softmax_in_one_trip(x):
        top = x.max() if len(x) else torch.tensor(-torch.inf, dtype=x.dtype, device=x.device)
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        powers = (x - top).exp()
        total = powers.sum()
        dist.all_reduce(total)
        return powers / total
costly | gathers the logits | Its busiest rank sends 3.0 S
    def softmax_in_one_trip(x):
        parts = comms.all_gather(x)
        return torch.cat(parts).softmax(0).split([len(part) for part in parts])[rank]
"""

vocab_cross_entropy = """
wrong | looks the target up in its own words only | on rank 0 element 0 is 1.02
    dist.all_reduce(sums) → dist.all_reduce(sums[0])
wrong | takes all shards to be as wide as its own | uneven shards: on ranks 0, 1 element 0 is 0.823
    sum(comms.all_gather(width)[:rank]) → rank * width
wrong | sums the gradients of N equal losses | the gradient of logits is wrong: element [0, 1] is 0.108
    def vocab_cross_entropy(logits, target):
        width = logits.shape[1]
        place = target - sum(comms.all_gather(width)[:rank])
        here = (place >= 0) & (place < width)
        top = logits.detach().max(1).values
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        shifted = logits - top[:, None]
        hit = torch.where(here, shifted.gather(1, place.clamp(0, width - 1)[:, None])[:, 0], 0)
        sums = comms.all_reduce(torch.stack([shifted.exp().sum(1), hit]))
        return (sums[0].log() - sums[1])[target != -100].mean()
costly | gathers the logits | Its busiest rank sends 2.95 S
    def vocab_cross_entropy(logits, target):
        shards = comms.all_gather(logits.detach())
        shards[rank] = logits
        return torch.nn.functional.cross_entropy(torch.cat(shards, 1), target)
"""

batch_norm_backward = """
wrong | keeps its own means | on rank 0 element [0, 0] is 0.25 | dist.all_reduce(means) →
wrong | forgets that the deviation depends on the rows | on rank 0 element [0, 0] is 1.25 | - y * means[1] →
not as asked | reduces twice | Rank 0 makes 2 calls that communicate, dist.all_reduce
    dist.all_reduce(means) → dist.all_reduce(means[0]); dist.all_reduce(means[1])
deadlock | stays away without rows | Rank 1 finished the function without it
    +     if len(dy) == 0:
    +         return dy
          means = torch.stack([dy.sum(0), (dy * y).sum(0)]) / count
"""

grad_norm = """
wrong | adds up norms | on ranks 0, 1 element 0 is 2.64 | squares = (flat**2).sum() → squares = flat.norm()
wrong | counts what is replicated on every rank | on ranks 0, 1 element 0 is 3.04
    (replicated if rank == 0 else []) → replicated
wrong | squares in float16 | on ranks 0, 1 element 0 is inf
    (g.flatten().float() for g in mine) → ((g.flatten() ** 2).sqrt() for g in mine)
deadlock | reduces only where there is a gradient | rank 0 has no shard
    dist.all_reduce(squares) → if sharded: dist.all_reduce(squares)
"""

ordered_sum = """
wrong | begins with its own | on ranks 0–2 element 4 is 1
    total[:mine] = parts[0] → parts = parts.roll(-rank, 0); total[:mine] = parts[0]
wrong | adds in float64 and rounds once | on ranks 0–2 element 0 is 1
    -     total[:mine] = parts[0]
    -     for part in parts[1:]:
    -         total[:mine] += part
    +     total[:mine] = parts.double().sum(0)
costly | gathers everything | Its busiest rank sends 3.0 S
    def ordered_sum(x):
        parts = [torch.empty_like(x) for _ in range(world_size)]
        dist.all_gather(parts, x)
        return sum(parts[1:], parts[0])
raises | takes the chunks to be equal | Ranks 0, 1: RuntimeError
    [len(chunk) for chunk in x.tensor_split(world_size)] → [len(x) // world_size] * world_size
"""
