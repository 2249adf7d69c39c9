"""Planted mistakes of lesson 02b, in the form that `tests.mistakes` tells."""

push_gradient = """
wrong | reads, subtracts and writes | was overwritten
    window.accumulate(-lr * gradient, to=0) → weights = window.get(0); window.put(weights - lr * gradient, to=0)
wrong | adds to its own window | its own window | to=0) → to=rank)
wrong | does not flush | nothing has flushed it | window.flush() →
wrong | climbs | on rank 0 element 0 is 7 | (-lr * → (lr *
forbidden | fences | It calls dist.barrier | window.flush() → window.fence()
"""

take_ticket = """
wrong | locks its own window | handed out twice | window.lock(0) → window.lock(rank)
wrong | adds and then reads | was handed out twice
    def take_ticket(window):
        window.accumulate(1, to=0)
        window.flush()
        return window.get(0).item() - 1
raises | never unlocks | has not called unlock(0)
    def take_ticket(window):
        window.lock(0)
        ticket = window.get(0)
        window.put(ticket + 1, to=0)
        window.flush()
        return ticket.item()
wrong | counts in its own window | its own window
    def take_ticket(window):
        with window.lock(rank):
            ticket = window.get(rank)
            window.put(ticket + 1, to=rank)
        return ticket.item()
"""

read_whole = """
wrong | takes what is being written slowly for written | numbers of versions | and before % 2 == 0 →
wrong | tries again once, and trusts that | on ranks 0, 1 None comes back | while True: → for _ in range(2):
raises | compares with the version of its first try for ever | has called get 500 times
    def read_whole(window, of):
        before = window.get(of, size=1)
        while True:
            numbers = window.get(of, at=1)
            after = window.get(of, size=1)
            if before == after and before % 2 == 0:
                return numbers
wrong | takes a lock that the owner does not know of | rank 0 takes a lock, which the owner never asks for
    def read_whole(window, of):
        with window.lock(of):
            return window.get(of, at=1)
wrong | returns the version as well | on ranks 0, 1 the shape is (4,) | (of, at=1) → (of)
forbidden | waits for everyone | It calls dist.barrier
    +     window.fence()
          while True:
"""

ring_by_puts = """
wrong | lets a neighbour write before it has read | had read what was there
    -         window.fence()
          return x
wrong | reads before the fence | before the fence
    -         window.fence()
              x = window.get(rank)
wrong | flushes where it should meet the others | before the fence
    -         window.fence()
    +         window.flush()
              x = window.get(rank)
wrong | puts into its own window | its own window | (rank + 1) % world_size → rank
forbidden | sends messages | It calls dist.isend
    def ring_by_puts(window, x, steps):
        for _ in range(steps):
            sending, got = dist.isend(x, dst=(rank + 1) % world_size), torch.empty_like(x)
            dist.recv(got, src=(rank - 1) % world_size)
            sending.wait()
            x = got
        return x
"""

all_reduce_by_puts = """
wrong | does not clear its window | on ranks 0, 1 element 0 in result[1] is 22 | window.mine.zero_() →
wrong | clears while others add | and should be | window.fence()  # no rank adds before all are zero →
wrong | reads the sums before the fence | before the fence | window.fence()  # the sums are complete →
wrong | flushes, and takes a part of the sum for all of it | before the fence
    window.fence()  # the sums are complete → window.flush()
wrong | sends all of x to everyone | rank 0 moves 2.00 S between windows, and 1.33 S is possible
    -         window.accumulate(chunks[r], to=r, at=starts[r])
    -     window.fence()  # the sums are complete
    -     mine = window.get(rank, at=starts[rank], size=len(chunks[rank]))
    -     for r in range(world_size):
    -         if r != rank:
    -             window.put(mine, to=r, at=starts[rank])
    +         window.accumulate(x, to=r)
forbidden | calls all_reduce | It calls dist.all_reduce | return window.get(rank) → dist.all_reduce(x); return x
"""
