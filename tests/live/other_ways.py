"""Not as the workbook solves its exercises, and right all the same."""

OTHER_WAYS = [
    (
        "fit_alpha_beta",
        """
def fit_alpha_beta(sizes, seconds):
    scale = sizes.max()
    columns = torch.stack([torch.ones_like(sizes), sizes / scale], 1) / seconds[:, None]
    alpha, beta = torch.linalg.lstsq(columns, torch.ones(len(sizes), 1, dtype=torch.float64)).solution.flatten()
    return torch.stack([alpha, beta / scale])
""",
    ),
    (
        "slow_servers",
        """
def slow_servers(lines):
    runs = [line.replace(",", " ").split() for mine in comms.all_gather(lines) for line in mine]
    limit = 0.75 * max(float(speed) for _, _, speed in runs)
    sound = {name for *pair, speed in runs if float(speed) >= limit for name in pair}
    left = [set(pair) - sound for *pair, speed in runs if float(speed) < limit]
    must = set().union(*(names for names in left if len(names) == 1))
    return [sorted(must), sorted(set().union(*left) - must)]
""",
    ),
    (
        "hello_sum",
        """
def hello_sum(x):
    return comms.all_reduce(x)
""",
    ),
    (
        "accuracy",
        """
def accuracy(right):
    counts = torch.tensor([right.sum(), right.numel()])
    dist.reduce(counts, dst=0)
    return (counts[0] / counts[1]).item()
""",
    ),
    (
        "hello_sum",
        """
def hello_sum(x):
    everyone = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(everyone, x)
    return sum(everyone)
""",
    ),
    (
        "save_then_load",
        """
def save_then_load(x, path):  # rank 0 tells each one, and each one tells rank 0
    import os

    if rank == 0:
        torch.save(x, path)
        for other in range(1, world_size):
            dist.send(torch.ones(1), dst=other)
    else:
        dist.recv(torch.empty(1), src=0)
    loaded = torch.load(path)
    dist.gather(torch.ones(1), [torch.empty(1) for _ in range(world_size)] if rank == 0 else None)
    if rank == 0:
        os.remove(path)
    return loaded
""",
    ),
    (
        "save_then_load",
        """
def save_then_load(x, path):
    from pathlib import Path

    file = Path(path)
    if rank == 0:
        torch.save(x, file)
    comms.barrier()
    loaded = torch.load(file)
    comms.barrier()
    if rank == 0:
        file.unlink()
    return loaded
""",
    ),
    (
        "tell_when_saved",
        """
def tell_when_saved(x, path):
    if rank == 0:
        with open(path, "wb") as file:
            torch.save(x, file)
    with open(comms.broadcast(path), "rb") as file:
        return torch.load(file)
""",
    ),
    (
        "cut_layers",
        """
def cut_layers(layers):
    return torch.arange(layers).tensor_split(world_size)[rank].tolist()
""",
    ),
    (
        "zero1_step",
        """
def zero1_step(params, weights, shard, optimizer):
    gradient = torch.cat([p.grad.flatten() for p in params]) / world_size
    gradient = torch.nn.functional.pad(gradient, (0, len(weights) - len(gradient)))
    shard.grad = torch.empty_like(shard)
    dist.reduce_scatter(shard.grad, list(gradient.chunk(world_size)))
    optimizer.step()
    dist.all_gather(list(weights.chunk(world_size)), shard.detach().clone())
    for p in params:
        p.grad.zero_()
""",
    ),
    (
        "bounded_sgd",
        """
def bounded_sgd(weights, gradient, updates, lr, bound, note):  # waits for its answers at the end
    if rank > 0:
        pulled = weights.clone()
        while not pulled.isnan().any():
            dist.send(gradient(pulled), dst=0)
            dist.recv(pulled, src=0)
        return
    push, held, steps, sent = torch.empty_like(weights), set(), [0] * (world_size - 1), []
    for _ in range(updates):
        worker = dist.recv(push)
        weights -= lr * push
        note(worker)
        steps[worker - 1] += 1
        held.add(worker)
        for w in [w for w in held if steps[w - 1] - min(steps) <= bound]:
            held.remove(w)
            sent.append(dist.isend(weights.clone(), w))
    for _ in range(1, world_size):
        dist.send(torch.full_like(weights, torch.nan), dst=held.pop() if held else dist.recv(push))
    for work in sent:
        work.wait()
""",
    ),
    (
        "bounded_sgd",
        """
def bounded_sgd(weights, gradient, updates, lr, bound, note):  # answers in batches
    if rank > 0:
        pulled = weights.clone()
        while not pulled.isnan().any():
            dist.send(gradient(pulled), dst=0)
            dist.recv(pulled, src=0)
        return
    push, held, steps = torch.empty_like(weights), set(), [0] * (world_size - 1)
    for _ in range(updates):
        worker = dist.recv(push)
        weights -= lr * push
        note(worker)
        steps[worker - 1] += 1
        held.add(worker)
        free = [w for w in held if steps[w - 1] - min(steps) <= bound]
        held.difference_update(free)
        batch = [dist.P2POp(dist.isend, weights, w) for w in free]
        for work in dist.batch_isend_irecv(batch) if batch else []:
            work.wait()
    for _ in range(1, world_size):
        dist.send(torch.full_like(weights, torch.nan), dst=held.pop() if held else dist.recv(push))
""",
    ),
    (
        "backup_sgd",
        """
def backup_sgd(weights, gradient, steps, need, lr, note):  # sends in batches
    told = torch.cat([weights.new_zeros(1), weights])

    def exchange(*batch):
        for work in dist.batch_isend_irecv(list(batch)):
            work.wait()

    if rank > 0:
        while told[0] < steps:
            mine = torch.cat([told[:1], gradient(told[1:])])
            exchange(dist.P2POp(dist.isend, mine, 0), dist.P2POp(dist.irecv, told, 0))
        return
    push, counted = torch.empty_like(told), {}
    for step in range(steps):
        while len(counted) < need:
            worker = dist.recv(push)
            if push[0] < step:
                exchange(dist.P2POp(dist.isend, told, worker))
            else:
                counted[worker] = push[1:].clone()
                note(worker)
        weights -= lr * sum(counted.values()) / need
        told = torch.cat([weights.new_tensor([step + 1]), weights])
        exchange(*(dist.P2POp(dist.isend, told, worker) for worker in counted))
        counted.clear()
    for _ in range(world_size - 1 - need):
        exchange(dist.P2POp(dist.isend, told, dist.recv(push)))
""",
    ),
    (
        "zero1_step",
        """
def zero1_step(params, weights, shard, optimizer):  # adds up by itself what a reduce-scatter would
    gradient = torch.cat([p.grad.flatten() for p in params])
    gradient = torch.nn.functional.pad(gradient, (0, len(weights) - len(gradient)))
    parts = torch.empty_like(gradient)
    dist.all_to_all_single(parts, gradient)
    shard.grad = parts.view(world_size, -1).mean(0)
    optimizer.step()
    dist.all_gather_single(weights, shard.detach())
    for p in params:
        p.grad = None
""",
    ),
    (
        "horovod_step",
        """
def horovod_step(parameters, lr, passes):
    for p in parameters:
        p.grad = comms.all_reduce(torch.zeros_like(p) if p.grad is None else p.grad).detach() / world_size
        p.data.sub_(p.grad, alpha=lr)
""",
    ),
    (
        "exchange_tokens",
        """
def exchange_tokens(x, give, take):
    return torch.cat(comms.all_to_all(list(x.split(give))))
""",
    ),
    (
        "capped_mixture",
        """
def capped_mixture(x, h, chosen, gate, capacity, compute, exchange):
    rooms = []
    for expert in range(world_size):
        mine = h[chosen == expert][:capacity]
        rooms.append(torch.cat([mine, h.new_zeros(capacity - len(mine), h.shape[1])]))
    equal = [capacity] * world_size
    back = exchange(compute(exchange(torch.cat(rooms), equal, equal)), equal, equal).split(equal)
    rows = list(x)
    for expert in range(world_size):
        for place, token in enumerate((chosen == expert).nonzero()[:capacity, 0].tolist()):
            rows[token] = rows[token] + gate[token] * back[expert][place]
    return torch.stack(rows)
""",
    ),
    (
        "nccl_reduce_scatter",
        """
def nccl_reduce_scatter(sendbuff, recvbuff, recvcount):
    total = sendbuff.clone()
    dist.all_reduce(total)
    recvbuff[:recvcount] = total[rank * recvcount : (rank + 1) * recvcount]
""",
    ),
    (
        "allgatherv",
        """
def allgatherv(mine, everything, counts, displs):
    for r, (count, displ) in enumerate(zip(counts, displs)):
        part = mine.clone() if r == rank else mine.new_empty(count)
        dist.broadcast(part, src=r)
        everything[displ : displ + count] = part
""",
    ),
    (
        "read_part",
        """
def read_part(file, dtype, shape, offset, dim, start, end):
    def read(place, count):
        file.seek(offset + place * dtype.itemsize)
        return torch.frombuffer(bytearray(file.read(count * dtype.itemsize)), dtype=dtype) if count else torch.empty(0)

    if dim:
        return torch.stack([read(i * shape[1] + start, end - start) for i in range(shape[0])]).to(device)
    row = torch.Size(shape[1:]).numel()
    return read(start * row, (end - start) * row).to(dtype).view(end - start, *shape[1:]).to(device)
""",
    ),
    (
        "clip_shards",
        """
def clip_shards(shards, most):
    total = sum((s.grad.double().norm() ** 2 for s in shards), torch.zeros((), dtype=torch.float64))
    dist.all_reduce(total)
    norm = float(total) ** 0.5
    if norm > most:
        for s in shards:
            s.grad.mul_(most / norm)
    return torch.tensor(norm)
""",
    ),
    (
        "accumulate",
        """
def accumulate(ddp, batches, loss_of):
    for batch in batches:
        with ddp.no_sync():
            (loss_of(ddp, batch) / len(batches)).backward()
    flat = torch.cat([p.grad for p in ddp.parameters()])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    for p, mean in zip(ddp.parameters(), flat.split([p.numel() for p in ddp.parameters()])):
        p.grad.copy_(mean)
""",
    ),
    (
        "overlapped",
        """
def overlapped(buckets):
    owner = {p: i for i, bucket in enumerate(buckets) for p in bucket}
    missing, turn, futures = [len(bucket) for bucket in buckets], [0], []

    def ready(p):
        missing[owner[p]] -= 1
        while turn[0] < len(buckets) and missing[turn[0]] == 0:
            flat = torch.cat([q.grad.flatten() for q in buckets[turn[0]]]) / world_size
            futures.append(dist.all_reduce(flat, async_op=True).get_future())
            turn[0] += 1

    def finish():
        for bucket, future in zip(buckets, futures):
            for p, part in zip(bucket, future.wait()[0].split([p.numel() for p in bucket])):
                p.grad = part.view_as(p)
        missing[:], turn[0] = [len(bucket) for bucket in buckets], 0
        futures.clear()

    for p in owner:
        p.register_post_accumulate_grad_hook(ready)
    return finish
""",
    ),
    (
        "save_whole",
        """
def save_whole(state, path):
    if rank == 0:
        import os, pathlib

        file = pathlib.Path(path)
        new = file.with_suffix(".new")
        torch.save(state, new)
        handle = os.open(new, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
        new.rename(file)
    dist.barrier()
""",
    ),
    *(
        (
            "save_whole",
            f"""
def save_whole(state, path):
    import os

    if rank == 0:
        with open(f"{{path}}.new", "wb") as file:
            torch.save(state, file)
            file.flush()
            {sync}
        os.replace(f"{{path}}.new", path)
    dist.barrier()
""",
        )
        for sync in ("os.fdatasync(file.fileno())", "os.sync()")
    ),
    (
        "mean_in_background",
        """
def mean_in_background(x):
    mean = x / world_size
    work = dist.all_reduce(mean, async_op=True)
    while not work.is_completed():
        pass
    work.wait()
    return mean
""",
    ),
    (
        "step_or_skip",
        """
def step_or_skip(gradient):  # what is not finite on one rank is not finite in the sum
    total = gradient.clone()
    dist.all_reduce(total)
    return total if total.isfinite().all() else torch.zeros_like(total)
""",
    ),
    (
        "stage_forward",
        """
def stage_forward(stage, batch, parts, send):
    x, targets = batch
    if stage.before is not None:
        x = stage.room(len(targets))
        dist.irecv(x, stage.before).wait()
        x = x.requires_grad_()
    y = stage(x)
    if stage.after is None:
        return x, stage.loss(y, targets).div(parts)
    send(y.detach(), dst=stage.after)
    return x, y
""",
    ),
    (
        "stage_forward",
        """
def stage_forward(stage, batch, parts, send):
    x, targets = batch
    if stage.before is not None:
        x = stage.room(len(targets))
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, stage.before)]):
            work.wait()
        x.requires_grad_()
    y = stage(x)
    if stage.after is not None:
        send(y.data, stage.after, None, 0)
        return x, y
    return x, stage.loss(y, targets) / parts
""",
    ),
    (
        "stage_backward",
        """
def stage_backward(stage, x, y, send):
    dy = None
    if stage.after is not None:
        dy = torch.empty_like(y)
        dist.irecv(dy, group_src=stage.after, tag=1).wait()
    y.backward(dy)
    if stage.before is not None:
        send(x.grad, dst=stage.before, group=None, tag=1)
""",
    ),
    (
        "gather_sequence",
        """
def gather_sequence(x):
    import torch.distributed._functional_collectives as funcol

    return funcol.wait_tensor(funcol.all_gather_tensor_autograd(x.contiguous(), 1, dist.group.WORLD))
""",
    ),
    (
        "average_gradients",
        """
def average_gradients(model):
    for p in model.parameters():
        p.grad = comms.all_reduce(p.grad) / world_size
""",
    ),
    (
        "average_in_team",
        """
def average_in_team(model, team):
    dist.all_reduce_coalesced([p.grad for p in model.parameters()], group=team)
    for p in model.parameters():
        p.grad.div_(len(dist.get_process_group_ranks(team)))
""",
    ),
    (
        "from_member",
        """
def from_member(x, team, member):
    return comms.broadcast(x, src=dist.get_global_rank(team, member), group=team)
""",
    ),
    (
        "two_sums",
        """
def two_sums(x):
    of_leaders, of_all = x.clone(), x.clone()
    if rank % 2 == 0:
        leaders = dist.new_group(range(0, world_size, 2), use_local_synchronization=True)
        dist.all_reduce(of_leaders, group=leaders)
    everyone = dist.new_group(range(world_size))
    dist.all_reduce(of_all, group=everyone)
    return of_leaders, of_all
""",
    ),
    (
        "who_is_left",
        """
def who_is_left(alive):
    return [r for r, flag in enumerate(comms.all_gather(alive)) if flag.item()]
""",
    ),
    (
        "ring_shift",
        """
def ring_shift(x):
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    got = torch.zeros_like(x)
    if rank == 0:
        dist.recv(got, src=left)
        dist.send(x, dst=right)
    else:
        dist.send(x, dst=right)
        dist.recv(got, src=left)
    return got
""",
    ),
    (
        "ring_shift",
        """
def ring_shift(x):
    got = torch.empty_like(x)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, got, left), dist.P2POp(dist.isend, x, right)]):
        work.wait()
    return got
""",
    ),
    (
        "halo",
        """
def halo(x):  # blocking: pairs that begin with an even rank, then those that begin with an odd one
    ends = {-1: x.new_zeros(1), +1: x.new_zeros(1)}
    for first in (0, 1):
        side = +1 if rank % 2 == first else -1
        if 0 <= rank + side < world_size:
            mine = x[-1:].clone() if side == 1 else x[:1].clone()
            if side == 1:
                dist.send(mine, dst=rank + 1)
                dist.recv(ends[1], src=rank + 1)
            else:
                dist.recv(ends[-1], src=rank - 1)
                dist.send(mine, dst=rank - 1)
    return torch.cat([ends[-1], x, ends[1]])
""",
    ),
    (
        "pipeline",
        """
def pipeline(first, second, weight):  # one forward, one backward on the last stage; gradients need no graph
    total, kept, sending = torch.zeros_like(weight), [], []

    def back(h, out):
        slope = torch.ones_like(out)
        if rank < world_size - 1:
            dist.recv(slope, src=rank + 1)
        slope = slope * (1 - out**2)
        total.add_(slope * h)
        if rank > 0:
            sending.append(dist.isend(slope * weight, dst=rank - 1))

    for h in (first, second):
        if rank > 0:
            dist.recv(h, src=rank - 1)
        out = torch.tanh(weight * h)
        kept.append((h, out))
        if rank < world_size - 1:
            sending.append(dist.isend(out, dst=rank + 1))
        else:
            back(h, out)
    for h, out in kept if rank < world_size - 1 else ():
        back(h, out)
    for work in sending:
        work.wait()
    return total
""",
    ),
    (
        "prefix_sum",
        """
def prefix_sum(x):  # each block of two, four, … ranks passes its total on to the whole next block: dissemination
    total = x
    for distance in (2**k for k in range(world_size.bit_length()) if 2**k < world_size):
        exchange, before = [], x.new_zeros(x.shape)
        if rank >= distance:
            exchange.append(dist.P2POp(dist.irecv, before, rank - distance))
        if rank + distance < world_size:
            exchange.append(dist.P2POp(dist.isend, total.contiguous(), rank + distance))
        for work in dist.batch_isend_irecv(exchange) if exchange else ():
            work.wait()
        total = total + before
    return total.clone()
""",
    ),
    (
        "send_uneven",
        """
def send_uneven(x):
    sending = [dist.isend(torch.tensor([len(x)]), dst=(rank + 1) % world_size, tag=1)]
    length = torch.zeros(1, dtype=torch.int64)
    dist.recv(length, src=(rank - 1) % world_size, tag=1)
    sending.append(dist.isend(x, dst=(rank + 1) % world_size, tag=2))
    got = torch.zeros(length.item(), dtype=x.dtype)
    dist.recv(got, src=(rank - 1) % world_size, tag=2)
    for work in sending:
        work.wait()
    return got
""",
    ),
    (
        "broadcast_model",
        """
def broadcast_model(model):
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    with torch.no_grad():
        for name in sorted(tensors, reverse=True):
            tensors[name].copy_(comms.broadcast(tensors[name]))
""",
    ),
    (
        "broadcast_model",
        """
def broadcast_model(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.data, src=0)
""",
    ),
    (
        "broadcast_model",
        """
def broadcast_model(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        if rank > 0:
            dist.recv(tensor.detach(), src=rank - 1)
        if rank < world_size - 1:
            dist.send(tensor.detach(), dst=rank + 1)
""",
    ),
    (
        "train_until",
        """
def train_until(step, good):
    steps, more = 0, True
    while more:
        more = comms.broadcast(step() >= good)
        steps += 1
    return steps
""",
    ),
    (
        "train_until",
        """
def train_until(step, good):
    for steps in range(1, 10**6):
        losses = comms.all_gather(step())
        if losses[0] < good:
            return steps
""",
    ),
    (
        "deal",
        """
def deal(items):
    return comms.scatter([items[r::world_size] for r in range(world_size)] if rank == 0 else None)
""",
    ),
    (
        "deal",
        """
def deal(items):  # as tensors of bytes, whose length is told to all
    import pickle

    parts = [pickle.dumps(items[r::world_size]) for r in range(world_size)] if rank == 0 else []
    length = torch.tensor(max(map(len, parts), default=0))
    dist.broadcast(length, src=0)
    mine = torch.zeros(length, dtype=torch.uint8)
    dist.scatter(mine, [torch.tensor(list(part.ljust(length))).byte() for part in parts] or None, src=0)
    return pickle.loads(bytes(mine.tolist()))
""",
    ),
    (
        "deal",
        """
def deal(items):
    if rank > 0:
        mine = [None]
        dist.recv_object_list(mine, src=0)
        return mine[0]
    for other in range(1, world_size):
        dist.send_object_list([items[other::world_size]], dst=other)
    return items[::world_size]
""",
    ),
    (
        "repair_reduce",
        """
def repair_reduce(loss):
    own = loss.clone()
    dist.reduce(loss, dst=0, op=dist.ReduceOp.AVG)
    return own if rank else loss
""",
    ),
    (
        "validate",
        """
def validate(model, batch):
    loss = model(batch)
    dist.broadcast(loss, src=0)
    return loss
""",
    ),
    (
        "gather_predictions",
        """
def gather_predictions(mine):
    longest, total = torch.tensor(len(mine)), torch.tensor(len(mine))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    dist.all_reduce(total)
    room = torch.zeros(longest, dtype=torch.int64)
    room[: len(mine)] = mine
    parts = [torch.zeros_like(room) for _ in range(world_size)] if rank == 0 else []
    dist.gather(room, parts or None)
    order = [int(parts[i % world_size][i // world_size]) for i in range(total)] if rank == 0 else []
    return torch.tensor(order, dtype=torch.int64)
""",
    ),
    (
        "broadcast_from_scatter_all_gather",
        """
def broadcast_from_scatter_all_gather(x):
    size = len(x) // world_size + 1
    mine = x.new_zeros(size)
    rooms = None
    if rank == 0:
        rooms = [x.new_zeros(size) for _ in range(world_size)]
        for room, part in zip(rooms, x.tensor_split(world_size)):
            room[: len(part)] = part
    dist.scatter(mine, rooms, src=0)
    parts = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(parts, mine)
    sizes = [len(part) for part in x.tensor_split(world_size)]
    return torch.cat([part[:s] for part, s in zip(parts, sizes)])
""",
    ),
    (
        "tree_broadcast",
        """
def tree_broadcast(x, root):
    got, distance, place = x.clone(), 1, (rank - root) % world_size
    while 2 * distance < world_size:
        distance *= 2
    while distance:  # the far ones first
        if place % (2 * distance) == 0 and place + distance < world_size:
            dist.send(got, dst=(rank + distance) % world_size)
        elif place % (2 * distance) == distance:
            dist.recv(got, src=(rank - distance) % world_size)
        distance //= 2
    return got
""",
    ),
    (
        "lean_reduce_scatter",
        """
def lean_reduce_scatter(x):
    chunks = list(x.chunk(world_size)) if len(x) else [x] * world_size
    got = [torch.empty_like(chunks[0]) for _ in range(world_size)]
    dist.all_to_all(got, chunks)
    return sum(got[1:], got[0])
""",
    ),
    (
        "average_ints",
        """
def average_ints(x):
    total = x.double()
    dist.all_reduce(total, op=dist.ReduceOp.AVG)
    return total
""",
    ),
    (
        "barrier_by_hand",
        """
def barrier_by_hand():
    distance = 1
    while distance < world_size:
        token = torch.zeros(1)
        exchange = [
            dist.P2POp(dist.irecv, torch.zeros(1), (rank + distance) % world_size),
            dist.P2POp(dist.isend, token, (rank - distance) % world_size),
        ]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        distance *= 2
""",
    ),
    (
        "naive_all_reduce",
        """
def naive_all_reduce(x):
    total = x.clone()
    for other in range(world_size):
        if other != rank:
            sending, room = dist.isend(x, dst=other), torch.empty_like(x)
            dist.recv(room, src=other)
            sending.wait()
            total += room
    return total
""",
    ),
    (
        "ring_all_reduce",
        """
def ring_all_reduce(x):  # in the order of NCCL's ring
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = [chunk.clone() for chunk in x.tensor_split(world_size)]
    for step in range(2 * (world_size - 1)):
        out, into = (rank - step - 1) % world_size, (rank - step - 2) % world_size
        room = torch.empty_like(chunks[into])
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, chunks[out], right), dist.P2POp(dist.irecv, room, left)])
        for work in works:
            work.wait()
        chunks[into] = chunks[into] + room if step < world_size - 1 else room
    return torch.cat(chunks)
""",
    ),
    (
        "halving_doubling",
        """
def halving_doubling(x):  # next neighbours first
    def swap(out, room, partner):
        works = [dist.irecv(room, src=partner), dist.isend(out, dst=partner)]
        for work in works:
            work.wait()
        return room

    parts, distance, kept = list(x.tensor_split(world_size)), 1, set(range(world_size))
    parts = [part.clone() for part in parts]
    while distance < world_size:
        partner = rank ^ distance
        give = sorted(c for c in kept if c & distance != rank & distance)
        keep = sorted(kept - set(give))
        room = swap(torch.cat([parts[c] for c in give]), torch.cat([parts[c] for c in keep]), partner)
        for c, part in zip(keep, room.split([len(parts[c]) for c in keep])):
            parts[c] += part
        kept, distance = set(keep), distance * 2
    while distance > 1:
        distance //= 2
        partner = rank ^ distance
        mine = sorted(kept)
        theirs = [c ^ distance for c in mine]
        room = swap(torch.cat([parts[c] for c in mine]), torch.cat([parts[c] for c in theirs]), partner)
        for c, part in zip(theirs, room.split([len(parts[c]) for c in theirs])):
            parts[c] = part
        kept |= set(theirs)
    return torch.cat(parts)
""",
    ),
    (
        "stage_memory",
        """
def stage_memory(layers, width, tokens, data, tensor, pipe, micro, zero, sequence):
    numbers = torch.tensor(12.0 * width * width, dtype=torch.float64) * (layers // pipe) / tensor
    shards = torch.tensor([data if zero > 2 else 1, data if zero > 1 else 1, data if zero > 0 else 1])
    held = torch.tensor([2.0, 2.0, 12.0], dtype=torch.float64) * numbers / shards
    whole, cut = (0, 34) if sequence else (10, 24)
    kept = sum((whole + cut / tensor) * width * tokens // data // micro for _ in range(layers // pipe))
    kept *= micro if micro < pipe else pipe
    return dict(zip(("weights", "gradients", "optimizer"), held.tolist())) | {"activations": float(kept)}
""",
    ),
    (
        "mates",
        """
def mates(order, sizes, rank, along):
    ranks = torch.arange(torch.tensor([sizes[name] for name in order]).prod()).reshape([sizes[name] for name in order])
    rows = ranks.movedim(order.index(along), -1).reshape(-1, sizes[along])
    return rows[(rows == rank).any(1)].flatten().tolist()
""",
    ),
    (
        "leaves_host",
        """
def leaves_host(groups, size, per_host):
    most = 1 + max(r for ranks in groups for r in ranks) // per_host
    out = torch.zeros(most, dtype=torch.float64)
    for ranks in groups:
        for i in range(len(ranks)):
            if ranks[i - 1] // per_host != ranks[i] // per_host:
                out[ranks[i - 1] // per_host] += 2 * size - 2 * size / len(ranks)
    return out.max().item()
""",
    ),
    (
        "fewest_micro",
        """
def fewest_micro(rows, data, pipe, most):
    mine, needed = rows // data, (pipe - 1) / most - (pipe - 1)
    enough = [m for m in range(1, mine + 1) if mine / m == mine // m and m >= needed - 1e-9]
    return min(enough) if enough else None
""",
    ),
    (
        "what_is_wrong",
        """
def what_is_wrong(gpus, per_host, heads, layers, rows, data, tensor, pipe, micro):
    found = []
    if gpus / data / tensor / pipe != 1:
        found.append("gpus")
    for name, number, parts in (("heads", heads, tensor), ("layers", layers, pipe), ("rows", rows, data * micro)):
        if number // parts * parts != number:
            found.append(name)
    teams = [{r // per_host for r in range(first, first + tensor)} for first in range(0, 60 * tensor, tensor)]
    return found + ["host"] * any(len(hosts) > 1 for hosts in teams)
""",
    ),
    (
        "meet_in_kernel",
        """
import triton
import triton.language as tl
from workbook.tools.rank.kernels import buffer, flag


@triton.jit
def meet_in_kernel(flags, rank, world_size):  # a flag counts
    tl.debug_barrier()
    for other in range(world_size):
        tl.atomic_add(flag(flags, other, rank, world_size), 1, sem="release", scope="sys")
    for other in range(world_size):
        mine = flag(flags, rank, other, world_size)
        while tl.atomic_add(mine, 0, sem="acquire", scope="sys") < 1:
            pass
        tl.atomic_add(mine, -1, sem="relaxed", scope="sys")
""",
    ),
    (
        "meet_in_kernel",
        """
import triton
import triton.language as tl
from workbook.tools.rank.kernels import buffer, flag


@triton.jit
def meet_in_kernel(flags, rank, world_size):  # rank 0 hears all, then tells all
    tl.debug_barrier()
    if rank == 0:
        for other in range(1, world_size):
            while tl.atomic_cas(flag(flags, 0, other, world_size), 1, 0, sem="acq_rel", scope="sys") != 1:
                pass
        for other in range(1, world_size):
            tl.atomic_xchg(flag(flags, other, 0, world_size), 1, sem="release", scope="sys")
    else:
        tl.atomic_xchg(flag(flags, 0, rank, world_size), 1, sem="release", scope="sys")
        while tl.atomic_cas(flag(flags, rank, 0, world_size), 1, 0, sem="acquire", scope="sys") != 1:
            pass
    tl.debug_barrier()
""",
    ),
    (
        "one_shot",
        """
import triton
import triton.language as tl
from workbook.tools.rank.kernels import buffer, flag, meet


@triton.jit
def one_shot(x, out, buffers, flags, size, rank, world_size, ACC: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    tl.store(buffer(buffers, rank, x) + at, tl.load(x + at, mask=mask), mask=mask)
    meet(flags, rank, world_size)
    r = tl.arange(0, 4)  # all buffers in one load
    begins = tl.load(buffers + r, mask=r < world_size, other=0).to(x.dtype)
    tile = (r < world_size)[:, None] & mask[None, :]
    found = tl.load(begins[:, None] + at[None, :], mask=tile, other=0).to(ACC)
    tl.store(out + at, tl.sum(found, axis=0).to(x.dtype.element_ty), mask=mask)
    meet(flags, rank, world_size)
""",
    ),
    (
        "two_shot",
        """
import triton
import triton.language as tl
from workbook.tools.rank.kernels import buffer, flag, meet


@triton.jit
def two_shot(x, out, buffers, flags, size, rank, world_size, ACC: tl.constexpr, BLOCK: tl.constexpr):
    chunk = tl.cdiv(size, world_size)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = rank * chunk + at
    mask = (at < chunk) & (first < size)
    for c in range(world_size):
        place = c * chunk + at
        inside = (at < chunk) & (place < size)
        tl.store(buffer(buffers, rank, x) + place, tl.load(x + place, mask=inside), mask=inside)
    meet(flags, rank, world_size)
    total = tl.zeros([BLOCK], ACC)
    for other in range(world_size):
        total += tl.load(buffer(buffers, other, x) + first, mask=mask).to(ACC)
    for other in range(world_size):  # each puts its sum into every buffer, and reads none but its own
        tl.store(buffer(buffers, other, x) + first, total, mask=mask)
    meet(flags, rank, world_size)
    for c in range(world_size):
        place = c * chunk + at
        inside = (at < chunk) & (place < size)
        tl.store(out + place, tl.load(buffer(buffers, rank, x) + place, mask=inside), mask=inside)
    meet(flags, rank, world_size)
""",
    ),
    (
        "pass_on",
        """
import triton
import triton.language as tl
from workbook.tools.rank.kernels import buffer, flag


@triton.jit
def pass_on(x, out, buffers, flags, pieces, right, rank, left, world_size, SLOT: tl.constexpr):
    to, here = buffer(buffers, right, x), buffer(buffers, rank, x)
    sent, came = flag(flags, right, rank, world_size), flag(flags, rank, left, world_size)
    at = tl.arange(0, SLOT)
    for piece in range(pieces):
        mine = tl.load(x + piece * SLOT + at)
        while tl.atomic_add(sent, 0, sem="acquire", scope="sys") % 2 == 1:  # odd: full
            pass
        tl.store(to + at, mine)
        tl.debug_barrier()
        tl.atomic_add(sent, 1, sem="acq_rel", scope="sys")
        while tl.atomic_add(came, 0, sem="acquire", scope="sys") % 2 == 0:
            pass
        tl.store(out + piece * SLOT + at, tl.load(here + at))
        tl.debug_barrier()
        tl.atomic_add(came, 1, sem="release", scope="sys")
""",
    ),
    (
        "tell_all",
        """
import triton
import triton.language as tl
from workbook.tools.rank.kernels import buffer, flag


@triton.jit
def tell_all(x, out, buffers, flags, rank, world_size, BLOCK: tl.constexpr):  # one barrier for all
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if rank == 0:
        mine = tl.load(x + at)
        for other in range(world_size):
            tl.store(buffer(buffers, other, x) + at, mine)
        tl.debug_barrier()
        for other in range(world_size):
            tl.atomic_xchg(flag(flags, other, 0, world_size), 1, sem="release", scope="sys")
    while tl.atomic_cas(flag(flags, rank, 0, world_size), 1, 0, sem="acquire", scope="sys") != 1:
        pass
    tl.store(out + at, tl.load(buffer(buffers, rank, x) + at))
""",
    ),
]
