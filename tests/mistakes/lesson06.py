"""Planted mistakes of lesson 06, in the form that `tests.mistakes` tells."""

naive_all_reduce = """
wrong | forgets rank 0's own numbers | Ranks 0, 1 lack rank 0 | total = x.clone() → total = torch.zeros_like(x)
wrong | keeps only the last that came | Ranks 0–2 lack rank 1 | total += room → total = x + room
deadlock | waits for an answer before it has sent | Rank 0 waits for rank 1 to send
    +         dist.recv(total, src=0)
              dist.send(x, dst=0)
    -         dist.recv(total, src=0)
forbidden | calls all_reduce | It calls dist.all_reduce
    def naive_all_reduce(x):
        total = x.clone()
        dist.all_reduce(total)
        return total
"""

ring_reduce_scatter = """
wrong | stops a step early | Rank 0 lacks rank 1 | range(1, world_size) → range(1, world_size - 1)
wrong | returns the next rank's chunk | Rank 0 holds rank 0's elements 2, 3
    return chunks[rank] → return chunks[(rank + 1) % world_size]
wrong | overwrites instead of adding | Rank 0 lacks rank 0 | into += room → into.copy_(room)
deadlock | sends first, then receives | Rank 0 waits for rank 1 to receive
    -         send = dist.P2POp(dist.isend, out, (rank + 1) % world_size)
    -         receive = dist.P2POp(dist.irecv, room, (rank - 1) % world_size)
    -         for work in dist.batch_isend_irecv([send, receive]):
    -             work.wait()
    +         dist.send(out, dst=(rank + 1) % world_size)
    +         dist.recv(room, src=(rank - 1) % world_size)
not as asked | turns the ring the other way | may only send to the next rank
    -         out, into = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
    +         out, into = chunks[(rank + step) % world_size], chunks[(rank + step + 1) % world_size]
              room = torch.empty_like(into)
    -         send = dist.P2POp(dist.isend, out, (rank + 1) % world_size)
    -         receive = dist.P2POp(dist.irecv, room, (rank - 1) % world_size)
    +         send = dist.P2POp(dist.isend, out, (rank - 1) % world_size)
    +         receive = dist.P2POp(dist.irecv, room, (rank + 1) % world_size)
costly | rotates whole tensors and keeps a chunk | Its busiest rank sends 3.0 S
    def ring_reduce_scatter(x):
        total, travels = x.clone(), x.clone()
        for _ in range(world_size - 1):
            room = torch.empty_like(travels)
            works = [
                dist.isend(travels, dst=(rank + 1) % world_size),
                dist.irecv(room, src=(rank - 1) % world_size),
            ]
            for work in works:
                work.wait()
            total += room
            travels = room
        return total.tensor_split(world_size)[rank]
forbidden | all-reduces and keeps a chunk | It calls dist.all_reduce
    def ring_reduce_scatter(x):
        total = x.clone()
        dist.all_reduce(total)
        return total.tensor_split(world_size)[rank]
"""

ring_all_gather = """
wrong | stops a step early | Rank 0 holds rank 0's elements 2, 3 | range(world_size - 1) → range(world_size - 2)
wrong | puts what comes into the wrong place | Rank 0 holds rank 2's elements 4, 5
    parts[(rank - step - 1) % world_size] → parts[(rank + step + 1) % world_size]
deadlock | sends first, then receives | Rank 0 waits for rank 1 to receive
    -         send = dist.P2POp(dist.isend, out, (rank + 1) % world_size)
    -         receive = dist.P2POp(dist.irecv, into, (rank - 1) % world_size)
    -         for work in dist.batch_isend_irecv([send, receive]):
    -             work.wait()
    +         dist.send(out, dst=(rank + 1) % world_size)
    +         dist.recv(into, src=(rank - 1) % world_size)
not as asked | sends its own to each other rank itself | may only send to the next rank
    def ring_all_gather(parts):
        for step in range(1, world_size):
            source = (rank - step) % world_size
            works = [dist.isend(parts[rank], dst=(rank + step) % world_size), dist.irecv(parts[source], src=source)]
            for work in works:
                work.wait()
costly | passes the whole list on in every step | Its busiest rank sends 3.0 S
    def ring_all_gather(parts):
        for _ in range(world_size - 1):
            whole = torch.cat(parts)
            room = torch.empty_like(whole)
            works = [
                dist.isend(whole, dst=(rank + 1) % world_size),
                dist.irecv(room, src=(rank - 1) % world_size),
            ]
            for work in works:
                work.wait()
            for i, came in enumerate(room.split([len(part) for part in parts])):
                if i != rank:
                    parts[i].copy_(came)
"""

