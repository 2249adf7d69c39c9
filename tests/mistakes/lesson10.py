"""Planted mistakes of lesson 10, in the form that `tests.mistakes` tells."""

expected_slowest = """
wrong | knows its own times only | on rank 0 element 0 is 25 | torch.cat(comms.all_gather(seconds)) → seconds
wrong | takes the longest of all | on ranks 0, 1 element 0 is 30 | (times * below.diff()).sum() → times.max()
wrong | does not sort | on ranks 0, 1 element 0 is 13.75 | .sort().values →
raises | takes all lists to be as long as its own | Rank 0 brings 1 element to all_gather
    -     times = torch.cat(comms.all_gather(seconds)).sort().values
    +     everyone = [torch.empty_like(seconds) for _ in range(world_size)]
    +     dist.all_gather(everyone, seconds)
    +     times = torch.cat(everyone).sort().values
"""

name_the_cause = """
wrong | takes the median of the steps, and misses what is rare | on ranks 0, 1 'throttling' comes back in result[1]
    rest]).mean(1) → rest]).median(1).values
wrong | takes who is many times slower in whatever is small | on ranks 0, 1 element 0 in result[0] is 0
    (table - table.median(0).values) → (table / table.median(0).values)
wrong | calls a full shard a slow device | on ranks 0, 1 'throttling' comes back in result[1]
    "throttling" if slower > more else "shards" → "throttling"
wrong | calls a slow device with one row more a full shard | on ranks 0, 1 'shards' comes back in result[1]
    slower > more → more == 1
not as asked | gathers column by column | Rank 0 makes 4 calls that communicate, comms.all_gather
    -     everyone = [torch.empty_like(mine) for _ in range(world_size)]
    -     dist.all_gather(everyone, mine)
    -     table = torch.stack(everyone)  # a row per rank
    +     table = torch.stack([torch.cat(comms.all_gather(column.reshape(1))) for column in mine], 1)  # a row per rank
deadlock | gathers on rank 0 alone | Rank 1 finished the function without it
    dist.all_gather(everyone, mine) → if rank == 0: dist.all_gather(everyone, mine)
"""

asynchronous_sgd = """
wrong | serves the workers in rank order | rank 0 waits for a gradient of rank 1, but it is rank
    -         for _ in range(updates):
    -             worker = dist.recv(push)
    +         for i in range(updates):
    +             worker = dist.recv(push, src=1 + i % (world_size - 1))
deadlock | answers only once a gradient of every worker is there | Rank 0 waits for any rank to send
    -             dist.send(weights, dst=worker)
    +             waiting = [*waiting, worker] if _ else [worker]
    +             if len(waiting) % (world_size - 1) == 0:
    +                 for one in waiting[1 - world_size :]:
    +                     dist.send(weights, dst=one)
wrong | applies a gradient twice | on rank 0 element 0 in result[0] is 8
    weights -= lr * push → weights -= lr * (push + push)
wrong | has workers that do not even look whether to stop | it computes another gradient, where all updates are done
    dist.recv(pulled, src=0) → dist.recv(torch.empty_like(pulled), src=0)
wrong | notes nobody | on rank 0 the list in result[1] has 0 entries | note(worker) →
wrong | makes new weights | its `weights` are what they were. Move them in place
    weights -= lr * push → weights = weights - lr * push
"""

replay_arrivals = """
wrong | lets workers compute with the newest weights | two workers: on ranks 0, 1 element 0 in result[0] is 3.68
    gradient(pulled[worker], → gradient(weights,
wrong | has workers that never pull | on ranks 0, 1 element 2 in result[1] is 2
    pulled[worker], version[worker] = weights, update + 1 →
wrong | counts a worker's own update | on ranks 0, 1 element 0 in result[1] is 1
    update - version[worker] → update + 1 - version[worker]
raises | takes the first worker to be worker 0 | Ranks 0, 1: KeyError
    gradient(pulled[worker], → gradient(pulled[worker - 1],
"""

local_sgd = """
wrong | forgets the division | if the function adds up the weights, and does not divide | weights /= world_size →
wrong | leaves the last steps alone | if the function takes no mean after the last step | or step == steps - 1 →
wrong | counts from 0 | if the function takes the mean after steps 0, `every` | (step + 1) % every → step % every
wrong | averages the gradients | if the function averages the gradients, and not the weights
    def local_sgd(weights, gradient, steps, every, lr):
        for step in range(steps):
            slope = gradient(weights, step)
            if (step + 1) % every == 0 or step == steps - 1:
                dist.all_reduce(slope)
                slope /= world_size
            weights -= lr * slope
        return weights
wrong | trains a copy | those that it was given are not changed
    +     weights = weights.clone()
          for step in range(steps):
not as asked | averages twice at the end | Rank 0 makes 3 calls that communicate, dist.all_reduce
    +     dist.all_reduce(weights)
    +     weights /= world_size
          return weights
deadlock | lets rank 0 alone make the call | Rank 1 finished the function without it
    dist.all_reduce(weights) → if rank == 0: dist.all_reduce(weights)
"""

