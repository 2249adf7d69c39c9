"""The predictions of lesson 07b: logs, and napkin problems, whose numbers the tests work out again.

Unless a question says otherwise: links at full speed and no latency, GB are 10⁹ bytes, and a ring leaves each server
once, so that all its NICs together carry what leaves one rank."""

from labkit.grading.prediction import ask

nearest_nic = ask("""
GPU 1 has to send to another server. Which NIC is near to it?
( ) NIC0
    > NIC0 is near to GPU 0: look where the row of GPU0 meets the column of NIC0. The row of GPU1 says something else
    there.
( ) NIC1, which has its number
    > Numbers say nothing about the wires. NIC1 is near to GPU 2: look where their row and column meet.
(x) none of them
( ) all of them: NV18 joins everything
    > NV18 stands between GPUs. NVLink joins GPUs to each other and to no NIC.
Why: **None of them.** This server has four NICs for the traffic of eight GPUs: GPUs 0, 2, 4 and 6 have one near by. In
the row of GPU1 every NIC is SYS.

Line by line:

- `NV18` between two GPUs: 18 NVLinks, 450 GB/s in each direction.
- `PIX`, as between GPU0 and NIC0: one PCIe switch lies between them. The NIC reads from the GPU's memory without
using a processor.
- `SYS`, as between GPU1 and every NIC: over the link between two processors as well, the slowest path. `NODE` would be
in between: through one processor, from one of its PCIe roots to another.
- So GPU 1 should hand its data to GPU 0 over NVLink, and GPU 0's NIC sends it. NCCL does that (it calls it PXN).
""")

eight_bytes_in_the_log = ask("""
By NCCL's source, a tree with the protocol LL costs 6.8 µs to begin with, 0.6 µs for each message over NVLink and 5.0 µs
for each message over the network. Within a server the 8 GPUs are a chain. The 3 servers are a tree of depth 1. The sum
goes all the way up, and comes down again. Which `time` does NCCL expect for 8 bytes on these 24 GPUs?
= 25.2 µs
( ) 16.0
    > This is the way up. The sum also has to come down again, over as many messages.
( ) 18.4
    > This leaves out the 6.8 µs that a call costs before anything moves.
( ) 11.8
    > This counts the servers only. Inside each one the sum passes through 8 GPUs in a chain, too.
( ) 35.2
    > This counts two network messages on the way up. But the tree has depth 1: both servers send to the root at the
    same time.
( ) 32
    > This counts the 6.8 µs twice, for the way up and the way down. A call pays them once.
Why: **25.2 µs**: 6.8 + 2 × (7 × 0.6 + 1 × 5.0). This is the very figure in the log: `8 Bytes -> Algo 0 proto 0 time
25.200924`. You have worked out what NCCL's model says: algorithm 0 is the tree, protocol 0 is LL, and
`time` is what its model expects, in µs.

nccl-tests measured **64.18 µs** on the same servers. The model is made for choosing among algorithms, and for that it
only has to get their order right.
""")

gradient_of_7b = ask("""
A model of 7 billion parameters, gradients in bf16 (2 bytes each). 64 H100s in 8 servers, each with 8 NICs of 400 Gb/s.
Rings pass through the 8 GPUs of a server and leave it once, and together they keep all its NICs busy. No latency, links
at full speed. How long does the all-reduce take?
= 68.9 ms
( ) 35
    > This sends the gradient once, as a reduce-scatter does. An all-reduce also has to hand the sums out.
( ) 138
    > Twice too long: are these 4 bytes per parameter? bf16 has 2. Or were the NICs halved? Their 400 Gb/s are one
    direction already.
( ) 551
    > This is one NIC for all. Each server has eight, 400 GB/s together, and the rings share them.
( ) 8.6
    > A factor of 8: 400 Gb/s are gigabits, 50 GB/s.
Why: **68.9 ms.** S = 7·10⁹ × 2 B = 14 GB. 400 Gb/s are 50 GB/s, and 8 NICs 400 GB/s. What leaves a server is what
leaves one rank of a ring: 2 S (N - 1) / N = 2 × 14 GB × 63/64 = 27.6 GB. 27.6 GB / 400 GB/s = 68.9 ms.

Published for 64 H100s with such a network: 8 GiB in 52.7 ms (nccl-tests issue 309). That makes 86 ms for 14 GB. The
links ran at 80 % of their speed.
""")

