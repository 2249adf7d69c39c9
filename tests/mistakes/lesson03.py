"""Planted mistakes of lesson 03, in the form that `tests.mistakes` tells."""

broadcast_model = """
raises | hands the state to broadcast, as the tutorial does | Rank 0: TypeError
    def broadcast_model(model):
        state = model.state_dict() if rank == 0 else None
        dist.broadcast(state, src=0)
        model.load_state_dict(state)
wrong | forgets the buffers | on rank 1 element 0 in result['running_mean'] is 1.5
    [*model.parameters(), *model.buffers()] → model.parameters()
wrong | sends what the state dict has, which lacks the buffers that are not saved | element 0 in result['mask'] is 11
    [*model.parameters(), *model.buffers()] → model.state_dict().values()
wrong | forgets the integer buffer | on rank 1 element 0 in result['num_batches_tracked'] is 8
    dist.broadcast(tensor.detach(), src=0) → if tensor.is_floating_point(): dist.broadcast(tensor.detach(), src=0)
deadlock | calls on rank 0 only | Rank 1 finished the function without it
    dist.broadcast(tensor.detach(), src=0) → if rank == 0: dist.broadcast(tensor.detach(), src=0)
"""

train_until = """
deadlock | lets every rank look at its own loss | Rank 1 waits in all_reduce
    def train_until(step, good):
        steps = 1
        while step() >= good:
            steps += 1
        return steps
deadlock | tells the others only when it is time to stop | ranks disagree on the operation: rank 0 calls broadcast
    dist.broadcast(stop, src=0) → if stop.item(): dist.broadcast(stop, src=0)
wrong | stops at a loss that equals good | if the function stops where the loss is `good`
    step() < good → step() <= good
wrong | asks the last rank | looks at the last rank's loss, and not at rank 0's | src=0 → src=world_size - 1
wrong | waits for all ranks | or if it goes on until the losses of all ranks are low
    dist.broadcast(stop, src=0) → dist.all_reduce(stop, op=dist.ReduceOp.MIN)
wrong | stops with the first one | or if it stops as soon as any rank's loss is low
    dist.broadcast(stop, src=0) → dist.all_reduce(stop, op=dist.ReduceOp.MAX)
"""

deal = """
raises | scatters Python lists as if they were tensors | Rank 0: TypeError
    def deal(items):
        chunks = [items[r::world_size] for r in range(world_size)] if rank == 0 else None
        mine = torch.zeros(3, dtype=torch.int64, device=device)
        dist.scatter(mine, chunks, src=0)
        return mine.tolist()
wrong | returns the box with the list in it | on ranks 0, 1 the list has 1 entry | return mine[0] → return mine
wrong | cuts the list into blocks | on rank 0 element 1 is 1
    items[r::world_size] → items[r * len(items) // world_size : (r + 1) * len(items) // world_size]
deadlock | scatters on rank 0 only | Rank 1 finished the function without it
    dist.scatter_object_list(mine, chunks, src=0) → if rank == 0: dist.scatter_object_list(mine, chunks, src=0)
wrong | sends everything to everyone | bytes reach it, and its own items have 10,000
    def deal(items):
        box = [items]
        dist.broadcast_object_list(box, src=0)
        return box[0][rank::world_size]
wrong | scatters everything to everyone | only rank 0 may see the items of other ranks
    -     chunks = [items[r::world_size] for r in range(world_size)] if rank == 0 else None
    +     chunks = [items] * world_size if rank == 0 else None
          dist.scatter_object_list(mine, chunks, src=0)
    -     return mine[0]
    +     return mine[0][rank::world_size]
wrong | sends everything to each one | only rank 0 may see the items of other ranks
    def deal(items):
        if rank > 0:
            box = [None]
            dist.recv_object_list(box, src=0)
            return box[0][rank::world_size]
        for other in range(1, world_size):
            dist.send_object_list([items], dst=other)
        return items[::world_size]
wrong | gathers what rank 0 has | only rank 0 may see the items of other ranks
    def deal(items):
        return comms.all_gather(items)[0][rank::world_size]
"""

