"""Planted mistakes of lesson 09, in the form that `tests.mistakes` tells."""

data_parallel = """
wrong | forgets to divide | if the function adds up and does not divide by the number of ranks | p.grad /= world_size →
wrong | divides a copy | if the function leaves this rank's own gradient in `p.grad`
    -         dist.all_reduce(p.grad)
    -         p.grad /= world_size
    +         mean = p.grad / world_size
    +         dist.all_reduce(mean)
wrong | does not broadcast the buffers | if the function leaves this rank's own buffers as they are
    (*model.parameters(), *model.buffers()) → model.parameters()
wrong | broadcasts the state_dict | own buffers as they are: broadcast `model.buffers()`, too
    (*model.parameters(), *model.buffers()) → model.state_dict().values()
wrong | leaves the models as they began | if the function leaves this rank's own parameters as they are
    -     for tensor in (*model.parameters(), *model.buffers()):
    -         dist.broadcast(tensor.detach(), src=0)
wrong | averages the models | if the function averages all ranks' parameters
    -         dist.broadcast(tensor.detach(), src=0)
    +         dist.all_reduce(tensor.detach().div_(world_size) if tensor.is_floating_point() else tensor)
raises | asks a frozen parameter for a hook | Ranks 0, 1: RuntimeError
    -         if p.requires_grad:
    -             p.register_post_accumulate_grad_hook(average)
    +         p.register_post_accumulate_grad_hook(average)
deadlock | lets rank 0 alone broadcast | ranks disagree on the operation: rank 0 calls broadcast
    dist.broadcast(tensor.detach(), src=0) → if rank == 0: dist.broadcast(tensor.detach(), src=0)
"""

average_in_buckets = """
wrong | forgets to divide | on ranks 0, 1 element 0 in result['gradients'][0] is 10 | flat /= world_size →
raises | puts the parts back in another order | Ranks 0, 1: RuntimeError | in zip(bucket, → in zip(bucket[::-1],
wrong | makes a call for each gradient | communicates 3 times for 2 buckets
    +         for grad in bucket:
    +             dist.all_reduce(grad)
              flat = torch.cat([grad.flatten() for grad in bucket])
    -         dist.all_reduce(flat)
wrong | closes a bucket before it is full | on ranks 0, 1 the list in result['sizes'] has 4 entries
    sum(g.nbytes for g in buckets[-1]) >= cap → buckets[-1] and sum(g.nbytes for g in buckets[-1]) + grad.nbytes > cap
"""

overlapped = """
wrong | forgets to divide | on ranks 0, 1 element 0 in result[0] is 10 | part.view_as(p) / world_size → part.view_as(p)
wrong | waits for each bucket where it leaves | inside its backward pass
                  left.append((flat, dist.all_reduce(flat, async_op=True)))
    +             left[-1][1].wait()
wrong | lets all buckets leave in finish | 1 bucket was full before the last gradient came, and 0 had left
    def overlapped(buckets):
        def finish():
            left = []
            for bucket in buckets:
                flat = torch.cat([p.grad.flatten() for p in bucket])
                left.append((flat, dist.all_reduce(flat, async_op=True)))
            for bucket, (flat, work) in zip(buckets, left):
                work.wait()
                for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                    p.grad.copy_(part.view_as(p) / world_size)

        return finish
wrong | does not begin anew for the next pass | 1 bucket was full before the last gradient came in pass 2
    -         there.clear()
    -         left.clear()
raises | takes the first gradient for the whole bucket | Ranks 0, 1: AttributeError
    there.issuperset(buckets[len(left)]) → there.intersection(buckets[len(left)])
"""

