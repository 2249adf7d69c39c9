"""Planted mistakes of lesson 06c, in the form that `tests.mistakes` tells."""

tell_all = """
wrong | releases for its own GPU alone | order nothing on another GPU
    1, sem="release", scope="sys") → 1, sem="release")
wrong | waits without acquiring | The order of the flags' operations is too weak
    1, 0, sem="acquire", scope="sys") → 1, 0, sem="relaxed", scope="sys")
wrong | leaves out the barrier of its threads | Only one of a program's threads sets a flag
    -             tl.debug_barrier()
wrong | sets the flag before the numbers | no flag orders the two
    -             tl.store(buffer(buffers, other, x) + at, tl.load(x + at))
                  tl.debug_barrier()
                  tl.atomic_xchg(flag(flags, other, 0, world_size), 1, sem="release", scope="sys")
    +             tl.store(buffer(buffers, other, x) + at, tl.load(x + at))
deadlock | tells only itself | in a kernel for the flag of rank 0
    flag(flags, other, 0, world_size), 1 → flag(flags, 0, 0, world_size), 1
"""

meet_in_kernel = """
deadlock | never tells the others | waits in a kernel for the flag of rank
    -     for other in range(world_size):
    -         while tl.atomic_cas(flag(flags, other, rank, world_size), 0, 1, sem="release", scope="sys") != 0:
    -             pass
deadlock | does not wait | in a kernel for
    -     for other in range(world_size):
    -         while tl.atomic_cas(flag(flags, rank, other, world_size), 1, 0, sem="acquire", scope="sys") != 1:
    -             pass
deadlock | sets a flag that has not been taken down | waits in a kernel for the flag of rank
    -         while tl.atomic_cas(flag(flags, other, rank, world_size), 0, 1, sem="release", scope="sys") != 0:
    -             pass
    +         tl.atomic_xchg(flag(flags, other, rank, world_size), 1, sem="release", scope="sys")
deadlock | leaves the flags up | in a kernel for | 1, 0, sem="acquire" → 1, 1, sem="acquire"
wrong | sets the flags relaxed | The order of the flags' operations is too weak | sem="release" → sem="relaxed"
wrong | waits relaxed | The order of the flags' operations is too weak | sem="acquire" → sem="relaxed"
wrong | sets the flags for its own GPU alone | order nothing on another GPU | sem="release", scope="sys" → sem="release"
wrong | leaves out the barrier of its threads | Only one of a program's threads sets a flag
    -     tl.debug_barrier()  # all threads of this program are here, and have written
wrong | asks with a plain load | with tl.load
    -         while tl.atomic_cas(flag(flags, rank, other, world_size), 1, 0, sem="acquire", scope="sys") != 1:
    -             pass
    +         mine = flag(flags, rank, other, world_size)
    +         while tl.load(mine, volatile=True) != 1:
    +             pass
    +         tl.atomic_xchg(mine, 0, sem="acquire", scope="sys")
"""

one_shot = """
wrong | reads before the others have written | no flag orders the two
    -     meet(flags, rank, world_size)
          total = tl.zeros([BLOCK], ACC)
wrong | writes into its buffer while others still read it | no flag orders the two
          tl.store(out + at, total, mask=mask)
    -     meet(flags, rank, world_size)
wrong | adds up in an order of its own | the ranks' sums differ in their last bits
    buffer(buffers, other, x) → buffer(buffers, (rank + other) % world_size, x)
raises | reads without a mask | tl.load reads beyond the end of the argument x
    tl.load(x + at, mask=mask) → tl.load(x + at)
raises | writes without a mask | tl.store writes beyond the end of the argument out
    tl.store(out + at, total, mask=mask) → tl.store(out + at, total)
wrong | leaves out its own numbers | in result[0] is
              total += tl.load(buffer(buffers, other, x) + at, mask=mask).to(ACC)
    +     total -= tl.load(x + at, mask=mask).to(ACC)
deadlock | lets rank 0 go on at once | in a kernel for the flag of rank 0
    +     if rank > 0:
    +         meet(flags, rank, world_size)
    -     meet(flags, rank, world_size)
          total = tl.zeros([BLOCK], ACC)
"""

