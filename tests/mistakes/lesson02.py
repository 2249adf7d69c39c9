"""Planted mistakes of lesson 02, in the form that `tests.mistakes` tells."""

gradient_back = """
wrong | receives the gradient and leaves it there | on rank 0 None comes back | hidden.backward(gradient) →
wrong | sends the activations back | on rank 0 element 0 is | dist.send(hidden.grad, → dist.send(hidden.detach(),
raises | receives into a gradient that is not there | Rank 0: TypeError
    -         gradient = torch.empty_like(hidden)
    -         dist.recv(gradient, src=1)
    -         hidden.backward(gradient)
    +         dist.recv(hidden.grad, src=1)
raises | lets every rank but rank 0 send | Rank 2: TypeError | if rank == 1: → if rank != 0:
deadlock | has both of them wait for the other's message | Rank 0 waits for rank 1 to send
    def gradient_back(hidden):
        gradient = torch.empty_like(hidden)
        if rank < 2:
            dist.recv(gradient, src=1 - rank)
        if rank == 0:
            hidden.backward(gradient)
        if rank == 1:
            dist.send(hidden.grad, dst=0)
forbidden | sums the gradient over all ranks | It calls dist.all_reduce
    def gradient_back(hidden):
        gradient = hidden.grad if rank == 1 else torch.zeros_like(hidden)
        dist.all_reduce(gradient)
        if rank == 0:
            hidden.backward(gradient)
"""

ring_shift = """
deadlock | lets everyone send first | Rank 0 waits for rank 1 to receive
    -     if rank % 2 == 0:
    -         dist.send(x, dst=right)
    -         dist.recv(got, src=left)
    -     else:
    -         dist.recv(got, src=left)
    -         dist.send(x, dst=right)
    +     dist.send(x, dst=right)
    +     dist.recv(got, src=left)
deadlock | lets everyone receive first | Rank 0 waits for rank 1 to send
    -     if rank % 2 == 0:
    -         dist.send(x, dst=right)
    -         dist.recv(got, src=left)
    -     else:
    -         dist.recv(got, src=left)
    -         dist.send(x, dst=right)
    +     dist.recv(got, src=left)
    +     dist.send(x, dst=right)
wrong | turns the ring the other way | Rank 0 holds rank 1's numbers where rank 2's belong
    (rank + 1) % world_size, (rank - 1) % world_size → (rank - 1) % world_size, (rank + 1) % world_size
raises | forgets that the ring closes | there is no rank 2 among 2 ranks | (rank + 1) % world_size, → rank + 1,
not as asked | goes round by the left, all but one step of the way | may only send to the next rank
    def ring_shift(x):
        for _ in range(world_size - 1):
            got = torch.empty_like(x)
            works = [dist.isend(x, dst=(rank - 1) % world_size), dist.irecv(got, src=(rank + 1) % world_size)]
            for work in works:
                work.wait()
            x = got
        return x
not as asked | sends its numbers in three pieces | sends 3 messages
    def ring_shift(x):
        got = torch.empty_like(x)
        for mine, room in zip(x.tensor_split(3), got.tensor_split(3)):
            works = [dist.isend(mine, dst=(rank + 1) % world_size), dist.irecv(room, src=(rank - 1) % world_size)]
            for work in works:
                work.wait()
        return got
forbidden | gathers everybody's numbers | It calls dist.all_gather
    def ring_shift(x):
        everyone = [torch.empty_like(x) for _ in range(world_size)]
        dist.all_gather(everyone, x)
        return everyone[rank - 1]
"""

send_uneven = """
wrong | makes room for a hundred elements | rank 1 makes room for 100 elements
    torch.empty(length.item(), → torch.zeros(100,
raises | takes the neighbour's tensor to be as long as its own | died (SIGABRT)
    torch.empty(length.item(), dtype=x.dtype, device=device) → torch.empty_like(x)
deadlock | sends first and receives afterwards | Rank 0 waits for rank 1 to receive
    -         exchange = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, room, left)]
    -         for work in dist.batch_isend_irecv(exchange):
    -             work.wait()
    +         dist.send(mine, dst=right)
    +         dist.recv(room, src=left)
not as asked | sends its numbers one by one, after their count | and 2 are enough
    def send_uneven(x):
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        length = torch.zeros(1, dtype=torch.int64, device=device)
        works = [dist.isend(torch.tensor([len(x)], device=device), dst=right), dist.irecv(length, src=left)]
        for work in works:
            work.wait()
        got = torch.empty(length.item(), dtype=x.dtype, device=device)
        works = [dist.isend(x[i : i + 1], dst=right) for i in range(len(x))]
        works += [dist.irecv(got[i : i + 1], src=left) for i in range(len(got))]
        for work in works:
            work.wait()
        return got
not as asked | sends its numbers to everybody, who keep their neighbour's | may only send to the next rank
    def send_uneven(x):
        everyone = []
        for step in range(1, world_size):
            to, source = (rank + step) % world_size, (rank - step) % world_size
            length, room = torch.tensor([len(x)], device=device), torch.zeros(1, dtype=torch.int64, device=device)
            for work in [dist.isend(length, dst=to), dist.irecv(room, src=source)]:
                work.wait()
            got = torch.empty(room.item(), dtype=x.dtype, device=device)
            for work in [dist.isend(x, dst=to), dist.irecv(got, src=source)]:
                work.wait()
            everyone.append(got)
        return everyone[0]
"""

