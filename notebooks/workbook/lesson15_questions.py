"""The predictions of lesson 15: what crosses a slow link, how much has to, in which order, and which rank is where."""

from labkit.grading.prediction import ask, series

over_the_slow_link = ask("""
Each rank's gradient has S = 3.2 MB. Ranks 0 and 1 are on one host, ranks 2 and 3 on the other. The link between the
hosts now carries 25 MB/s in each direction. Messages inside a host are as fast as before. Gloo all-reduces round a
ring, as in lesson 06. How long does the all-reduce take?
= 193.0 ms
( ) 129
    > This is S at 25 MB/s: the whole buffer crosses once. In a ring every rank sends 2 (N - 1) chunks of S/N.
( ) 96
    > This is the ring's first half. The all-gather comes after it.
( ) 257
    > This takes 2 S for the bytes. With four ranks they are 2 · 3/4 S.
( ) 386
    > This adds both directions up. A link carries them at the same time.
( ) 32
    > This is one chunk of S/4. Each rank sends six of them, one after another.
Why: **About 193 ms.** A ring sends 2 (N - 1)/N S = 1.5 S over each of its connections, and here two of the four are
slow, one each way. 1.5 · 3.2 MB at 25 MB/s take 193 ms. That two connections are fast does not help: in a ring
everything passes through every connection, so the slowest one sets the pace.
""")

interleaved_ring = ask("""
Now let the ring visit the ranks in the order 0, 2, 1, 3, with ranks 0 and 1 still on the first host. How many bytes go
from the first host to the second?
( ) 0.75 S
    > This would be true if the link's bytes were shared by the two ranks of a host. In a ring, every connection
    carries the same, and now two of them go this way.
( ) 1.5 S, as before
    > Each rank sends as much as before. But to whom? See which of the four connections leave the host.
(x) 3 S
( ) 6 S
    > This counts both directions and all four connections. Only those from rank 0 to 2 and from 1 to 3 go from the
    first host to the second.
Why: **3 S.** Both ranks of a host now have their neighbours on the other one: 0 sends to 2, and 1 to 3. Each connection
carries 1.5 S. No rank sends more than before, but nothing stays inside a host.
""")

order_of_new_group = ask("""
`g = dist.new_group([0, 2, 1, 3])`, and then `dist.all_reduce(x, group=g)`. How much crosses from the first host, with
ranks 0 and 1, to the second?
(x) 1.5 S
( ) 3 S
    > This would be true if the group's ring went in the order in which you list the ranks.
( ) nothing: it raises an error, since the ranks are not in order
    > Any order is accepted, and then changed.
Why: **1.5 S.** `new_group` sorts the ranks unless it is told `sort_ranks=False` (torch 2.13), and Gloo's ring follows
the order of the group. So by default it is the launcher that decides: whoever starts the ranks in turn over the hosts
(Slurm's `--distribution=cyclic`, Open MPI's `--map-by node`) gets the interleaved ring in every collective.
""")

least_across = ask("""
Forget the ring. Two hosts with two ranks each, and every rank needs the sum of all four. What is the least that has to
cross the link, each way?
( ) S/2
    > S/2 would be enough if each host needed half of the sum. But for every number it lacks the other host's part.
(x) S
( ) 1.5 S, the ring's
    > The ring sends the least that a **rank** can send. A host has two ranks that can add up among themselves before
    anything leaves.
( ) 2 S, since there are two ranks whose buffers have to cross
    > No rank needs the two buffers separately. Their sum is enough, and that has S bytes.
Why: **S.** Each host adds up what its ranks have. The other host needs this sum, which has S bytes, however many ranks
it is made of. Less is impossible: every number of the result depends on both hosts.
""")