tree_all_reduce = """
wrong | keeps only what came | Ranks 0, 1 lack rank 0 | total += room → total = room.clone()
raises | takes N for a power of two | there is no rank 3 among 3 ranks
    -         elif rank + distance < min(world_size, 2 * distance):
    +         elif rank + distance < 2 * distance:
                  room = torch.empty_like(x)
                  dist.recv(room, src=rank + distance)
                  total += room
          for distance in distances:
              if distance <= rank < 2 * distance:
                  dist.recv(total, src=rank - distance)
    -         elif rank + distance < min(world_size, 2 * distance):
    +         elif rank + distance < 2 * distance:
costly | lets rank 0 talk to everybody itself | Its busiest rank sends 3.0 S
    def tree_all_reduce(x):
        total = x.clone()
        if rank == 0:
            room = torch.empty_like(x)
            for other in range(1, world_size):
                dist.recv(room, src=other)
                total += room
            for other in range(1, world_size):
                dist.send(total, dst=other)
        else:
            dist.send(x, dst=0)
            dist.recv(total, src=0)
        return total
forbidden | calls all_reduce | It calls dist.all_reduce
    def tree_all_reduce(x):
        total = x.clone()
        dist.all_reduce(total)
        return total
"""

halving_doubling = """
wrong | does not go back | Rank 0 lacks rank 1's elements 2, 3 | reversed(path) → []
wrong | keeps one half on both sides | Rank 0 holds rank 0's element 0 and rank 1's element 2
    (low, high) if rank < partner else (high, low) → (low, high)
deadlock | sends first, then receives | Rank 0 waits for rank 1 to receive
    -         exchange = [dist.P2POp(dist.isend, given, partner), dist.P2POp(dist.irecv, room, partner)]
    -         for work in dist.batch_isend_irecv(exchange):
    -             work.wait()
    +         dist.send(given, dst=partner)
    +         dist.recv(room, src=partner)
costly | exchanges everything in every step | Its busiest rank sends 2.0 S
    def halving_doubling(x):
        total = x.clone()
        distance = world_size // 2
        while distance:
            room = torch.empty_like(total)
            for work in [dist.isend(total, dst=rank ^ distance), dist.irecv(room, src=rank ^ distance)]:
                work.wait()
            total = total + room
            distance //= 2
        return total
"""

leftward_ring = """
not as asked | turns the ring to the right | may only send to the rank before it
    -         out, into = chunks[(rank + step) % world_size], chunks[(rank + step + 1) % world_size]
    +         out, into = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
              room = torch.empty_like(into)
    -         exchange = [dist.P2POp(dist.isend, out, left), dist.P2POp(dist.irecv, room, right)]
    +         exchange = [dist.P2POp(dist.isend, out, right), dist.P2POp(dist.irecv, room, left)]
wrong | turns the messages round and leaves the chunks as they were | Rank 0 holds rank 0's element 0
    -         out, into = chunks[(rank + step) % world_size], chunks[(rank + step + 1) % world_size]
    +         out, into = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
wrong | stops a step early | Rank 0 lacks rank 1 | range(1, world_size) → range(1, world_size - 1)
costly | passes whole buffers to the left | Its busiest rank sends 3.0 S
    def leftward_ring(x):
        total, travels = x.clone(), x.clone()
        for _ in range(world_size - 1):
            room = torch.empty_like(travels)
            works = [
                dist.isend(travels, dst=(rank - 1) % world_size),
                dist.irecv(room, src=(rank + 1) % world_size),
            ]
            for work in works:
                work.wait()
            total += room
            travels = room
        return total.tensor_split(world_size)[rank]
"""

