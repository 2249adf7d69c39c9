"""Planted mistakes of lesson 12b, in the form that `tests.mistakes` tells."""

later_linear = """
wrong | leaves it to autograd, which does everything at once | a weight has its gradient
    def later_linear(x, weight, bias, later):
        return x @ weight.T + bias
wrong | computes at once, and only adds later | makes 4 products
    -             @torch.no_grad()  # outside of the backward pass autograd would note it
    +             rows = dy.reshape(-1, dy.shape[-1])
    +             slopes = rows.T @ x.reshape(-1, x.shape[-1]), rows.sum(0)
    +
                  def weights():
    -                 rows = dy.reshape(-1, dy.shape[-1])
    -                 for p, slope in ((weight, rows.T @ x.reshape(-1, x.shape[-1])), (bias, rows.sum(0))):
    +                 for p, slope in zip((weight, bias), slopes):
wrong | lets autograd note what it does later | carries a graph
    @torch.no_grad()  # outside of the backward pass autograd would note it →
wrong | keeps the last micro-batch's gradient only | two micro-batches
    p.grad = slope if p.grad is None else p.grad + slope → p.grad = slope
wrong | forgets the bias | a gradient is missing | , (bias, rows.sum(0))): → ,):
wrong | sends nothing back | on rank 0 element [0, 0] in result['gradients of x'][0] is 0
    return dy @ weight, None, None → return torch.zeros_like(x), None, None
wrong | does the work before the backward pass | before the backward pass has begun
    ctx.save_for_backward(x) → later.append(lambda: None); ctx.save_for_backward(x)
raises | knows two dimensions only | Ranks 0, 1: RuntimeError
    rows = dy.reshape(-1, dy.shape[-1]) → rows = dy.view(len(dy), dy.shape[1])
"""

split_order = """
wrong | does each second half at once, as 1F1B does | on ranks 0, 1 element 0 in result['time'] is 14
    if len(waiting) > place: → if waiting:
wrong | puts all second halves at the end | on ranks 0, 1 element 0 in result['kept at once'] is 4
    if len(waiting) > place: → if False:
wrong | forgets those that are left at the end | The order of rank 1 leaves out W3 | found + waiting → found
wrong | does the second half first | waits with W0 for B0
    +         if op[0] == "B":
    +             found += [("W", op[1]), op]
    +             continue
              found.append(op)
    -         if op[0] == "B":
    +         if False:
wrong | puts one off, and does the forward pass after it first | no longer the one that was given
    return found + waiting → return sorted(found, key=lambda op: op[0] != "F") + waiting
raises | expects that there are as many left as it puts off | Ranks 0–2: IndexError
    found + waiting → found + [waiting.pop(0) for _ in range(place)]
"""

tie_ends = """
wrong | leaves each copy its own gradient | on rank 0 element 0 in result['gradient'] is -1
    dist.all_reduce(weight.grad, group=ends) → pass
wrong | lets the copies begin as they are | on rank 1 element 1 in result['weight'] is -1
    dist.broadcast(weight.detach(), src=0, group=ends) → pass
wrong | lets only the two ends make the group | the next new_group would hang
    -     ends = dist.new_group([0, world_size - 1])
          if weight is not None:
    +         ends = dist.new_group([0, world_size - 1])
deadlock | asks all ranks of the world | Rank 1 finished the function without it
    dist.all_reduce(weight.grad, group=ends) → dist.all_reduce(weight.grad)
"""

interleaved_order = """
wrong | begins as 1F1B does | These orders never end
    ahead = min(2 * ahead + (chunks - 1) * ranks, len(forward)) → ahead = min(ahead, len(forward))
wrong | begins with the passes through the earlier chunks only | on ranks 0, 1 element 0 in result['time'] is 21
    min(2 * ahead + (chunks → min((chunks
wrong | takes the chunks back in the order in which they went forward | These orders never end
    reversed(range(chunks)) → range(chunks)
wrong | takes everything forward first | on rank 0 element 0 in result['kept at once, in chunks'] is 8
    ahead = min(2 * ahead + (chunks - 1) * ranks, len(forward)) → ahead = len(forward)
wrong | forgets the second chunk | The order of rank 0 leaves out F0 of chunk 1, F1 of chunk 1
    for c in range(chunks) for → for c in range(1) for
raises | takes the next one from a list that may be empty | Ranks 0, 1: IndexError
    order += [*forward[ahead + i : ahead + i + 1], op] → order += [forward[ahead + i], op]
wrong | leaves the last micro-batches where they are | The order of rank 0 leaves out B2 of chunk 0, B2 of chunk 1
    enumerate(back): → enumerate(back[: len(forward) - ahead]):
"""

pipeline_norm = """
wrong | counts the tied matrix twice | on ranks 0, 1 element 0 is 7.28 | if i != tied or rank == 0: → if True:
wrong | leaves the tied matrix out on both ranks | on ranks 0, 1 element 0 is 5 | or rank == 0 →
raises | expects each rank to have something of its own | Rank 1: RuntimeError
    -     squares = torch.zeros((), dtype=torch.float64, device=device)
    +     mine = [g for i, g in enumerate(gradients) if i != tied or rank == 0]
    +     squares = 0 * torch.stack([g.double().sum() for g in mine]).sum()
not as asked | asks for the squares and for the tied matrix one after the other | Rank 0 makes 2 calls that communicate
    return squares.sqrt() → dist.all_reduce(torch.zeros_like(squares)); return squares.sqrt()
"""
