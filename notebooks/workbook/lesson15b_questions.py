"""The predictions of lesson 15b: what a log and a topology show, what algorithms send, and how settings are read."""

from labkit.grading.prediction import ask

fact_in_the_log = ask("""
Two servers, each with 8 A100s and four network cards. Their owner expected a busbw of more than 40 GB/s, and did not
get it. Which fact in these lines explains that?
( ) `2 coll channels`: two channels are too few for 16 GPUs
    > There are few of them, and there is a reason. A channel needs a way to the network, and you can see how many
    ways NCCL has found.
(x) every connection between the servers is `via NET/AWS Libfabric/0`
( ) `P2P/IPC/read`: inside a server the GPUs go through the CPU's memory
    > P2P means that one GPU reads another one's memory directly. Through the CPU's memory it would be `SHM`.
( ) `9 -> 0`: the ranks of the two servers alternate in the ring
    > Rank 9 is in the second server, and rank 0 in the first. A ring has to come back once. It would be bad to see
    such lines for most ranks.
Why: **`/0` in every line.** Behind the network's name stands the number of the card. Cards 1, 2 and 3 do nothing. And
`/GDRDMA` is missing behind it: the card does not read the GPU's memory itself, every byte takes a detour through the
CPU's memory.
""")

busbw_of_one_card = ask("""
Each of the four cards has 100 Gb/s. NCCL uses a single one in each server, for rings that leave each server once. Which
busbw can an all-reduce over the two servers reach at most?
= 12.5 GB/s +- 5 %
( ) 50
    > That is what all four cards have together.
( ) 100
    > These are gigabits. A byte has eight of them.
( ) 25
    > Both directions of a link? busbw counts one of them.
( ) 6.25
    > An all-reduce sends nearly 2 S, but busbw has this factor in it already (lesson 07).
( ) 6.7
    > An all-reduce sends nearly 2 S, but busbw has this factor in it already (lesson 07).
Why: **12.5 GB/s**: 100 Gb/s are 12.5 GB/s, and the busbw of a ring is what its slowest link carries. NCCL's engineers
count on 12 GB/s for each card of 100 Gb/s in practice (nccl issue 307). All four cards would make 50. On two such
servers, 57 GB/s were reported later (nccl issue 527): more than 50, and you will see below how that can be.
""")

gpus_that_cards_read = ask("""
By default NCCL lets a card read a GPU's memory directly (GPU Direct RDMA) if the path between them is PXB or nearer.
For how many of the seven GPUs in this matrix?
= 2.0 +- 1 %
( ) 4
    > These are the GPUs on the cards' CPU. NODE is farther than PXB: it goes through the CPU.
( ) 7
    > Some of them are SYS away: over the link between two CPUs.
Why: **2**: GPU2 and GPU3, which are PIX from both cards. The two on the same CPU are NODE away, and the others SYS.
What they send to another server is copied into the CPU's memory first, or handed to GPU2 or GPU3 over NVLink. (The
owner of this server found that GPU Direct RDMA was switched off, and got twice the bandwidth with it: nccl-tests issue
29.)
""")

way_to_a_far_card = ask("""
GPU0 has to send data to GPU5 of **another** server of this kind, over that GPU's rail: through NIC3, GPU5's own card.
From GPU0 to NIC3 the path is SYS. Which way does NCCL send the data?
( ) through both CPUs to NIC3
    > NCCL could. But there is a faster way inside this server.
( ) through NIC8, which is GPU0's own card, and then through the network to the other rail
    > Where each rail has switches of its own, data climbs to the next level of switches to get from one to another,
    and everybody's traffic meets there.
(x) over NVLink to GPU5 of its own server, and from there through NIC3
( ) it cannot: a GPU uses its own card only
    > Nothing forbids another card. It is a question of the path.
Why: **Over NVLink, and then through NIC3.** NCCL calls this path PXN. It is taken where the relay is joined by NVLink,
is PXB or nearer to the card, and the direct path is slower or goes through a CPU (`paths.cc`). The data stays on that
rail all the way. An all-to-all makes good use of it.
""")

