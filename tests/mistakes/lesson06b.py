"""Planted mistakes of lesson 06b, in the form that `tests.mistakes` tells."""

meet = """
wrong | does not wait | it left meeting
    -     while min(room.flags) < room.count:
    -         os.sched_yield()
wrong | waits for rank 0 alone | it left meeting | min(room.flags) → room.flags[0]
wrong | raises its flag once and for all | it left meeting
    while min(room.flags) < room.count: → while min(room.flags) < 1:
forbidden | calls dist.barrier | It calls dist.barrier
    def meet(room):
        dist.barrier()
"""

sum_slots = """
wrong | reads before the others have written | in result[1] is
    -     room.meet()
          x.copy_(places[0])
wrong | writes into its slot while others still read it | in result[0] is
              x += places[other]
    -     room.meet()
wrong | adds up in an order of its own | the ranks' sums differ in their last bits
    -     x.copy_(places[0])
    -     for other in range(1, world_size):
    -         x += places[other]
    +     for step in range(1, world_size):
    +         x += places[(rank + step) % world_size]
forbidden | calls all_reduce | It calls dist.all_reduce
    def sum_slots(x, room):
        dist.all_reduce(x)
"""

shared_all_reduce = """
wrong | adds before the others have written | in result[0] is
    -         room.meet()
              for r in others:
wrong | fetches before the others have added | in result[0] is
    -         room.meet()
              for c in others:
wrong | adds up every chunk itself | its copies and sums go through 3.00 S in all
    -         for r in others:
    -             mine[rank].add_(slots[r][rank])
              slots[rank][rank].copy_(mine[rank])
              room.meet()
    -         for c in others:
    -             mine[c].copy_(slots[c][c])
    +         for c in range(world_size):
    +             mine[c].copy_(slots[0][c])
    +             for r in range(1, world_size):
    +                 mine[c].add_(slots[r][c])
    +         room.meet()
forbidden | calls all_reduce | It calls dist.all_reduce
    def shared_all_reduce(x, room):
        dist.all_reduce(x)
"""

meet_in_time = """
wrong | names nobody | on rank 0 'somebody is late' comes back in result[1]
    f"rank {', '.join(map(str, missing))} has not come" → "somebody is late"
wrong | names those who have come | on rank 0 'rank 0' comes back in result[1]
    if flag < room.count] → if flag >= room.count]
wrong | goes on without them | on rank 0 'nobody' comes back in result[1]
    -             missing = [r for r, flag in enumerate(room.flags) if flag < room.count]
    -             raise TimeoutError(f"rank {', '.join(map(str, missing))} has not come")
    +             return
forbidden | calls a barrier the first time | It calls dist.barrier
    +     if room.count == 0:
    +         dist.barrier()
          room.count += 1
wrong | loses its patience at once | it raises a TimeoutError at once | time.monotonic() + seconds → time.monotonic()
"""
