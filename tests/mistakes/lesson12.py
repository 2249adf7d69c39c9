"""Planted mistakes of lesson 12, in the form that `tests.mistakes` tells."""

cut_layers = """
wrong | loses the layers that are left over | if the function loses the layers that are left over
    def cut_layers(layers):
        each = layers // world_size
        return list(range(rank * each, (rank + 1) * each))
wrong | gives all that are left over to the last rank | or if it gives the last rank all that are left over
    def cut_layers(layers):
        each = layers // world_size
        return list(range(rank * each, layers if rank == world_size - 1 else (rank + 1) * each))
wrong | cuts as torch.chunk does | if the function rounds up on every rank
    def cut_layers(layers):
        return [part.tolist() for part in (*torch.arange(layers).chunk(world_size), torch.arange(0))][rank]
wrong | counts from 1 | if the function counts the layers from 1 | first = rank * each → first = 1 + rank * each
wrong | forgets that the ranks before it have more | that the ranks before it have one more | + min(rank, more) →
wrong | deals the layers out like cards | if the function deals the layers out like cards
    -     each, more = divmod(layers, world_size)
    -     first = rank * each + min(rank, more)
    -     return list(range(first, first + each + (rank < more)))
    +     return list(range(rank, layers, world_size))
wrong | returns a tensor | Return a list, and not a tensor
    list(range(first, first + each + (rank < more))) → torch.arange(first, first + each + (rank < more))
not as asked | asks the ranks what a formula says | Rank 0 makes 1 call that communicates, dist.barrier
    each, more = divmod(layers, world_size) → dist.barrier(); each, more = divmod(layers, world_size)
"""

stage_forward = """
wrong | does not divide the loss | if the function does not divide by `parts` | / parts →
wrong | divides the loss by the number of ranks | divides by the number of ranks, and not by | / parts → / world_size
wrong | computes a loss of its own | The last stage called `stage.loss` 0 times for 3 micro-batches
    stage.loss(y, targets) → torch.nn.functional.mse_loss(y, targets)
wrong | sends past `send` | The function calls dist.send (line 10). Send with `send`
    send(y.detach(), → dist.send(y.detach(),
wrong | starts a send of its own and never waits | The function calls dist.isend (line 10). Send with `send`
    send(y.detach(), → dist.isend(y.detach(),
wrong | starts to receive and never waits | The function may use what irecv (line 6) brings before it is there
    dist.recv(x, → dist.irecv(x,
raises | receives from anybody | rank 1 receives from any rank, and `stage.before` is 0 | x, src=stage.before) → x)
wrong | does not ask for the gradient of what it received | requires no gradient | x.requires_grad_() →
wrong | cuts the graph off, and not the message | What is returned for micro-batch 0 has no graph
    send(y.detach(), stage.after) → y = y.detach(); send(y, stage.after)
deadlock | keeps what it should send | Rank 1 waits for rank 0 to send | send(y.detach(), stage.after) → pass
raises | receives from the stage that comes after | rank 1 receives from rank 2, and `stage.before` is 0
    src=stage.before) → src=(rank + 1) % world_size)
raises | takes the ranks before and after its own for its neighbours | rank 0 sends to rank 1, and `stage.after` is None
    def stage_forward(stage, batch, parts, send):
        x, targets = batch
        if rank > 0:
            x = stage.room(len(targets))
            dist.recv(x, src=rank - 1)
            x.requires_grad_()
        y = stage(x)
        if rank < world_size - 1:
            send(y.detach(), rank + 1)
        else:
            y = stage.loss(y, targets) / parts
        return x, y
"""