accumulate = """
wrong | exchanges after every micro-batch | once is enough
    def accumulate(ddp, batches, loss_of):
        for batch in batches:
            (loss_of(ddp, batch) / len(batches)).backward()
wrong | never exchanges | on rank 0 element 0 is 2
    -         for batch in batches[:-1]:
    +         for batch in batches:
                  (loss_of(ddp, batch) / len(batches)).backward()
    -     (loss_of(ddp, batches[-1]) / len(batches)).backward()
wrong | adds the micro-batches up and does not divide | You get this if the function adds up the micro-batches
    -             (loss_of(ddp, batch) / len(batches)).backward()
    -     (loss_of(ddp, batches[-1]) / len(batches)).backward()
    +             loss_of(ddp, batch).backward()
    +     loss_of(ddp, batches[-1]).backward()
wrong | goes back once, from the sum of all losses | micro-batch 1 goes forward before micro-batch 0 has gone back
    def accumulate(ddp, batches, loss_of):
        (sum(loss_of(ddp, batch) for batch in batches) / len(batches)).backward()
wrong | makes one batch of all micro-batches | `loss_of` gets 3 rows at once
    def accumulate(ddp, batches, loss_of):
        loss_of(ddp, torch.cat(batches)).backward()
wrong | goes back once, from the sum of the losses in no_sync and the last one | Call backward() on each loss
    def accumulate(ddp, batches, loss_of):
        part = 0
        with ddp.no_sync():
            for batch in batches[:-1]:
                part = part + loss_of(ddp, batch)
        ((part + loss_of(ddp, batches[-1])) / len(batches)).backward()
wrong | takes a step with what it has accumulated | it changes the weights
          (loss_of(ddp, batches[-1]) / len(batches)).backward()
    +     for p in ddp.parameters():
    +         p.data -= 0.1 * p.grad
wrong | exchanges each parameter by itself | it communicates 2 times for 3 micro-batches of a model with 2 parameters
    def accumulate(ddp, batches, loss_of):
        with ddp.no_sync():
            for batch in batches:
                (loss_of(ddp, batch) / len(batches)).backward()
        for p in ddp.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
wrong | puts no_sync round the backward pass alone | it communicates 3 times for 3 micro-batches
    def accumulate(ddp, batches, loss_of):
        for batch in batches[:-1]:
            loss = loss_of(ddp, batch) / len(batches)
            with ddp.no_sync():
                loss.backward()
        (loss_of(ddp, batches[-1]) / len(batches)).backward()
deadlock | exchanges on rank 0 only | Rank 1 finished the function without it
    def accumulate(ddp, batches, loss_of):
        with ddp.no_sync():
            for batch in batches[:-1] if rank == 0 else batches:
                (loss_of(ddp, batch) / len(batches)).backward()
        if rank == 0:
            (loss_of(ddp, batches[-1]) / len(batches)).backward()
"""

average_by_rows = """
wrong | divides by the ranks | and not by the number of all rows | flat[:-1] / flat[-1] → flat[:-1] / world_size
wrong | does not divide | if the function adds up, and does not divide | flat[:-1] / flat[-1] → flat[:-1]
wrong | averages the means | if the function gives the gradient of every rank the same weight
    def average_by_rows(model, rows):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        for p, part in zip(model.parameters(), flat.split([grad.numel() for grad in grads])):
            p.grad = part.view_as(p) / world_size
wrong | weighs no gradient | does not weigh each gradient with its own
    p.grad is None else p.grad * rows → p.grad is None else p.grad
wrong | leaves None where there was None | it has no rows, and its `p.grad` is None still
    p.grad = part.view_as(p) → p.grad = None if p.grad is None else part.view_as(p)
wrong | stays away without rows | it has no rows, and stays away from the call
    +     if rows == 0:
    +         return
          grads = [torch.zeros_like(p) if p.grad is None else p.grad * rows for p in model.parameters()]
raises | takes it that everyone has a gradient | Rank 0: TypeError
    torch.zeros_like(p) if p.grad is None else p.grad * rows → p.grad * rows
not as asked | counts the rows in a call of their own | Rank 0 makes 2 calls that communicate, dist.all_reduce
    def average_by_rows(model, rows):
        total = torch.tensor([float(rows)])
        dist.all_reduce(total)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad * rows for p in model.parameters()]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        for p, part in zip(model.parameters(), flat.split([grad.numel() for grad in grads])):
            p.grad = part.view_as(p) / total.item()
"""

