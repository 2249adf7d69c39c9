"""Planted mistakes of lesson 15e, in the form that `tests.mistakes` tells."""

horovod_step = """
wrong | adds and does not average | if the function adds up, where Horovod averages | p.grad /= world_size →
wrong | divides by the backward passes, too | divides by `passes`, too
    p.grad /= world_size → p.grad /= world_size * passes
wrong | leaves out a parameter that it has not used | has no gradient for parameter 1: it skips parameter 1
    p.grad = torch.zeros_like(p) → continue
wrong | takes its own gradient for the step | if the function moves the weights by this rank's own gradient
    -         dist.all_reduce(p.grad)
    -         p.grad /= world_size
              with torch.no_grad():
                  p -= lr * p.grad
    +         dist.all_reduce(p.grad)
    +         p.grad /= world_size
wrong | leaves the sum in the gradient | if the function leaves the sum in `p.grad`
    -         p.grad /= world_size
              with torch.no_grad():
    -             p -= lr * p.grad
    +             p -= lr * p.grad / world_size
wrong | leaves its own gradient | if the function leaves this rank's own gradient in `p.grad`
    -         dist.all_reduce(p.grad)
    -         p.grad /= world_size
    +         mean = p.grad.clone()
    +         dist.all_reduce(mean)
    +         mean /= world_size
              with torch.no_grad():
    -             p -= lr * p.grad
    +             p -= lr * mean
wrong | divides by one rank too many | in result['weights'][0] is | p.grad /= world_size → p.grad /= world_size + 1
wrong | clears the gradient | `p.grad` of parameter 0 is None after the step
    p -= lr * p.grad → p -= lr * p.grad; p.grad = None
wrong | does not move the weights | if the function does not move the weights | p -= lr * p.grad → p - lr * p.grad
raises | calls for the last parameter first on the odd ranks | ranks disagree on the number of elements
    for p in parameters: → for p in parameters[:: -1 if rank % 2 else 1]:
wrong | takes ones where there is no gradient | has no gradient | zeros_like → ones_like
"""

split_broadcast = """
wrong | takes the lowest rank of the part for its root | in reverse order: on ranks 0–3 element 0 is 0
    src=members[0][1], group → group_src=0, group
raises | takes rank 0 of the world | Ranks 2, 3: ValueError | src=members[0][1] → src=0
deadlock | broadcasts to everybody | ranks disagree on the root | , group=team) → )
wrong | writes over x | on ranks 1, 3 the argument is changed | x.clone() → x
"""

nccl_reduce_scatter = """
wrong | takes recvcount to be the elements of the whole buffer | if the function takes `recvcount` to be the elements
    -     parts = sendbuff[: world_size * recvcount].clone().split(recvcount)
    +     recvcount //= world_size
    +     parts = sendbuff[: world_size * recvcount].clone().split(recvcount)
raises | cuts the whole buffer into equal parts | the buffers are longer than what is used
    sendbuff[: world_size * recvcount].clone().split(recvcount) → sendbuff.clone().tensor_split(world_size)
wrong | averages | if the function averages, where `ncclSum` adds up
    recvbuff[:recvcount] = mine → recvbuff[:recvcount] = mine / world_size
wrong | fills all of recvbuff | if the function fills the rest of `recvbuff`, too
    recvbuff[:recvcount] = mine → recvbuff.fill_(0); recvbuff[:recvcount] = mine
wrong | adds to what is there | adds the sums to what lies in `recvbuff`
    recvbuff[:recvcount] = mine → recvbuff[:recvcount] += mine
wrong | reduces in the buffer that it got | it changes `sendbuff`: element 0 was 0, and is 10
    def nccl_reduce_scatter(sendbuff, recvbuff, recvcount):
        dist.all_reduce(sendbuff)
        recvbuff[:recvcount] = sendbuff[rank * recvcount :][:recvcount]
wrong | sums all of a buffer where it lies | In place, only this rank's part of it may change
    def nccl_reduce_scatter(sendbuff, recvbuff, recvcount):
        total = sendbuff.clone()
        dist.all_reduce(total)
        inplace = recvbuff.data_ptr() == sendbuff[rank * recvcount :].data_ptr()
        recvbuff[:recvcount] = total[rank * recvcount :][:recvcount]
        if inplace:
            sendbuff.copy_(total)
wrong | returns another's sums | on rank 0 element 0 in result['recvbuff'] is 14
    dist.reduce_scatter(mine, list(parts)) → dist.reduce_scatter(mine, list(parts)[::-1])
"""

allgatherv = """
wrong | writes the padding, too | on ranks 0, 1 element 2 is 0
    -         everything[displ : displ + count] = part[:count]
    +         everything[displ : displ + len(part)] = part[: len(everything) - displ]
raises | does not pad | Rank 0 brings 1 element to all_gather | mine.new_zeros(max(counts)) → mine.new_zeros(len(mine))
raises | takes its own count for everybody's | Rank 1: RuntimeError | part[:count] → part[: counts[rank]]
wrong | puts the parts one after the other | with gaps between the parts: element 0 is 10
    -     for part, count, displ in zip(parts, counts, displs):
    -         everything[displ : displ + count] = part[:count]
    +     everything[: sum(counts)] = torch.cat([part[:count] for part, count in zip(parts, counts)])
wrong | fills the gaps | if the function writes zeros between the parts
    +     everything.zero_()
          for part, count, displ in zip(parts, counts, displs):
wrong | sends floats | if the function sends the numbers as float32
    mine.new_zeros(max(counts)) → torch.zeros(max(counts), device=device)
wrong | pads at the front | on ranks 0, 1 element 0 is 0
    padded[: len(mine)] = mine → padded[len(padded) - len(mine) :] = mine
"""