stage_backward = """
raises | takes the ranks before and after its own for its neighbours | receives from rank 1, and `stage.after` is None
    def stage_backward(stage, x, y, send):
        dy = None
        if rank < world_size - 1:
            dy = torch.empty_like(y)
            dist.recv(dy, src=rank + 1, tag=1)
        y.backward(dy)
        if rank > 0:
            send(x.grad, rank - 1, tag=1)
deadlock | keeps the gradient to itself | Rank 0 waits for rank 1 to send | send(x.grad, stage.before, tag=1) → pass
wrong | sends past `send` | The function calls dist.send (line 9). Send with `send`
    send(x.grad, → dist.send(x.grad,
wrong | starts to receive and never waits | The function may use what irecv (line 6) brings before it is there
    dist.recv(dy, → dist.irecv(dy,
raises | waits for a send that returns nothing | A call of send returns None: there is nothing in it to use
    stage.before, tag=1) → stage.before, tag=1).wait()
wrong | sends back what came in | sends `x` back and not its gradient | send(x.grad, → send(x.detach(),
wrong | clears the gradients before each micro-batch | if the function clears the gradients of the micro-batches before
    y.backward(dy) → stage.zero_grad(); y.backward(dy)
deadlock | receives without the tag | rank 0 receives with tag 0 | src=stage.after, tag=1) → src=stage.after)
raises | sends and receives without the tag | A gradient goes back from rank 1 without tag=1
    def stage_backward(stage, x, y, send):
        dy = None
        if stage.after is not None:
            dy = torch.empty_like(y)
            dist.recv(dy, src=stage.after)
        y.backward(dy)
        if stage.before is not None:
            send(x.grad, stage.before)
"""

one_f_one_b = """
wrong | begins with one forward pass too many | on rank 0 element 0 in result['kept at once'] is 3
    min(stages - stage - 1, parts) → min(stages - stage, parts)
wrong | begins with one forward pass too few | on ranks 0, 1 element 0 in result['time'] is 24
    min(stages - stage - 1, parts) → max(0, min(stages - stage - 2, parts))
wrong | begins with as many forward passes as there are stages before it | These orders never end
    min(stages - stage - 1, parts) → min(stage, parts)
wrong | forgets that there may be few micro-batches | is not an operation
    min(stages - stage - 1, parts) → stages - stage - 1
wrong | forgets the micro-batches that are still under way | The order of rank 0 leaves out B3
    for m in range(parts): → for m in range(parts - ahead):
wrong | takes the last ones back in the opposite order | on rank 0 element 0 in result['gradient'] is -0.304
    return order → return order[: len(order) - ahead] + order[len(order) - ahead :][::-1]
wrong | goes back before it goes forward | These orders never end
    +         order.append(("B", m))
              if ahead + m < parts:
                  order.append(("F", ahead + m))
    -         order.append(("B", m))
raises | takes the next one from a list that may be empty | Ranks 0, 1: IndexError
    def one_f_one_b(stage, stages, parts):
        left = [("F", m) for m in range(parts)]
        order = [left.pop(0) for _ in range(stages - stage - 1)]
        for m in range(parts):
            order += [left.pop(0), ("B", m)]
        return order
"""

run_ops = """
deadlock | waits as soon as it has started | Rank 0 waits for rank 1 to receive
    works.append(dist.isend(tensor, dst, group, tag=tag)) → dist.isend(tensor, dst, group, tag=tag).wait()
not as asked | keeps the handles and never waits | started isend
    -     for work in works:
    -         work.wait()
    +     globals()['messages_under_way'] = works
deadlock | loses the tag | rank 0 receives with tag 1 | , tag=tag)) → ))
wrong | puts all forward passes first | on rank 0 element 0 in result['kept at once'] is 4
    for op in ops: → for op in sorted(ops, reverse=True):
deadlock | sends everything only at the end | Rank 0 waits for rank 1 to send
    def run_ops(ops, run):
        messages = []
        for op in ops:
            run(op, lambda tensor, dst, tag=0: messages.append((tensor, dst, tag)))
        for tensor, dst, tag in messages:
            dist.send(tensor, dst, tag=tag)
"""

balanced_parts = """
wrong | cuts by its own clock | All ranks have to cut by the same numbers.
    dist.all_reduce(costs)  # the same numbers on all ranks →
wrong | cuts by rank 0's clock | on ranks 0–2 element 0 in result['slowest rank'] is 10.9
    dist.all_reduce(costs) → dist.broadcast(costs, src=0)
wrong | deals the parts out by their cost, the longest first | The ranks' parts are not in the order of the ranks
    def balanced_parts(seconds):
        costs = seconds.clone()
        dist.all_reduce(costs)
        held, mine = [0.0] * world_size, []
        for i in costs.argsort(descending=True).tolist():
            who = held.index(min(held))
            held[who] += costs[i].item()
            if who == rank:
                mine.append(i)
        return sorted(mine)
deadlock | asks for the mean on the first rank only | Rank 0 waits in all_reduce
    -     dist.all_reduce(costs)  # the same numbers on all ranks
    +     if rank == 0:
    +         dist.all_reduce(costs)  # the same numbers on all ranks
"""