backward_of_7b = ask("""
The same 7 billion parameters. Each GPU gets 2 sequences of 4,096 tokens per step and does 400 TFLOP/s (40 % of an
H100's 989 in bf16). A backward pass takes 4 floating-point operations per parameter and token: two for the gradient of
the inputs, two for that of the weights. How long does it take?
= 573 ms
( ) 860
    > 6 operations per parameter and token include the forward pass. The backward pass has 4 of them.
( ) 287
    > Half of it. Are these 2 operations per parameter and token? That is the forward pass, and the backward pass
    takes twice as many. Or was one of the 2 sequences left out?
( ) 1147
    > Twice too long: the 4 operations already count a multiplication and an addition as two.
( ) 232
    > This takes the peak of 989 TFLOP/s, which no program reaches: the question says 400.
Why: **573 ms**: 4 × 7·10⁹ × 8,192 tokens = 2.29·10¹⁴ operations, at 4·10¹⁴ a second. The all-reduce of 69 ms fits into
it eight times, **if** it starts while the backward pass is still running: bucket by bucket, as DDP does. Only the last
bucket, which is ready when the pass ends, cannot hide.
""")

tokens_that_hide_it = ask("""
Now make the batch smaller. Below how many tokens per GPU does the backward pass (4 operations per parameter and token,
400 TFLOP/s) end before the all-reduce of the gradient (bf16, 64 GPUs, 400 GB/s per server)?
= 984 tokens
( ) 656
    > 6 operations per parameter and token count the forward pass, too, in which no gradient is there yet.
( ) 1969
    > This is a factor of 2 too many: a backward pass takes 4 operations per parameter and token, or the gradient has
    2 bytes per parameter.
( ) 492
    > This sends the gradient once. An all-reduce sends it nearly twice.
( ) 2434
    > This takes the peak of 989 TFLOP/s. The question says 400.
( ) 7875
    > This is one NIC of 50 GB/s. A server has eight of them.
Why: **984 tokens.** 4 P T / F = 2 × 2 P (N - 1)/N / W, with P parameters, T tokens, F operations a second and W bytes a
second. P cancels: T = F / W × 63/64 = 400·10¹² / 400·10⁹ × 63/64. **The size of the model does not matter.** What
matters is how many operations the GPU does while the network carries one byte: 1,000 here. A network half as fast needs
twice the batch.
""")

fsdp_on_a_slow_network = ask("""
Two servers of 8 GPUs; each server has a single NIC, of 100 Gb/s. Every collective is a ring through all 16 GPUs that
leaves each server once. 7 billion parameters; weights and gradients travel in bf16. DDP all-reduces the gradient once a
step. FSDP all-gathers the weights for the forward pass and again for the backward pass, and reduce-scatters the
gradient. How long does FSDP communicate in a step?
= 3.15 s
( ) 2.1
    > This is DDP, or FSDP that keeps the weights after the forward pass. FSDP frees them and gathers again for the
    backward pass.
( ) 4.2
    > This counts the reduce-scatter as an all-reduce. A rank needs only its own part of the gradient.
( ) 1.05
    > This is one of the three calls.
( ) 1.68
    > With an all-gather that sends each half of the weights over the network once, and spreads it by NVLink, this is
    right. A ring sends nearly all of it out of each server: 15/16, not 1/2.
( ) 0.394
    > A factor of 8: 100 Gb/s are gigabits, 12.5 GB/s.
( ) 6.3
    > Twice too long: are these 4 bytes per parameter? bf16 has 2.
Why: **3.15 s.** Each of the three calls sends S (N - 1) / N = 14 GB × 15/16 = 13.1 GB out of a server, at 12.5 GB/s:
1.05 s each. DDP's all-reduce costs two of them, 2.1 s. FSDP takes 1.5 times DDP's bytes and needs 1/N of the memory for
weights, gradients and optimizer.

Over this network both wait. Keep the shards inside a server, where NVLink gathers them (*hybrid* sharding), or let
several micro-batches share one all-reduce.
""")

bucket_that_pays = ask("""
On those 64 GPUs (400 GB/s per server) every all-reduce costs 0.1 ms before its first byte moves. From which bucket size
on does a call spend more time on its bytes than on that price?
= 20.3 MB
( ) 40
    > 40 MB leave a server in 0.1 ms. But a bucket of S bytes sends 1.97 S.
( ) 2.54
    > This is one NIC of 50 GB/s. A server has eight.
( ) 5
    > This is one NIC of 50 GB/s, and S instead of the 1.97 S that an all-reduce sends.
Why: **20.3 MB.** 0.1 ms × 400 GB/s = 40 MB leave a server in that time, and a bucket of S bytes makes 2 S (N - 1) / N =
1.97 S of them. PyTorch's DDP takes 25 MiB unless you say otherwise: about this. With smaller buckets you pay mostly for
calls. With larger ones the first all-reduce starts later, and more is left to send when the backward pass has ended.
""")

