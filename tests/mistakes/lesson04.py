"""Planted mistakes of lesson 04, in the form that `tests.mistakes` tells."""

sharded_step = """
wrong | forgets the division | is 90, and should be 95. You get this if the function adds up and does not divide
    lr * mine / world_size → lr * mine
raises | makes room of float32, whatever the dtype | is float32, and another float64: `torch.empty_like(x)` makes room
    torch.empty_like(gradient[:size]) → torch.empty(size)
wrong | updates the first part on every rank | on ranks 0, 1 element 3 is 34
    weights[rank * size : (rank + 1) * size] → weights[:size]
forbidden | gives every rank the whole total | It calls dist.all_reduce
    def sharded_step(weights, gradient, lr):
        total = gradient.clone()
        dist.all_reduce(total)
        return weights - lr * total / world_size
not as asked | sends the parts round by broadcasts | dist.broadcast
    -     dist.all_gather_single(new, part)
    +     for root, room in enumerate(new.chunk(world_size)):
    +         if root == rank:
    +             room.copy_(part)
    +         dist.broadcast(room, src=root)
"""

all_gather_uneven = """
wrong | returns the padding as well | on ranks 0, 1 the shape in result[0] is (2,) | room[:size] → room
wrong | makes floats of everything | the numbers in result[0] are right, their dtype is float32
    x.new_zeros(longest) → torch.zeros(longest, device=device)
wrong | makes floats of everything, and integers of these | on ranks 0, 1 element 1 in result[0] is 16777216
    def all_gather_uneven(x):
        length = torch.tensor([len(x)], device=device)
        lengths = [torch.zeros_like(length) for _ in range(world_size)]
        dist.all_gather(lengths, length)
        padded = torch.zeros(max(lengths).item(), device=device)
        padded[: len(x)] = x
        rooms = [torch.empty_like(padded) for _ in range(world_size)]
        dist.all_gather(rooms, padded)
        return [room[:size].to(x.dtype) for room, size in zip(rooms, lengths)]
wrong | returns the parts in one tensor | on ranks 0, 1 a tensor of shape (3,) comes back
    [room[:size] for room, size in zip(rooms, lengths)] → torch.cat([room[:size] for room, size in zip(rooms, lengths)])
wrong | begins the list with its own | Rank 1 lacks rank 1's element 1
    dist.all_gather(rooms, padded) → dist.all_gather(rooms[rank:] + rooms[:rank], padded)
deadlock | leaves ranks with nothing out of the call | Rank 1 waits in all_gather
    dist.all_gather(rooms, padded) → if len(x) > 0: dist.all_gather(rooms, padded)
forbidden | pickles | It calls dist.all_gather_object
    def all_gather_uneven(x):
        everyone = [None] * world_size
        dist.all_gather_object(everyone, x)
        return everyone
"""

repair_mean = """
wrong | divides by its own count | on rank 0 element 0 is 21 | stats[0] / stats[1] → stats[0] / len(x)
wrong | brings the mean and the count | on ranks 0, 1 element 0 is 3.5 | x.sum() → x.mean()
deadlock | leaves ranks with nothing out of the call | Rank 0 finished the function without it
    dist.all_reduce(stats) → if len(x) > 0: dist.all_reduce(stats)
not as asked | sums and counts in two calls | Rank 0 makes 2 calls that communicate, dist.all_reduce
    def repair_mean(x):
        total, count = x.sum(), torch.tensor(len(x), device=device)
        dist.all_reduce(total)
        dist.all_reduce(count)
        return total / count
"""

average_ints = """
raises | divides in place, which integers refuse | Ranks 0, 1: RuntimeError
    return total / world_size → total /= world_size; return total
wrong | drops the fraction | on ranks 0, 1 there are integers (int64) | total / world_size → total // world_size
raises | asks for AVG, which Gloo refuses | Ranks 0, 1: RuntimeError
    dist.all_reduce(total) → dist.all_reduce(total, op=dist.ReduceOp.AVG)
wrong | divides before it adds | on ranks 0, 1 element 0 is 2.5 | x.clone() → x // world_size
"""

repair_all_gather = """
raises | makes room for floats | Ranks 0, 1: ValueError | torch.zeros_like(x) → torch.zeros(1)
wrong | makes floats of everything | on ranks 0, 1 there are floats (float32) in result[0]
    -     gathered = [torch.zeros_like(x) for _ in range(world_size)]
    -     dist.all_gather(gathered, x)
    +     gathered = [torch.zeros(1) for _ in range(world_size)]
    +     dist.all_gather(gathered, x.float())
wrong | makes floats of everything, and integers of these | on ranks 0, 1 element 0 in result[1] is 16777216
    def repair_all_gather(x):
        gathered = [torch.zeros(1) for _ in range(world_size)]
        dist.all_gather(gathered, x.float())
        return [number.to(x.dtype) for number in gathered]
wrong | has one room for all | each result overwrites the one before
    [torch.zeros_like(x) for _ in range(world_size)] → [torch.zeros_like(x)] * world_size
deadlock | lets rank 0 alone gather | Rank 1 finished the function without it
    dist.all_gather(gathered, x) → if rank == 0: dist.all_gather(gathered, x)
"""