balanced_gradient = """
wrong | gives all the same number of rows | all could be done in | [1 / seconds] → [1.0]
wrong | forgets who is slow with three ranks | computes for 8 s, and all could be done in 5 s
    [1 / seconds] → [1 / seconds if world_size == 2 else 1.0]
wrong | averages the ranks' means | on ranks 0, 1 element 0 is 6.5
    -     total = gradient(first, last) * (last - first)
    +     total = gradient(first, last)
          dist.all_reduce(total)
    -     return total / rows
    +     return total / world_size
wrong | rounds each share by itself | row 60 of 61 is on no rank
    def balanced_gradient(gradient, rows, seconds):
        speeds = [1 / s for s in comms.all_gather(seconds)]
        shares = [int(rows * speed / sum(speeds)) for speed in speeds]
        first = sum(shares[:rank])
        total = gradient(first, first + shares[rank]) * shares[rank]
        dist.all_reduce(total)
        return total / rows
wrong | counts a border row on both sides | more than one rank
    gradient(first, last) * → gradient(first, min(last + 1, rows)) *
deadlock | lets rank 0 alone make the call | Rank 0 waits in all_reduce
    dist.all_reduce(total) → if rank == 0: dist.all_reduce(total)
"""

diloco_round = """
wrong | turns the outer gradient round | on ranks 0, 1 element 0 in result[0] is -0.653
    start - p.detach() → p.detach() - start
wrong | sums the outer gradients | on ranks 0, 1 element 0 in result[0] is 1.30 | outward /= world_size →
wrong | begins each round with a new inner optimizer | on ranks 0, 1 element 0 in result[0] is 2.37
    +     inner.state.clear()
          for loss in losses:
deadlock | lets rank 0 alone make the call | Rank 1 finished the function without it
    dist.all_reduce(outward) → if rank == 0: dist.all_reduce(outward)
"""

bounded_sgd = """
wrong | lets them go one step too far | It is 2 steps ahead of the slowest worker, and with a bound of 1 it has to wait
    <= bound] → <= bound + 1]
wrong | holds them one step too early | worker 1 is kept waiting. It is 0 steps ahead of the slowest worker
    <= bound] → < bound]
wrong | sends them on in a batch, one step too far | worker 1 is sent the weights. It is 2 steps ahead
    -             free = [w for w in held if steps[w] - min(steps.values()) <= bound]
    -             held = [w for w in held if w not in free]
    -             for w in free:
    -                 dist.send(weights, dst=w)
    +             free = [w for w in held if steps[w] - min(steps.values()) <= bound + 1]
    +             held = [w for w in held if w not in free]
    +             batch = [dist.P2POp(dist.isend, weights, w) for w in free]
    +             for work in dist.batch_isend_irecv(batch) if batch else []:
    +                 work.wait()
wrong | applies a gradient twice | on rank 0 element 0 in result[0] is 7
    weights -= lr * push → weights -= 2 * lr * push
deadlock | keeps those it has sent the weights on its list | Rank 0 waits for rank 1 to receive
    held = [w for w in held if w not in free] →
deadlock | waits for one gradient of each worker, in rank order | Rank 0 waits for rank 2 to send
    worker = dist.recv(push) → worker = dist.recv(push, src=1 + _ % (world_size - 1))
"""

backup_sgd = """
deadlock | waits for all | Rank 0 waits for any rank to send
    while len(held) < need: → while len(held) < world_size - 1:
wrong | lets late gradients count | if the function counts gradients of a step that is over
    if push[0] == step: → if True:
wrong | notes late ones | notes workers whose gradients it throws away
    -                     note(worker)
    -                 else:
    +                     note(worker)
    +                 else:
    +                     note(worker)
wrong | notes nobody | if the function does not call `note` | note(worker) →
wrong | adds up | by the sum, and not by the mean | lr * total / need → lr * total
wrong | divides by all workers | where only `need` gradients count | lr * total / need → lr * total / (world_size - 1)
wrong | begins with an old total | begin each step with a new total
    +         total = torch.zeros_like(weights)
              for step in range(steps):
    -             total = torch.zeros_like(weights)
wrong | answers before it moves | answers with the weights from before the step
    -             weights -= lr * total / need
                  told = torch.cat([weights.new_tensor([step + 1]), weights])
    +             weights -= lr * total / need
wrong | tells the old step | Either rank 0 has answered it with an earlier step than `steps`
    new_tensor([step + 1]) → new_tensor([step])
wrong | makes new weights | its `weights` are what they were. Move them in place
    weights -= lr * total / need → weights = weights - lr * total / need
wrong | keeps views of the message | `push[1:]` is a view that the next message overwrites
    -             total = torch.zeros_like(weights)
    +             parts = []
                  while len(held) < need:
                      worker = dist.recv(push)
                      if push[0] == step:
    -                     total += push[1:]
    +                     parts.append(push[1:])
                          held.append(worker)
                          note(worker)
                      else:
                          dist.send(told, dst=worker)
    -             weights -= lr * total / need
    +             weights -= lr * sum(parts) / need
wrong | averages over all workers | if the function waits for the gradients of all workers, where `need` are enough
    +         need = world_size - 1
              push, held = torch.empty_like(told), []
wrong | sums over all workers | if the function adds up the gradients of all workers, and divides by `need`
    +         lr, need = lr * (world_size - 1) / need, world_size - 1
              push, held = torch.empty_like(told), []
deadlock | leaves the late ones without an answer | Rank 0 waits for any rank to send
    dist.send(told, dst=worker) → pass
"""