validate = """
deadlock | runs the wrapped model on rank 0 while the others wait in a barrier | ranks disagree on the operation
    def validate(model, batch):
        loss = None
        if rank == 0:
            loss = model(batch)
        dist.barrier()
        return loss
deadlock | still runs the wrapped model on rank 0 only | Rank 0 waits in broadcast | model.module(batch) → model(batch)
wrong | returns what each rank computes | if the function returns the loss of this rank's own batch
    def validate(model, batch):
        return model(batch)
wrong | averages over all ranks | if the function averages the losses of all ranks' batches
    -     if rank == 0:
    -         loss = model.module(batch)
    -     dist.broadcast(loss, src=0)
    -     return loss
    +     loss += model.module(batch)
    +     dist.all_reduce(loss)
    +     return loss / world_size
wrong | keeps the loss to rank 0 | on rank 1 element 0 is 0 | dist.broadcast(loss, src=0) → dist.barrier()
deadlock | broadcasts under the if | Rank 1 finished the function without it
    -     dist.broadcast(loss, src=0)
    +         dist.broadcast(loss, src=0)
"""

repair_gather_losses = """
wrong | returns a Python number | a float, and a tensor is asked for
    torch.stack(room).mean(dim=0) → torch.stack(room).mean(dim=0).item()
wrong | fills a list that nobody keeps | on rank 0 element 0 is 0
    loss, room, → loss, [torch.zeros_like(t) for t in room] if rank == 0 else None,
raises | brings a list on every rank | Rank 1: ValueError | if rank == 0 else None →
deadlock | gathers on rank 0 alone | Rank 1 finished the function without it
    dist.gather(loss, room, dst=0) → if rank == 0: dist.gather(loss, room, dst=0)
not as asked | receives one loss after the other | gather does it
    def repair_gather_losses(loss):
        if rank > 0:
            return dist.send(loss, dst=0)
        total, other = loss.clone(), torch.empty_like(loss)
        for source in range(1, world_size):
            dist.recv(other, src=source)
            total += other
        return total / world_size
forbidden | reduces instead | It calls dist.reduce
    def repair_gather_losses(loss):
        total = loss.clone()
        dist.reduce(total, dst=0)
        return total / world_size
"""

repair_reduce = """
deadlock | reduces on rank 0 alone | Rank 1 finished the function without it
    dist.reduce(total, dst=0) → if rank == 0: dist.reduce(total, dst=0)
raises | reads what reduce returns, which is None | Rank 0: TypeError | dist.reduce( → total = dist.reduce(
wrong | returns a Python number | a float, and a tensor is asked for
    total / world_size if rank == 0 → (total / world_size).item() if rank == 0
wrong | reduces the loss itself, not a copy | which was 2 and is 5 now | loss.detach().clone() → loss
not as asked | reduces twice, in halves | Rank 0 calls dist.reduce 2 times
    +     total /= 2
          dist.reduce(total, dst=0)
    +     again = loss.detach() / 2
    +     dist.reduce(again, dst=0)
    +     total += again
"""

accuracy = """
wrong | divides by the samples of rank 0 | on rank 0 element 0 is 0.625
    counts[0] / counts[1] → counts[0] / right.numel() / world_size
not as asked | reduces twice | Rank 0 calls dist.reduce 2 times
    def accuracy(right):
        correct, seen = right.sum().double(), torch.tensor(float(right.numel()), device=device)
        dist.reduce(correct, dst=0)
        dist.reduce(seen, dst=0)
        return correct / seen
not as asked | all-reduces | reduce does it, called once (with 4 ranks, the model got all samples wrong)
    dist.reduce(counts, dst=0) → dist.all_reduce(counts)
deadlock | reduces on rank 0 only | Rank 1 finished the function without it
    dist.reduce(counts, dst=0) → if rank == 0: dist.reduce(counts, dst=0)
not as asked | lets rank 1 have it | Rank 0 calls dist.reduce with rank 1 as the root | dst=0 → dst=1
"""

gather_predictions = """
raises | gathers tensors of unequal length | brings 3 elements
    def gather_predictions(mine):
        parts = [torch.zeros_like(mine) for _ in range(world_size)] if rank == 0 else None
        dist.gather(mine, parts, dst=0)
        if rank == 0:
            return torch.stack(parts, dim=1).flatten()
wrong | puts one rank's after the other's | on rank 0 element 1 is 2
    torch.stack(parts, dim=1).flatten() → torch.cat(parts)
wrong | returns the padding as well | on rank 0 the shape is (6,) | [: sum(sizes).item()] →
raises | makes room on every rank | Rank 1: ValueError | if rank == 0 else None →
costly | gives everything to everyone | Its busiest rank sends 3.04 S
    -     parts = [torch.zeros_like(padded) for _ in range(world_size)] if rank == 0 else None
    -     dist.gather(padded, parts, dst=0)
    +     parts = [torch.zeros_like(padded) for _ in range(world_size)]
    +     dist.all_gather(parts, padded)
forbidden | pickles the predictions | It calls dist.gather_object
    def gather_predictions(mine):
        parts = [None] * world_size if rank == 0 else None
        dist.gather_object(mine.tolist(), parts, dst=0)
        if rank == 0:
            return torch.tensor([parts[i % world_size][i // world_size] for i in range(sum(map(len, parts)))])
"""

