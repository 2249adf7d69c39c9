"""Planted mistakes of lesson 13d, in the form that `tests.mistakes` tells."""

plan_dispatch = """
wrong | takes as many as it gives | on rank 0 element 1 in result[2] is 1
    dist.all_to_all_single(take, give) → take = give
raises | forgets experts that no token has chosen | Their length has to be a multiple of 2
    chosen.bincount(minlength=world_size) → chosen.bincount()
wrong | returns each token's place instead of the order | on rank 1 element 1 in result[0] is 3
    chosen.argsort(stable=True) → chosen.argsort(stable=True).argsort()
not as asked | asks one rank after the other | Rank 0 makes 4 calls that communicate, dist.all_to_all_single
    -     dist.all_to_all_single(take, give)
    +     for r in range(world_size):
    +         into = torch.empty_like(give)
    +         dist.all_to_all_single(into, give)
    +         take[r] = into[r]
"""

exchange_tokens = """
wrong | has no backward pass | no gradient reaches x, because nothing connects the result with it
    def exchange_tokens(x, give, take):
        got = x.new_empty(sum(take), *x.shape[1:])
        dist.all_to_all_single(got, x.detach(), take, give)
        return got
wrong | makes the result require a gradient, which leads nowhere | no gradient reaches x
    def exchange_tokens(x, give, take):
        got = x.new_empty(sum(take), *x.shape[1:])
        dist.all_to_all_single(got, x.detach(), take, give)
        return got.requires_grad_()
raises | does not swap the splits on the way back | Ranks 0, 1: RuntimeError
    slope.contiguous(), give, take) → slope.contiguous(), take, give)
wrong | divides by the number of ranks | if the function divides the gradients by the number of ranks
    return back → return back / world_size
wrong | adds up over the ranks | the gradient of x is wrong
    return back → dist.all_reduce(back); return back
wrong | sends nothing back, and keeps the gradients of what it got | that came, and does not send them back
    dist.all_to_all_single(back, slope.contiguous(), give, take) → back[: len(slope)] = slope[: len(back)]
"""

mixture_of_experts = """
wrong | forgets the gates | they are not multiplied by the gates | back * gate.flatten()[order, None] → back
wrong | weighs with the gates of other tokens: they are not in the order of the buffer | result['y'] is -0.158
    gate.flatten()[order, None] → gate.flatten()[:, None]
wrong | does not restore the order | in the order of the buffer
    torch.zeros_like(x).index_add(0, token, weighted) → weighted.view(len(x), -1, x.shape[1]).sum(1)
raises | does not swap the splits on the way back | belongs to a different buffer
    exchange(compute(came), take, give) → exchange(compute(came), give, take)
raises | assumes that every rank gets as many as it gives | ranks disagree on the number of elements
    token = order // chosen.shape[1] → take = give; token = order // chosen.shape[1]
deadlock | sends nothing where it has no token, and leaves the others waiting | Rank 0 finished the function without it
    +     if len(x) == 0:
    +         return x
          order, give, take = plan(chosen.flatten())
wrong | leaves the gates out of the gradient | on ranks 0, 1 None comes back in result['of the gates']
    gate.flatten()[order, None] → gate.detach().flatten()[order, None]
wrong | brings the results back without a gradient | on ranks 0, 1 None comes back in result['gradient of the tokens']
    exchange(compute(came), take, give) → exchange(compute(came).detach(), take, give)
not as asked | asks for the sizes twice | Rank 0 makes 6 calls that communicate, dist.all_to_all_single
    +     order, give, take = plan(chosen.flatten())
          back = exchange(compute(came), take, give)
"""

mixture_gradients = """
wrong | averages the experts over the ranks, as if they were copies | but each rank holds a different expert
    -         if p.grad is not None:
    -             p.grad /= world_size
    +         grad = p.grad if p.grad is not None else torch.zeros_like(p)
    +         dist.all_reduce(grad)
    +         p.grad = grad / world_size
wrong | leaves the experts' gradients as they are | still those of the sum of all ranks
    -     for p in experts:
    -         if p.grad is not None:
    -             p.grad /= world_size
wrong | adds the shared ones up and does not divide | 2 times what it should be: the sum over 2 ranks, and not their
    -         dist.all_reduce(p.grad)
    -         p.grad /= world_size
    +         dist.all_reduce(p.grad)
wrong | divides the shared ones twice | What differs is 1/2 of what it should be: divided by the number
    -         dist.all_reduce(p.grad)
    -         p.grad /= world_size
    +         dist.all_reduce(p.grad)
    +         p.grad /= world_size**2
wrong | divides the experts' twice | The experts' gradients are divided by the number of ranks twice
    -         if p.grad is not None:
    -             p.grad /= world_size
    +         if p.grad is not None:
    +             p.grad /= world_size**2
raises | takes for granted that every expert had a token | Rank 1: TypeError
    -         if p.grad is not None:
    -             p.grad /= world_size
    +         p.grad /= world_size
wrong | gives an expert without tokens a gradient of zeros | and it is a tensor now. Leave it None
    -         if p.grad is not None:
    -             p.grad /= world_size
    +         p.grad = torch.zeros_like(p) if p.grad is None else p.grad / world_size
"""