halo = """
wrong | sends each neighbour the border that is farther away | Rank 0 holds rank 1's element 2
    (-1, x[:1], → (-1, x[-1:],
raises | forgets that the last rank has no right-hand neighbour | there is no rank 2 among 2 ranks
    0 <= rank + way < world_size → 0 <= rank + way
deadlock | receives from both sides before it sends | Rank 0 waits for rank 1 to send
    def halo(x):
        wide = torch.cat([x.new_zeros(1), x, x.new_zeros(1)])
        if rank > 0:
            dist.recv(wide[:1], src=rank - 1)
        if rank < world_size - 1:
            dist.recv(wide[-1:], src=rank + 1)
        if rank > 0:
            dist.send(x[:1], dst=rank - 1)
        if rank < world_size - 1:
            dist.send(x[-1:], dst=rank + 1)
        return wide
costly | lets one rank after the other exchange | It takes 6 steps
    def halo(x):
        wide = torch.cat([x.new_zeros(1), x, x.new_zeros(1)])
        if rank < world_size - 1:
            dist.send(x[-1:], dst=rank + 1)
        if rank > 0:
            dist.recv(wide[:1], src=rank - 1)
            dist.send(x[:1], dst=rank - 1)
        if rank < world_size - 1:
            dist.recv(wide[-1:], src=rank + 1)
        return wide
forbidden | gathers all stretches | It calls comms.all_gather
    def halo(x):
        everyone = [x.new_zeros(1), *comms.all_gather(x), x.new_zeros(1)]
        return torch.cat([everyone[rank][-1:], x, everyone[rank + 2][:1]])
"""

pipeline = """
wrong | goes back with the second micro-batch first on the last rank only | on rank 0 element 0 is 0.248
    for h, out in passed: → for h, out in passed if rank < world_size - 1 else passed[::-1]:
deadlock | sends the first gradient back before it takes the second activation | Rank 0 waits for rank 1 to receive
    def pipeline(first, second, weight):
        weight = weight.clone().requires_grad_()
        last, passed = rank == world_size - 1, []

        def back(h, out):
            gradient = torch.ones_like(out)
            if not last:
                dist.recv(gradient, src=rank + 1)
            out.backward(gradient)
            if rank > 0:
                dist.send(h.grad, dst=rank - 1)

        for h in (first.clone(), second.clone()):
            if rank > 0:
                dist.recv(h, src=rank - 1)
            out = torch.tanh(weight * h.requires_grad_())
            if last:
                back(h, out)
            else:
                dist.send(out.detach(), dst=rank + 1)
                passed.append((h, out))
        for h, out in passed:
            back(h, out)
        return weight.grad
costly | waits for the first micro-batch's gradient before it sends the second one | It takes 12 steps
    def pipeline(first, second, weight):
        weight = weight.clone().requires_grad_()
        for h in (first.clone(), second.clone()):
            if rank > 0:
                dist.recv(h, src=rank - 1)
            out = torch.tanh(weight * h.requires_grad_())
            gradient = torch.ones_like(out)
            if rank < world_size - 1:
                dist.send(out.detach(), dst=rank + 1)
                dist.recv(gradient, src=rank + 1)
            out.backward(gradient)
            if rank > 0:
                dist.send(h.grad, dst=rank - 1)
        return weight.grad
raises | sends a tensor that is still part of a graph, and receives into one | Rank 1: TypeError
    for h in (first.clone(), second.clone()): → for h in (first + 0 * weight, second + 0 * weight):
"""

prefix_sum = """
wrong | passes its own numbers on in every step, not the total so far | Rank 3 lacks rank 0
    dist.isend, total, → dist.isend, x,
raises | forgets that there is an end to the right | there is no rank 2 among 2 ranks
    if rank + distance < world_size: → if True:
deadlock | waits for its own message before it sends | Rank 0 waits for rank 1 to send
    def prefix_sum(x):
        total, distance = x.clone(), 1
        while distance < world_size:
            before = torch.zeros_like(total)
            dist.recv(before, src=(rank - distance) % world_size)
            dist.send(total, dst=(rank + distance) % world_size)
            total = total + before if rank >= distance else total
            distance *= 2
        return total
costly | goes down the line, one rank after the other | It takes 3 steps
    def prefix_sum(x):
        total = x.clone()
        if rank > 0:
            dist.recv(total, src=rank - 1)
            total += x
        if rank < world_size - 1:
            dist.send(total, dst=rank + 1)
        return total
"""