scatter_uneven = """
wrong | returns the padding as well | on ranks 0, 1 the shape is (3,) | mine[: short + (rank < longer)] → mine
raises | scatters tensors of unequal length | scatter(
    -             room[: len(part)] = part
    +             pass
    +         padded = list(x.tensor_split(world_size))
deadlock | lets only rank 0 announce the length | ranks disagree on the operation: rank 0 calls scatter
    dist.broadcast(length, src=0) → if rank: dist.broadcast(length, src=0)
costly | broadcasts the whole, and everyone takes its part | Its busiest rank sends 2.02 S
    +     whole = x.clone() if rank == 0 else x.new_empty(length.item())
    +     dist.broadcast(whole, src=0)
    +     return whole.tensor_split(world_size)[rank]
          short, longer = divmod(length.item(), world_size)
forbidden | pickles the parts | It calls dist.scatter_object_list
    def scatter_uneven(x):
        box = [None]
        dist.scatter_object_list(box, list(x.tensor_split(world_size)) if rank == 0 else None, src=0)
        return box[0]
"""

broadcast_from_scatter_all_gather = """
wrong | returns the padding as well | on ranks 0, 1 the shape is (4,) | torch.cat(parts)[: len(x)] → torch.cat(parts)
raises | drops the elements that do not divide | Ranks 0, 1: RuntimeError
    -(-len(x) // world_size) → len(x) // world_size
wrong | joins the parts backwards | Ranks 0, 1 hold rank 0's elements 2, 3, 0, 1
    torch.cat(parts) → torch.cat(parts[::-1])
deadlock | all-gathers off the root only | Rank 1 waits in all_gather
    dist.all_gather(parts, mine) → if rank: dist.all_gather(parts, mine)
not as asked | scatters the same to everyone, and gathers nothing but that | Rank 0 calls dist.scatter 2 times
    def broadcast_from_scatter_all_gather(x):
        half = len(x) // 2
        got = []
        for part in (x[:half], x[half:]):
            mine = torch.empty_like(part)
            dist.scatter(mine, [part.clone()] * world_size if rank == 0 else None, src=0)
            got.append(mine)
        return torch.cat(got)
forbidden | calls broadcast | It calls dist.broadcast
    def broadcast_from_scatter_all_gather(x):
        x = x.clone()
        dist.broadcast(x, src=0)
        return x
"""

tree_broadcast = """
costly | lets the root serve one after the other | It takes 3 steps
    def tree_broadcast(x, root):
        got = x.clone()
        if rank == root:
            for other in range(world_size):
                if other != root:
                    dist.send(got, dst=other)
        else:
            dist.recv(got, src=root)
        return got
wrong | takes rank 0 for the root | Rank 0 holds rank 0's numbers where rank 1's belong
    (rank - root) % world_size → rank
deadlock | forgets that the last step may be incomplete | Rank 1 waits for rank 0 to receive
    and place + have < world_size →
forbidden | calls broadcast | It calls dist.broadcast
    +     return dist.broadcast(got, src=root) or got
          have = 1  # the places below this one have it
"""

tree_scatter = """
costly | lets rank 0 serve one after the other | It takes 3 steps
    def tree_scatter(x):
        row = x[rank].clone()
        if rank == 0:
            for other in range(1, world_size):
                dist.send(x[other], dst=other)
        else:
            dist.recv(row, src=0)
        return row
costly | broadcasts everything over a tree | Its busiest rank sends 2.0 S
    def tree_scatter(x):
        rows, have = x.clone(), 1
        while have < world_size:
            if rank < have and rank + have < world_size:
                dist.send(rows, dst=rank + have)
            elif have <= rank < 2 * have:
                dist.recv(rows, src=rank - have)
            have *= 2
        return rows[rank]
wrong | returns its own row | Rank 1 holds rank 1's numbers where rank 0's belong | return rows[rank] → return x[rank]
deadlock | lets the upper half go on as if it had everything | Rank 1 waits for rank 2 to receive
    (middle, high) → (middle, world_size)
forbidden | calls scatter | It calls dist.scatter
    def tree_scatter(x):
        row = x[rank].clone()
        dist.scatter(row, list(x) if rank == 0 else None, src=0)
        return row
"""