balance_loss = """
wrong | counts its own tokens only | this rank's own tokens
    -     dist.all_reduce(counts)
    -     part = counts / (tokens * world_size)
    +     part = counts / tokens
wrong | divides by its own tokens | of all ranks by the number of this rank's | (tokens * world_size) → tokens
wrong | forgets the number of experts | if the function leaves out the factor, the number of experts
    return experts * ( → return (
wrong | takes the probabilities for constants | carries no gradient
    probabilities.mean(0) → probabilities.detach().mean(0)
wrong | reduces the probabilities with a call that autograd does not see | result['gradient of the scores'] is 0
    def balance_loss(probabilities, chosen):
        experts = probabilities.shape[1]
        sums = torch.cat([chosen.bincount(minlength=experts).double(), probabilities.detach().sum(0)])
        dist.all_reduce(sums)
        part, mean = (sums / (len(chosen) * world_size)).chunk(2)
        return experts * (part * mean).sum() + 0 * probabilities.sum()
not as asked | waits for everyone once more | Rank 0 makes 2 calls that communicate
    part = counts / (tokens * world_size) → dist.barrier(); part = counts / (tokens * world_size)
"""

capped_mixture = """
wrong | counts the capacity over all tokens, not for each expert | though each has room for `capacity`
    place < capacity) → torch.arange(len(chosen)) < capacity)
wrong | counts the capacity over the world | on rank 0 element [0, 0] in result["of this rank's expert"] is 0.150
    -     sames = torch.nn.functional.one_hot(chosen, world_size).cumsum(0)
    -     place = sames.gather(1, chosen[:, None])[:, 0] - 1
    +     everyone = [torch.empty_like(chosen) for _ in range(world_size)]
    +     dist.all_gather(everyone, chosen)
    +     sames = torch.nn.functional.one_hot(torch.cat(everyone), world_size).cumsum(0)
    +     mine = sames[rank * len(chosen) : (rank + 1) * len(chosen)]
    +     place = mine[torch.arange(len(chosen)), chosen] - 1
wrong | gives zeros for dropped tokens | comes out as zeros
    -     return x.index_add(0, token, back[row] * gate[token, None])
    +     return torch.zeros_like(x).index_copy(0, token, x[token] + back[row] * gate[token, None])
wrong | forgets the gates | not multiplied by the gates | back[row] * gate[token, None] → back[row]
wrong | forgets the tokens themselves | themselves, `x`, are missing | x.index_add → torch.zeros_like(x).index_add
raises | drops those that come first | Rank 0: IndexError | (place < capacity) → (sames[-1, chosen] - place <= capacity)
wrong | crowds what is too much into the last place | on rank 0 element [2, 0] in result['y'] is -0.682
    -     (token,) = (place < capacity).nonzero(as_tuple=True)
    +     place = place.clamp(max=capacity - 1)
    +     token = torch.arange(len(chosen))
wrong | sends what it has, however much that is | `compute` got 5 rows. Call it once, with 8:
    def capped_mixture(x, h, chosen, gate, capacity, compute, exchange):
        order = chosen.argsort(stable=True)
        give = chosen.bincount(minlength=world_size)
        take = torch.empty_like(give)
        dist.all_to_all_single(take, give)
        back = exchange(compute(exchange(h[order], give.tolist(), take.tolist())), take.tolist(), give.tolist())
        return x.index_add(0, order, back * gate[order, None])
wrong | multiplies by the gates too early | The gates multiply what the experts get
    -     room = h.new_zeros(world_size * capacity, h.shape[1]).index_copy(0, row, h[token])
    +     room = h.new_zeros(world_size * capacity, h.shape[1]).index_copy(0, row, h[token] * gate[token, None])
          equal = [capacity] * world_size
          back = exchange(compute(exchange(room, equal, equal)), equal, equal)
    -     return x.index_add(0, token, back[row] * gate[token, None])
    +     return x.index_add(0, token, back[row])
wrong | sends the tokens themselves | The experts get `x`, and should get `h`
    index_copy(0, row, h[token]) → index_copy(0, row, (x + 0 * h)[token])
wrong | fills the buffer where autograd does not look | No gradient reaches `h`
    index_copy(0, row, h[token]) → index_copy(0, row, h.detach()[token])
wrong | exchanges by a call of torch's | No gradient reaches `h`
    +     came = torch.empty_like(room)
    +     dist.all_to_all_single(came, room.detach())
          equal = [capacity] * world_size
    -     back = exchange(compute(exchange(room, equal, equal)), equal, equal)
    +     back = exchange(compute(came), equal, equal)
not as asked | asks for sizes that it knows | Rank 0 makes 5 calls that communicate, dist.all_to_all_single
    +     dist.all_to_all_single(torch.empty(world_size), torch.tensor(equal, dtype=torch.float32))
          back = exchange(compute(exchange(room, equal, equal)), equal, equal)
"""

many_experts = """
wrong | takes what came for sorted by expert | on rank 0 element [1, 0] in result['y'] is 0.292
    .repeat_interleave(come.flatten()).argsort(stable=True) → [:0].new_tensor(range(len(came)))
wrong | does not restore the tokens' order | on rank 0 element [0, 0] in result["of this rank's experts"][0] is 0.182
    )[order.argsort()] → )
wrong | leaves the others waiting where it has no token | This rank's experts were called [0, 0] times
    +     if not len(x):
    +         return x
          order = chosen.argsort(stable=True)
not as asked | asks for the counts of ranks and then for those of experts | Rank 0 makes 6 calls that communicate
    +     dist.all_to_all_single(torch.empty_like(counts[:, 0]), counts.sum(1))
          give, take = counts.sum(1).tolist(), come.sum(1).tolist()
"""
