"""Planted mistakes of lesson 01, in the form that `tests.mistakes` tells."""

average_in_team = """
wrong | forgets the team in the sum | 5. You get this if the function adds up over all ranks: pass `group=team`
    , group=team →
wrong | divides by the number of all ranks | 5. You get this if the function divides by the number of all ranks, and
    dist.get_world_size(team) → world_size
wrong | averages over all ranks | should be 5. You get this if the function averages over all ranks
    -         dist.all_reduce(p.grad, group=team)
    -         p.grad /= dist.get_world_size(team)
    +         dist.all_reduce(p.grad)
    +         p.grad /= world_size
raises | hands the team over as the operation | Ranks 0–3: TypeError | , group=team → , team
wrong | takes the teams to be halves | on rank 0 element 1 is 0.5 | dist.get_world_size(team) → max(1, world_size // 2)
deadlock | lets the team's first rank alone make the call | Ranks 1, 3 finished the function without it
    dist.all_reduce(p.grad, group=team) → if dist.get_rank(team) == 0: dist.all_reduce(p.grad, group=team)
"""

from_member = """
wrong | takes the member's number for a rank of the world | the last member of each team: on ranks 1–3 element 0 is 20
    group_src= → src=
deadlock | broadcasts to everybody | ranks disagree on the root | , group=team →
wrong | finds the first member in the world, and counts on from there | the last member of each team
    group_src=member → src=dist.get_global_rank(team, 0)
wrong | overwrites x | on ranks 1, 2 the argument is changed | x.clone() → x
"""

two_sums = """
raises | lets the leaders alone make their group | ranks make different groups
    -     leaders = dist.new_group(range(0, world_size, 2))
          if rank % 2 == 0:
    +         leaders = dist.new_group(range(0, world_size, 2))
wrong | hides it: the second sum needs no group | the next new_group would hang
    def two_sums(x):
        of_leaders, of_all = x.clone(), x.clone()
        if rank % 2 == 0:
            leaders = dist.new_group(range(0, world_size, 2))
            dist.all_reduce(of_leaders, group=leaders)
        dist.all_reduce(of_all)
        return of_leaders, of_all
deadlock | sums over everybody, from some of them | ranks disagree on the operation
    group=leaders → group=None
wrong | makes the group of the odd ranks | on rank 0 element 0 in result[0] is 0
    range(0, world_size, 2) → range(1, world_size, 2)
"""

who_is_left = """
wrong | lists those that have lost | on ranks 0, 1 element 0 is 1 | == 1 → == 0
wrong | hears nobody but itself | on rank 1 the list has 0 entries | dist.all_reduce(flags) →
wrong | everybody writes into the first place | on ranks 0, 1 element 0 is 0 | flags[rank] = alive → flags[0] = alive
deadlock | leaves those that have lost out of the call | Rank 1 finished the function without it
    dist.all_reduce(flags) → if alive.item() == 1: dist.all_reduce(flags)
"""

grid_sums = """
wrong | returns the column first | Rank 0 lacks rank 1 | return sums[0], sums[1] → return sums[1], sums[0]
wrong | takes the row of the last group made | Rank 0 lacks rank 1's numbers and rank 2's numbers
    -             if rank in ranks:
    -                 mine = group
    +             mine = group
wrong | sums the sums | Rank 0 holds element 0 of ranks 0, 1
    total = x.clone() → total = (sums[-1] if sums else x).clone()
deadlock | lets the first row alone make the calls | Rank 1 finished the function without it
    dist.all_reduce(total, group=mine) → if rank < columns: dist.all_reduce(total, group=mine)
"""