repair_column = """
wrong | copies, and forgets to write back | Rank 0 lacks rank 1 | table[:, 0] = column →
wrong | writes the sum into the first row | Rank 0 lacks rank 1's element 3
    table[:, 0] = column → table[0, : len(column)] = column[: table.shape[1]]
wrong | adds the whole table up | Rank 0 holds element 1 of ranks 0, 1
    -     column = table[:, 0].contiguous()
    -     dist.all_reduce(column)
    -     table[:, 0] = column
    +     dist.all_reduce(table)
raises | adds the first row up | Ranks 0, 1: RuntimeError | column = table[:, 0].contiguous() → column = table[0]
not as asked | calls once a row | Rank 0 calls dist.all_reduce 4 times
    def repair_column(table):
        for row in table:
            dist.all_reduce(row[:1])
deadlock | lets rank 0 alone add | Rank 1 finished the function without it
    dist.all_reduce(column) → if rank == 0: dist.all_reduce(column)
"""

right_calls = """
wrong | gives every rank rank 1's learning rate | on ranks 0, 1 element 0 in result[5] is 25
    dist.broadcast(lr, src=0) → dist.broadcast(lr, src=1)
not as asked | all-reduces the loss | dist.all_reduce 2 times | dist.reduce(loss, dst=0) → dist.all_reduce(loss)
not as asked | gathers the layer and broadcasts it | Rank 0 calls dist.gather
    -     dist.all_gather_single(layer, weight)
    +     dist.gather(weight, list(layer.chunk(world_size)) if rank == 0 else None, dst=0)
    +     dist.broadcast(layer, src=0)
deadlock | lets only rank 0 call for the loss | ranks disagree on the operation: rank 0 calls reduce
    dist.reduce(loss, dst=0) → if rank == 0: dist.reduce(loss, dst=0)
"""

lean_reduce_scatter = """
wrong | sums its own chunks: no numbers move | Rank 0 holds rank 0's elements 0, 2
    dist.all_to_all_single(swapped, x) → swapped.copy_(x)
wrong | adds up along the wrong dimension | on ranks 0, 1 the shape is (2,)
    view(world_size, len(x) // world_size) → view(len(x) // world_size, world_size)
wrong | returns one number, the sum of all | on ranks 0, 1 the shape is ()
    sum(dim=0, dtype=x.dtype) → sum(dtype=x.dtype)
wrong | leaves everyone's chunk r side by side | Ranks 0, 1 lack rank 1 | .sum(dim=0, dtype=x.dtype) → [0]
not as asked | exchanges the halves of its chunks one after the other | Rank 0 makes 2 calls that communicate
    def lean_reduce_scatter(x):
        size = len(x) // world_size
        sums = []
        for columns in x.view(world_size, size).tensor_split(2, dim=1):
            swapped = torch.empty(columns.shape, dtype=x.dtype, device=device)
            dist.all_to_all_single(swapped, columns.contiguous())
            sums.append(swapped.sum(dim=0, dtype=x.dtype))
        return torch.cat(sums)
costly | all-reduces and keeps a part | Its busiest rank sends 1.5 S
    def lean_reduce_scatter(x):
        total = x.clone()
        dist.all_reduce(total)
        return total.view(world_size, len(x) // world_size)[rank].clone()
"""

split_embedding = """
raises | looks up what it does not have | Rank 0: IndexError
    -     here = (text >= first) & (text < first + len(part))
    -     rows = torch.zeros(*text.shape, part.shape[1], device=device)
    -     rows[here] = part[text[here] - first]
    +     rows = part[text - first]
wrong | takes the nearest row for what it does not have | on ranks 0, 1 element [0, 0] is -42
    -     here = (text >= first) & (text < first + len(part))
    -     rows = torch.zeros(*text.shape, part.shape[1], device=device)
    -     rows[here] = part[text[here] - first]
    +     rows = part[(text - first).clamp(0, len(part) - 1)]
deadlock | leaves ranks without a part out | Rank 1 finished the function without it
    dist.all_reduce(rows) → if len(part) > 0: dist.all_reduce(rows)
forbidden | gathers the table | It calls comms.all_gather
    def split_embedding(part, first, text):
        return torch.cat(comms.all_gather(part))[text]
"""

centred = """
wrong | lets backward pass the all-reduce by | the gradient of x is wrong: element 0 is 0.5
    def centred(x):
        total = x.clone()
        dist.all_reduce(total)
        return x - total / world_size
wrong | averages twice on the way back | the gradient of x is wrong: element 0 is 0.558
    total = gradient.clone() → total = gradient / world_size
wrong | forgets to divide | on rank 0 element 0 is -2 | Sum.apply(x) / world_size → Sum.apply(x)
deadlock | lets rank 0 alone add up the gradients | Rank 0 waits in all_reduce
                  total = gradient.clone()
    -             dist.all_reduce(total)
    +             if rank == 0:
    +                 dist.all_reduce(total)
"""