tree_on_two_nodes = ask("""
Two nodes (servers) of 8 GPUs. A ring through all 16 sends 2 S · 15/16 = 1.875 S out of each node. How much does the
double tree send out of each node, as a multiple of S?
= 1.0 S +- 2 %
( ) 2
    > 2 S is right for a node with two children in one of the trees. Here no node has more than one child.
( ) 0.5
    > One tree carries half of the buffer. There are two.
( ) 1.875
    > That would be true if each of the 16 GPUs had a place in the tree. The tree joins the two nodes.
Why: **1 S.** Over two nodes a tree has one edge. In one tree a half of the buffer goes up from node 1 to node 0 and its
total comes down, in the other tree it is the other way round: each node sends S/2 twice. So two nodes can show a busbw
of nearly twice what the network carries, 57 GB/s over 50, say. Force `NCCL_ALGO=Ring` if you want to test the network.
""")

collnet_out_of_a_node = ask("""
16 nodes of 8 GPUs. A ring sends 2 S · 127/128 = 1.98 S out of each node. With CollNet the nodes add up inside, and the
switches of the network (SHARP) add up what the nodes send. How much does each node send, as a multiple of S?
= 1.0 S +- 2 %
( ) 1.984
    > In a ring a node hands on the sums of others and then their totals. The switch does that here.
( ) 2
    > It sends S and receives S. One direction of its links carries one S.
( ) 8
    > The node adds up inside first: each GPU sends an eighth.
( ) 0.0625
    > Each node brings a whole buffer. Nobody else has its sum.
Why: **1 S**, and it receives S. A node sends its sum once. The switch adds all 16 up and sends the total to each.
Nobody has to hand anything on. CollNet direct takes four steps here, and just as many with 1,000 nodes. CollNet chain
hands the sum from GPU to GPU inside a node: 7 steps, one to the switch, and the same way back.
""")

steps_of_nvls = ask("""
72 GPUs on one set of NVSwitches. A ring all-reduce takes 2 · 71 = 142 steps. How many does NVLS take, if each way to or
from the switch is a step?
= 4.0 +- 1 %
( ) 2
    > Up to the switch and down again, twice: GPU r gets the sum before it goes to everybody.
( ) 14
    > 2 · ⌈log2 72⌉ = 14 would be a tree. The switch is joined to all of them at once.
( ) 142
    > That is the ring.
Why: **4**, whatever the number of GPUs: all copies of chunk r go to the switch, the sum goes to GPU r, GPU r sends it
back once, and the switch writes it to all.
""")

when_algo_is_read = ask("""
A program has all-reduced on the GPUs. Then it sets `os.environ["NCCL_ALGO"] = "Ring"` on all ranks, and all-reduces
again in the same process group. What happens?
( ) it runs as a ring from now on
    > That would be true if NCCL read the variable in every call. It makes its table of times once.
(x) nothing changes; a new process group would run as a ring
( ) nothing changes until the program is started again
    > That is true of the settings that NCCL keeps once per process, such as the number of channels. This one is read
    more often.
( ) the ranks hang, because they disagree
    > They would if they chose differently. All set the same, and none of them looks.
Why: **Nothing, before a new group.** NCCL reads `NCCL_ALGO` and `NCCL_PROTO` when it makes a communicator, and prices
all algorithms then (`graph/tuning.cc`). torch makes a group's communicator at the group's first operation, at the
latest. So `dist.new_group()` switches them in a running program.
""")

forced_low_latency = ask("""
Somebody broadcast 128 MiB between two ranks that share one GPU. NCCL's own choice, a ring with the protocol Simple,
took 35.5 ms. `NCCL_PROTO=LL` forces the low-latency protocol, which sends a flag of 4 bytes with every 4 bytes of data.
Between nodes, as these two are for NCCL, a thread of the CPU also looks at every flag before a message leaves
(`transport/net.cc`). How long did it take then?
( ) less: latency is lower
    > LL saves some µs in each step. At 128 MiB it is the bytes that count.
( ) about the same
    > That would be true if flags were free. Half of what LL sends is flags.
( ) twice as long
    > That is what the flags alone would cost, and what NCCL's own table in that log expects: 1.2 GB/s instead of 2.4.
(x) more than five times as long
Why: **195.8 ms, 5.5 times as long** (published, eunomia-bpf/nccl-eBPF). Flags double the bytes, and NCCL's tables
expect just that (the one that was recorded on the H200, too: 0.8 GB/s for an all-reduce with Simple, 0.4 with LL). In
the published run LL was slower still. A forced setting holds for *all* sizes and operations. Use it to find out
something, not in production.
""")