tokens_to_experts = ask("""
A layer with 64 experts, one on each of 64 GPUs in 8 servers. Each GPU has 4,096 tokens of 4,096 numbers in bf16 and
sends every token to 2 experts, all equally popular. Each GPU has a NIC of 400 Gb/s, and NVLink's part hides behind it.
How long does one all-to-all take?
= 1.17 ms
( ) 0.587
    > Every token goes to 2 experts: two copies travel.
( ) 2.35
    > Twice too long: are these 4 bytes per number, or the way there and back? One all-to-all is one way.
( ) 0.147
    > A factor of 8: 400 Gb/s are gigabits, 50 GB/s. Or did all NICs of a server serve one GPU?
( ) 0.168
    > This is what goes to one other server. Experts in all seven others get tokens.
Why: **1.17 ms.** A token is 8,192 bytes; 4,096 tokens × 2 copies = 67.1 MB. 56 of 64 experts are in other servers, so
7/8 of it, 58.7 MB, leave through the NIC at 50 GB/s. The results have to come back, and the backward pass does both
once more: four times 1.17 ms per layer. With 60 layers that is 0.28 s per step. This is why such models prefer
experts in the same server.
""")

gigabyte_on_100000 = ask("""
A perfect ring all-reduces 1 GB on 64 GPUs in 4.92 ms: 400 GB/s leave each server, and latency is zero. How long does it
take on 100,000 GPUs with the same links?
= 5.0 ms
( ) 7690
    > This grows in proportion to the number of GPUs. Each rank has a link of its own: more ranks bring more links,
    and S is cut into more pieces.
( ) 2.5
    > This sends S. An all-reduce sends nearly 2 S: once to add up, once to hand out.
( ) 425
    > With latency that is right: 0.42 s for 199,998 steps. The question sets latency to zero.
Why: **5.0 ms**, 1.6 % more. 2 S (N - 1) / N grows from 1.97 S to 2 S: there are more ranks, but each sends smaller
pieces. For the *bytes* the number of ranks hardly matters. For the *latency* it does: 2 (N - 1) steps of 2.1 µs are
0.42 s, 84 times as long as the bytes. So at this size a flat ring is out of the question. With trees between the
servers the steps grow with log N only.
""")

one_slow_nic = ask("""
A pair of servers, each with 8 NICs of 400 Gb/s. NCCL cuts the buffer into 8 equal parts, one ring for each NIC. One NIC
has a bad cable and runs at 100 Gb/s. Which busbw does `all_reduce_perf` (with `NCCL_ALGO=Ring`) show at most?
= 100 GB/s
( ) 362.5
    > This is the sum of what the NICs can do: 7 × 50 + 12.5. But each NIC has an equal part to carry, and the call
    ends when the slowest has done its part.
( ) 350
    > This would be true if NCCL left the slow NIC out. It does not know that it is slow.
( ) 12.5
    > This is the slow NIC alone. The other seven carry their parts at the same time.
( ) 400
    > This is what two healthy servers show. The call ends when its slowest ring has ended.
( ) 53.3
    > This is algbw, S / t. busbw multiplies it by 2 (N - 1) / N, here 1.875.
( ) 187.5
    > The factor 2 (N - 1) / N is in here twice: busbw is what the NICs carry, 100 GB/s.
( ) 800
    > A factor of 8: 100 Gb/s are gigabits, 12.5 GB/s.
( ) 200
    > This counts both directions, or both laps round the ring. busbw counts what leaves a server.
Why: **100 GB/s** instead of 400. The parts are equal, so all wait for the slowest: 8 × 12.5 GB/s. One bad cable
of eight costs three quarters of the bandwidth, and no error is raised. A busbw that is a quarter, a half or an eighth
of what the neighbours reach points to one link, or to NICs that are not used. Test pairs of servers, then one NIC at a
time (`NCCL_IB_HCA` names the ones to use).
""")

line_of_a_log = ask("""
Two lines of a published log (nccl issue 1453, `all_reduce_perf` on 24 H100s in 3 servers, the columns *out-of-place*):
33,554,432 bytes took 2,180.1 µs at a busbw of 29.50 GB/s. 67,108,864 bytes took 24,410 µs. Which busbw does the second
line show?
= 5.27 GB/s
( ) 2.75
    > This is algbw, S / t. busbw multiplies it by 2 (N - 1) / N, here 1.92.
( ) 59
    > This would be true if the time had stayed the same. It grew eleven times.
( ) 29.5
    > This would be true if the time had doubled with the bytes. It grew eleven times.
( ) 2.64
    > This takes the factor of an all-gather, (N - 1) / N. An all-reduce makes two laps.
Why: **5.27 GB/s.** 67,108,864 B / 24,410 µs = 2.75 GB/s (the algbw), times 2 × 23/24. Twice the bytes take eleven times
as long. No α and β can say that: with T = a + b S, twice the bytes take at most twice as long. NCCL may well have
changed its algorithm in between, but it changes only to what it expects to be faster. At 512 MiB it expected 5,679 µs
from a ring, and nccl-tests measured 190 ms.

So look for something that breaks under load, and not for a slow cable, which would have been slow at 32 MiB, too. The
thread fits: two of these servers were fine together, in one rack or across two, and only three were slow. Over Ethernet
(RoCE), lost packets that are sent again look like this, says a maintainer of NCCL in nccl issue 378.
""")