contrast = """
wrong | keeps the gradient of its own rows only | the gradient of b is wrong: element [0, 0] is -0
    def contrast(a, b):
        everyone = [torch.empty_like(b) for _ in range(world_size)]
        dist.all_gather(everyone, b.detach())
        everyone[rank] = b
        target = torch.arange(len(a), device=device) + rank * len(a)
        return torch.nn.functional.cross_entropy(a @ torch.cat(everyone).T, target)
wrong | gathers without any gradient | no gradient reaches b
    def contrast(a, b):
        everyone = [torch.empty_like(b) for _ in range(world_size)]
        dist.all_gather(everyone, b.detach())
        target = torch.arange(len(a), device=device) + rank * len(a)
        return torch.nn.functional.cross_entropy(a @ torch.cat(everyone).T, target)
wrong | looks for its partners at the beginning | on rank 1 element 0 is 4.01 | + rank * len(a) →
deadlock | lets rank 0 alone reduce on the way back | Rank 0 waits in all_reduce
    -             dist.all_reduce(slope)  # what all ranks' losses say about all rows
    +             if rank == 0:
    +                 dist.all_reduce(slope)  # what all ranks' losses say about all rows
"""

compressed_average = """
wrong | forgets what was left | leaves the old `error` out of what it sends
    wanted = grad + error → wanted = grad.clone()
wrong | keeps no error | if the function leaves `error` as it was | error.copy_(wanted - sent) → pass
wrong | keeps the error of grad | what was sent off `grad` alone | error.copy_(wanted - sent) → error.copy_(grad - sent)
wrong | adds to the error | adds what is lost to the old error | error.copy_(wanted - sent) → error.add_(wanted - sent)
raises | takes float16 for bfloat16 | Ranks 0, 1: RuntimeError | sent = wanted.bfloat16() → sent = wanted.half()
raises | forgets to pad | the number of elements does not fit
    torch.nn.functional.pad(sent, (0, -len(sent) % world_size)) → sent
wrong | sums up in bfloat16 what it has got | 1 from the others, where a sum in bfloat16 stays at 256
    parts.view(world_size, -1).float().sum(0) / world_size → sum(parts.view(world_size, -1)) / world_size
wrong | rounds the sum before it divides | numbers near 10³⁰, whose sum bfloat16 has to round
    parts.view(world_size, -1).float().sum(0) → parts.view(world_size, -1).sum(0)
wrong | all-reduces in bfloat16 | dist.all_reduce (line 5) adds up in bfloat16
    def compressed_average(grad, error):
        wanted = grad + error
        sent = wanted.bfloat16()
        error.copy_(wanted - sent)
        dist.all_reduce(sent)
        return (sent / world_size).float()
wrong | all-gathers the means in float32 | it brings float32 to dist.all_gather_single
    -     means = torch.empty_like(padded)
    -     dist.all_gather_single(means, mine.bfloat16())
    +     means = torch.empty_like(padded).float()
    +     dist.all_gather_single(means, mine)
wrong | takes float16 and sends it by comms | it brings float16 to comms.all_to_all
    def compressed_average(grad, error):
        wanted = grad + error
        sent = wanted.half()
        error.copy_(wanted - sent)
        parts = comms.all_to_all([part.clone() for part in sent.tensor_split(world_size)])
        mine = sum(part.float() for part in parts) / world_size
        return torch.cat(comms.all_gather(mine.half())).float()
costly | gives everybody everything | Its busiest rank sends
    def compressed_average(grad, error):
        wanted = grad + error
        sent = wanted.bfloat16()
        error.copy_(wanted - sent)
        everyone = [torch.empty_like(sent) for _ in range(world_size)]
        dist.all_gather(everyone, sent)
        return (sum(x.float() for x in everyone) / world_size).bfloat16().float()
wrong | sends float32 | it brings float32 to dist.all_reduce
    def compressed_average(grad, error):
        wanted = grad + error
        sent = wanted.bfloat16()
        error.copy_(wanted - sent)
        total = sent.float()
        dist.all_reduce(total)
        return (total / world_size).bfloat16().float()
"""