ring_all_reduce = """
costly | sends whole tensors round the ring | Its busiest rank sends 3.0 S
    def ring_all_reduce(x):
        total, travels = x.clone(), x.clone()
        for _ in range(world_size - 1):
            room = torch.empty_like(travels)
            works = [
                dist.isend(travels, dst=(rank + 1) % world_size),
                dist.irecv(room, src=(rank - 1) % world_size),
            ]
            for work in works:
                work.wait()
            total += room
            travels = room
        return total
not as asked | turns the ring the other way | may only send to the next rank
    def ring_all_reduce(x):
        right, left = (rank - 1) % world_size, (rank + 1) % world_size
        total = x.clone()
        chunks = total.tensor_split(world_size)

        def pass_on(out, room):
            works = [dist.isend(chunks[out % world_size], dst=right), dist.irecv(room, src=left)]
            for work in works:
                work.wait()

        for step in range(world_size - 1):
            into = chunks[(rank + step + 1) % world_size]
            room = torch.empty_like(into)
            pass_on(rank + step, room)
            into += room
        for step in range(world_size - 1):
            pass_on(rank - 1 + step, chunks[(rank + step) % world_size])
        return total
costly | sends each chunk in two pieces | It takes 12 steps
    -         exchange = [dist.P2POp(dist.isend, chunks[out % world_size], right), dist.P2POp(dist.irecv, room, left)]
    +         exchange = [dist.P2POp(dist.isend, half, right) for half in chunks[out % world_size].tensor_split(2)]
    +         exchange += [dist.P2POp(dist.irecv, half, left) for half in room.tensor_split(2)]
wrong | adds in the second half, too | Rank 0 counts rank 0's elements 0, 1 twice
    -         pass_on(rank + 1 - step, chunks[(rank - step) % world_size])
    +         into = chunks[(rank - step) % world_size]
    +         room = torch.empty_like(into)
    +         pass_on(rank + 1 - step, room)
    +         into += room
wrong | leaves the second half out | Rank 0 lacks rank 1's elements 0, 1
    pass_on(rank + 1 - step, chunks[(rank - step) % world_size]) → pass
deadlock | sends first, then receives | Rank 0 waits for rank 1 to receive
    -         exchange = [dist.P2POp(dist.isend, chunks[out % world_size], right), dist.P2POp(dist.irecv, room, left)]
    -         for work in dist.batch_isend_irecv(exchange):
    -             work.wait()
    +         dist.send(chunks[out % world_size], dst=right)
    +         dist.recv(room, src=left)
forbidden | calls all_reduce | It calls dist.all_reduce
    def ring_all_reduce(x):
        total = x.clone()
        dist.all_reduce(total)
        return total
"""

chain_reduce = """
costly | waits for each piece to be taken | It takes 9 steps
    sending.append(dist.isend(piece, dst=rank + 1)) → dist.send(piece, dst=rank + 1)
not as asked | sends the whole buffer at once | 4 are asked for | total.tensor_split(4) → [total]
wrong | sends its own numbers only | on rank 1 element 1 is 11 | piece += room → piece = piece + room
wrong | returns the sum everywhere | on rank 0 a tensor of shape (4,) comes back
    return total if rank == world_size - 1 else None → return total
"""