two_shot = """
wrong | adds before the others have written | no flag orders the two
    -     meet(flags, rank, world_size)
          place = rank * chunk + at
wrong | reads sums that are not there yet | no flag orders the two
          tl.store(buffer(buffers, rank, x) + place, total, mask=mask)
    -     meet(flags, rank, world_size)
wrong | begins the next launch while others still read | no flag orders the two
              tl.store(out + place, tl.load(buffer(buffers, c, x) + place, mask=mask), mask=mask)
    -     meet(flags, rank, world_size)
raises | forgets that the last chunk is shorter | beyond the end of
          place = rank * chunk + at
    -     mask = (at < chunk) & (place < size)
    +     mask = at < chunk
wrong | adds up the chunk of its neighbour | in result[0] is
    place = rank * chunk + at → place = (rank + 1) % world_size * chunk + at
deadlock | leaves after the first meeting, on rank 0 | in a kernel for the flag of rank 0
          tl.store(buffer(buffers, rank, x) + place, total, mask=mask)
    -     meet(flags, rank, world_size)
    +     if rank > 0:
    +         meet(flags, rank, world_size)
"""

gather_by_puts = """
wrong | puts its numbers into its own buffer, and reads the others' | put the numbers there instead
    -     for other in range(world_size):
    -         tl.store(buffer(buffers, other, x) + rank * size + at, mine, mask=mask)
    +     tl.store(buffer(buffers, rank, x) + at, mine, mask=mask)
          meet(flags, rank, world_size)
          for other in range(world_size):
              place = other * size + at
    -         tl.store(out + place, tl.load(buffer(buffers, rank, x) + place, mask=mask), mask=mask)
    +         tl.store(out + place, tl.load(buffer(buffers, other, x) + at, mask=mask), mask=mask)
wrong | reads before the puts have come | no flag orders the two
              tl.store(buffer(buffers, other, x) + rank * size + at, mine, mask=mask)
    -     meet(flags, rank, world_size)
wrong | puts the next numbers while others still read | no flag orders the two
              tl.store(out + place, tl.load(buffer(buffers, rank, x) + place, mask=mask), mask=mask)
    -     meet(flags, rank, world_size)
wrong | puts everything into the first place | no flag orders the two
    rank * size + at, mine → at, mine
raises | puts without a mask | tl.store writes beyond the end of
    + rank * size + at, mine, mask=mask) → + world_size * size + at, mine)
"""

sum_and_norm = """
wrong | lets anything into the mean | in result[0] is
    mask=mask, other=0.0) → mask=mask)
wrong | divides by the sum of the squares | in result[0] is
    tl.sum(total * total) / width → tl.sum(total * total)
wrong | norms before it has added up | no flag orders the two
    -     meet(flags, rank, world_size)
          total = tl.zeros([BLOCK], tl.float32)
wrong | writes the next rows while others still read | no flag orders the two
          tl.store(out + row, total * tl.load(weight + at, mask=mask), mask=mask)
    -     meet(flags, rank, world_size)
raises | reads weights without a mask | tl.load reads beyond the end of the argument weight
    tl.load(weight + at, mask=mask) → tl.load(weight + at)
"""

pass_on = """
deadlock | empties the slot before it waits | in a kernel for the flag of rank
    -         until(flag(flags, rank, left, world_size), 1)  # my own slot is full
    -         tl.store(out + piece * SLOT + at, tl.load(buffer(buffers, rank, x) + at))
              signal(flag(flags, rank, left, world_size), 0)
    +         until(flag(flags, rank, left, world_size), 1)
    +         tl.store(out + piece * SLOT + at, tl.load(buffer(buffers, rank, x) + at))
deadlock | never empties the slot | in a kernel for the flag of rank
    -         signal(flag(flags, rank, left, world_size), 0)
deadlock | does not wait for an empty slot | in a kernel for the flag of rank
    -         until(flag(flags, right, rank, world_size), 0)  # the slot on the right is empty
wrong | empties the slot without a release | The order of the flags' operations is too weak
    -         signal(flag(flags, rank, left, world_size), 0)
    +         tl.debug_barrier()
    +         tl.atomic_xchg(flag(flags, rank, left, world_size), 0, sem="relaxed", scope="sys")
"""

in_turn = """
wrong | meets twice | it meets more than once in a launch
          tl.store(out + at, total, mask=mask)
    +     meet(flags, rank, world_size)
wrong | uses one half | no flag orders the two | call % 2 * size → 0 * size
wrong | reads the other half | no flag orders the two
    buffer(buffers, other, x) + half → buffer(buffers, other, x) + size - half
raises | goes on and on | beyond the end of | call % 2 * size → call * size
"""