two_cards = ask("""
Leaders or rails? Count only the time across, not the stages inside a host. First the hosts have one link of 25 MB/s,
which all connections share. Then each rank has a network card and a link of 25 MB/s of its own. What is true?
( ) rails take half as long as leaders, over one link and over two
    > Over one link, the two connections of rails get half of it each. Only the bytes count there, and they are S either
    way.
(x) over one link both take the same time; over two, rails take half as long
( ) over one link both take the same time; over two, both take half as long
    > With leaders, one rank of each host sends everything, over its own card. The other card idles.
( ) both take the same time, over one link and over two: S bytes have to cross in any case
    > They have to, but two cards can take half of them each, if both have something to carry.
Why: S bytes at 25 MB/s take 129 ms over one link, in however many connections they cross. Over two links, rails send
S/2 over each, in 64 ms; leaders use one card, and the other one idles. Servers for training have a network card for
each GPU, and the cards with the same number on all servers are joined: that is called a rail.
""")

many_hosts = ask("""
Now 128 hosts with 8 GPUs each. A ring in the order of the hosts sends 2 (N - 1)/N S out of each host. How much less is
it with the hierarchical way?
( ) 8 times less, because eight ranks add up first
    > This would be true if the ring left the host eight times. A ring in the order of the hosts leaves each host once,
    however many ranks are on it.
( ) half as much, nearly as with two hosts
    > With two hosts of eight it would be S instead of 1.88 S. Put 128 into 2 (h - 1)/h.
(x) hardly any less
Why: **Hardly any less**: 2 · 127/128 S instead of 2 · 1023/1024 S. The bytes differ only with few hosts. Two advantages
remain: the number of steps grows with the hosts and no longer with all ranks, and rails use all cards.
""")

two_by_two = series(
    """
Two hosts, na and nb, have two GPUs each. A launcher starts one process for each GPU: ranks 0, 1, 2 and 3. Unless a
question says otherwise, ranks 0 and 1 are on na. Each process sets RANK and LOCAL_RANK from what the launcher says.
What happens?
""",
    rank_for_gpu="""
Every rank calls `torch.cuda.set_device(rank)`, which worked on one host with four GPUs. Here …
( ) rank 2 takes the first GPU of nb, the third of all
    > This would be true if GPUs were numbered over all hosts. Each process sees the GPUs of its own host only,
    numbered from 0.
( ) ranks 2 and 3 use the GPUs of na over the network
    > A process can only use the GPUs of the host that it runs on.
(x) ranks 2 and 3 raise an error
Why: On nb there are the GPUs 0 and 1, and no GPU 2 or 3. The number of a GPU counts within the host.
""",
    local_rank_of_three="""
RANK and LOCAL_RANK of the last process are …
(x) 3 and 1
( ) 3 and 3
    > LOCAL_RANK counts the processes of one host, and nb has two of them: 0 and 1.
( ) 1 and 3
    > RANK is the number among all processes, LOCAL_RANK the one on the host.
Why: RANK says who you are in a collective, LOCAL_RANK which GPU you take.
""",
    modulo_in_turn="""
Every rank takes GPU `rank % 2`. This time the launcher deals the ranks out in turn: 0 and 2 are on
na, 1 and 3 on nb. So …
( ) each rank has a GPU of its own: 0 and 1 on each host
    > This would be true if the ranks of each host had neighbouring numbers. Here na has ranks 0 and 2, and both are
    even.
(x) both ranks of a host take the same GPU
( ) two ranks raise an error
    > Both hosts have a GPU 0 and a GPU 1, so every number exists.
Why: Ranks 0 and 2 both take GPU 0 of na, ranks 1 and 3 both take GPU 1 of nb. NCCL refuses that with "Duplicate GPU
detected"; other programs are slow, or run out of memory. LOCAL_RANK is right for every order.
""",
    master_on_loopback="""
The script for both hosts has `MASTER_ADDR=127.0.0.1`, left over from tests on one host. Then …
( ) all four ranks meet: rank 0 opens the port, and the others find it
    > This would be true on one host. On every host, 127.0.0.1 means that host itself.
(x) ranks 0 and 1 wait for ranks 2 and 3, which look for rank 0 on their own host
( ) two groups of two ranks form, one on each host
    > This would be true if each host had a rank 0. There is only one, and it waits for a world of four.
Why: They wait until they give up. Rank 0's store is at port MASTER_PORT of na. On nb, 127.0.0.1 is nb, and no process
listens there. MASTER_ADDR has to be an address that all hosts reach. A host's name can be a trap, too: Debian writes
`127.0.1.1` for it into the host's own /etc/hosts.
""",
)