fold_in = """
wrong | leaves out those that are too many | Ranks 0, 1 lack rank 2
    def fold_in(x):
        power = 2 ** (world_size.bit_length() - 1)  # ranks that go on
        total, path = x.clone(), []
        if rank >= power:
            return total
        if rank + power < world_size:
            room = torch.empty_like(total)
            room += 0
        kept = total
        for distance in [2**k for k in range(power.bit_length() - 1)]:
            partner = rank ^ distance
            low, high = kept.tensor_split(2)
            kept, given = (low, high) if rank < partner else (high, low)
            room = torch.empty_like(kept)
            works = [dist.isend(given, dst=partner), dist.irecv(room, src=partner)]
            for work in works:
                work.wait()
            kept += room
            path.append((kept, given, partner))
        for kept, given, partner in reversed(path):
            works = [dist.isend(kept, dst=partner), dist.irecv(given, src=partner)]
            for work in works:
                work.wait()
        if rank + power < world_size:
            pass
        return total
wrong | gives back before the total is complete | Rank 2 lacks rank 1
    +     if rank + power < world_size:
    +         dist.send(total, dst=rank + power)
          kept = total
          for distance in [2**k for k in range(power.bit_length() - 1)]:
              partner = rank ^ distance
              low, high = kept.tensor_split(2)
              kept, given = (low, high) if rank < partner else (high, low)
              room = torch.empty_like(kept)
              exchange = [dist.P2POp(dist.isend, given, partner), dist.P2POp(dist.irecv, room, partner)]
              for work in dist.batch_isend_irecv(exchange):
                  work.wait()
              kept += room
              path.append((kept, given, partner))
          for kept, given, partner in reversed(path):
              exchange = [dist.P2POp(dist.isend, kept, partner), dist.P2POp(dist.irecv, given, partner)]
              for work in dist.batch_isend_irecv(exchange):
                  work.wait()
    -     if rank + power < world_size:
    -         dist.send(total, dst=rank + power)
raises | takes a partner that there is not | there is no rank 3 among 3 ranks
    (world_size.bit_length() - 1) → (world_size - 1).bit_length()
costly | lets rank 0 do it all | Its busiest rank sends 3.0 S
    def fold_in(x):
        total = x.clone()
        if rank == 0:
            room = torch.empty_like(x)
            for other in range(1, world_size):
                dist.recv(room, src=other)
                total += room
            for other in range(1, world_size):
                dist.send(total, dst=other)
        else:
            dist.send(x, dst=0)
            dist.recv(total, src=0)
        return total
"""

two_hosts = """
costly | goes by the ranks' numbers and not by the hosts | 2.0 S go from one host to the other
    +     hosts = [[0, 1], [2, 3]]
          here, there = hosts if rank in hosts[0] else hosts[::-1]
costly | exchanges whole buffers with the other host first | Its busiest rank sends 2.0 S
    def two_hosts(x, hosts):
        here, there = hosts if rank in hosts[0] else hosts[::-1]
        place = here.index(rank)
        total = x.clone()
        for partner in (there[place], here[1 - place]):
            room = torch.empty_like(total)
            for work in [dist.isend(total, dst=partner), dist.irecv(room, src=partner)]:
                work.wait()
            total = total + room
        return total
wrong | adds in one host only | Ranks 0, 1 lack rank 2's numbers and | ((other, mate), (mine, twin)) → ((other, mate),)
deadlock | sends first, then receives | Rank 0 waits for rank 1 to receive
    -         exchange = [dist.P2POp(dist.isend, out, partner), dist.P2POp(dist.irecv, room, partner)]
    -         for work in dist.batch_isend_irecv(exchange):
    -             work.wait()
    +         dist.send(out, dst=partner)
    +         dist.recv(room, src=partner)
"""

two_way_ring = """
costly | sends everything to the right | 1.5 S go from rank 1 to rank 2 | (1, -1) → (1, 1)
not as asked | begins the second half when the first has come round | 12 steps follow one another, and 6 are enough
    -     for step in range(2 * (world_size - 1)):
    +     for step, turn in [(s, t) for t in (0, 1) for s in range(2 * (world_size - 1))]:
              exchange, came = [], []
    -         for chunks, way in ways:
    +         for chunks, way in ways[turn : turn + 1]:
wrong | adds in the second round, too | Rank 0 counts rank 0's elements 0, 2, 3, 4 twice
    into + room if step < world_size - 1 else room → into + room
wrong | turns both halves by the same chunks | Rank 0 holds element 5 of ranks 1, 2
    chunks[(rank - way * step) % world_size] → chunks[(rank - step) % world_size]
forbidden | calls all_reduce | It calls dist.all_reduce
    def two_way_ring(x):
        total = x.clone()
        dist.all_reduce(total)
        return total
"""
