"""Planted mistakes of lesson 15, in the form that `tests.mistakes` tells."""

from labkit.content import exercises
from tests.mistakes import named

bytes_out_of_hosts = (
    named(exercises.find("bytes_out_of_hosts").slips)
    + """
raises | goes over the end of the ring | Ranks 0, 1: IndexError | order[(place + 1) % n] → order[place + 1]
"""
)

leaders_all_reduce = """
wrong | hands the result out over all ranks | to other hosts
    dist.broadcast(total, group_src=0, group=inside) → dist.broadcast(total, src=0)
deadlock | lets every rank add up with the leaders | Rank 0 waits in broadcast
    -     if leaders is not None:
    -         dist.all_reduce(total, group=leaders)
    +     dist.all_reduce(total, group=leaders)
wrong | does not hand the result out | on rank 1 element 1 is 11 | dist.broadcast(total, group_src=0, group=inside) →
raises | takes rank 0 of the world for every host's leader | Rank 1: ValueError
    dist.reduce(total, group_dst=0, group=inside) → dist.reduce(total, dst=0, group=inside)
wrong | adds into its own x | on ranks 0, 1 the argument is changed | total = x.clone() → total = x
"""

rails_all_reduce = """
wrong | adds up over all ranks at once | to other hosts
    def rails_all_reduce(x, inside, rail):
        total = x.clone()
        dist.all_reduce(total)
        return total
wrong | adds up in each host only | on rank 0 element 0 is 0 | dist.all_reduce(share, group=rail) →
raises | counts its share by its rank in the world | Rank 1: IndexError
    -     dist.reduce_scatter(share, list(x.chunk(g)), group=inside)
    +     dist.all_reduce(total.copy_(x), group=inside)
    +     share = total.chunk(g)[rank].clone()
wrong | returns its share | on ranks 0, 1 the shape is (6,) | return total → return share
"""

my_place = """
wrong | takes it that all hosts have as many ranks, in a row | on rank 2 element 2 is 2
    -     return hosts[:rank].count(host), hosts.count(host), list(dict.fromkeys(hosts)).index(host)
    +     size = hosts.count(host)
    +     return rank % size, size, rank // size
wrong | numbers the hosts by the alphabet | on rank 0 element 2 is 1 | list(dict.fromkeys(hosts)) → sorted(set(hosts))
wrong | counts itself among those before it | on rank 0 element 0 is 1 | hosts[:rank] → hosts[: rank + 1]
deadlock | asks the others on rank 0 only | Rank 1 finished the function without it
    comms.all_gather(host) → comms.all_gather(host) if rank == 0 else [host] * world_size
"""

ring_by_hosts = """
wrong | goes by the ranks' numbers | from host to host 8 times, and 2 is enough
    sorted(range(len(home)), key=lambda r: home[r]) → list(range(len(home)))
wrong | begins with its own host | the ranks do not agree on the ring
    key=lambda r: home[r] → key=lambda r: (home[r] != home[rank], home[r])
wrong | returns the hosts in order, not the ranks | does not have each
    sorted(range(len(home)), key=lambda r: home[r]) → sorted(home)
wrong | takes one rank of each host | does not have each
    sorted(range(len(home)), key=lambda r: home[r]) → [home.index(name) for name in sorted(set(home))]
forbidden | asks the others | It calls comms.all_gather
    +     home = comms.all_gather(home)[0]
          return sorted(range(len(home)), key=lambda r: home[r])
"""

broadcast_once = """
costly | lets the root send to everybody | 2.0 S go from one host to the other
    def broadcast_once(x, hosts, root):
        got = x.clone()
        if rank == root:
            for other in range(world_size):
                if other != root:
                    dist.send(got, dst=other)
        else:
            dist.recv(got, src=root)
        return got
deadlock | forgets the ranks beside the root | Rank 1 receives from itself
    -     if rank == entry:
    +     if rank == entry and rank != root:
deadlock | takes the first rank of every host for the one that has it first | Rank 0 waits for rank 2 to send
    entry = root if root in here else here[0] → entry = here[0]
wrong | takes rank 0 for the root | Rank 0 holds rank 0's numbers where rank 1's belong
    got = x.clone() → root, got = 0, x.clone()
wrong | writes into its own x | on rank 0 the argument is changed | got = x.clone() → got = x
"""
