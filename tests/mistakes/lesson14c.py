"""Planted mistakes of lesson 14c, in the form that `tests.mistakes` tells."""

exam_clip = """
wrong | clips every rank's own gradient, then takes the mean | on ranks 0, 1 element 0 is 0
    mean = gradient.clone() → mean = gradient * torch.clamp(limit / gradient.norm(), max=1.0)
wrong | clips the sum | on ranks 0, 1 element 0 is 9 | mean /= world_size →
wrong | never clips | on ranks 0, 1 element 0 is 4.5 | * torch.clamp(limit / mean.norm(), max=1.0) →
not as asked | averages the norms as well | Rank 0 makes 2 calls that communicate, dist.all_reduce
    +     dist.all_reduce(gradient.norm())
          return mean * torch.clamp(limit / mean.norm(), max=1.0)
"""

exam_edges = """
wrong | puts the edges at the wrong ends | Rank 0 holds rank 1's element 0 | [before, x, after] → [after, x, before]
wrong | adds its own edges | Rank 0 holds rank 0's element 0 | [before, x, after] → [x[:1], x, x[-1:]]
wrong | uses no tags, and swaps the edges of two ranks | Rank 0 holds rank 1's elements 0, 2
    def exam_edges(x):
        left, right = (rank - 1) % world_size, (rank + 1) % world_size
        before, after = torch.empty_like(x[:1]), torch.empty_like(x[:1])
        sent = [dist.isend(x[:1], dst=left), dist.isend(x[-1:], dst=right)]
        dist.recv(before, src=left)
        dist.recv(after, src=right)
        for work in sent:
            work.wait()
        return torch.cat([before, x, after])
deadlock | tags a message with its sender | rank 1 receives with tag 1 | right, tag=1), → right, tag=rank),
"""

exam_load = """
wrong | clones after it has transposed | Rank 1 holds rank 0's elements 1, 2, 3, 4
    stored.t().contiguous() → stored.t().clone()
wrong | takes the last rank's | on ranks 0, 1 element [0, | src=0 → src=world_size - 1
wrong | keeps its own | on rank 1 element [0, | dist.broadcast(weight, src=0) →
not as asked | broadcasts the shape as well | Rank 0 makes 2 calls that communicate, dist.broadcast
    dist.broadcast(weight, src=0) → dist.broadcast(torch.tensor(weight.shape), src=0); dist.broadcast(weight, src=0)
"""

exam_accuracy = """
wrong | counts repeated rows and divides by the real ones | on ranks 0, 1 element 0 is 1 | hits[:mine] → hits
wrong | deals out in blocks | on ranks 0–2 element 0 is 0.451
    len(range(rank, rows, world_size)) → min(len(hits), max(0, rows - rank * len(hits)))
wrong | averages the ranks' accuracies | on ranks 0, 1 element 0 is 0.5
    hits[:mine].sum() → hits[:mine].mean() * rows / world_size
not as asked | sums the rows as well | Rank 0 makes 2 calls that communicate, dist.all_reduce
    return right / rows → dist.all_reduce(torch.tensor(mine, device=device)); return right / rows
"""

exam_deal = """
raises | splits into unequal parts | one row too many
    full.chunk(world_size) → x.tensor_split(world_size)
wrong | puts the zeros in front | on rank 0 element 1 is 0 | full[: len(x)] → full[len(full) - len(x) :]
wrong | takes its own rows | Rank 1 holds rank 1's numbers where rank 0's belong
    -     dist.scatter(mine, parts, src=0)
    -     return mine
    +     return full[rank * each : (rank + 1) * each]
wrong | deals out in turn | Rank 0 holds rank 0's element 4 where rank 0's element 1 belongs
    list(full.chunk(world_size)) → [full[r::world_size].clone() for r in range(world_size)]
"""
