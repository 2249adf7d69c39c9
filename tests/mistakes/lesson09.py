"""Planted mistakes of lesson 09, in the form that `tests.mistakes` tells."""

data_parallel = """
wrong | forgets to divide | if the function adds up and does not divide by the number of ranks | p.grad /= world_size →
wrong | divides a copy | leaves this rank's own gradients as they are. Did you assign to the name?
    -         dist.all_reduce(p.grad)
    -         p.grad /= world_size
    +         mean = p.grad / world_size
    +         dist.all_reduce(mean)
wrong | does not broadcast the buffers | if the function leaves this rank's own buffers as they are
    (*model.parameters(), *model.buffers()) → model.parameters()
wrong | broadcasts the state_dict | own buffers as they are: broadcast `model.buffers()`, too
    (*model.parameters(), *model.buffers()) → model.state_dict().values()
wrong | broadcasts parameters that autograd knows, and forgets to divide | adds up and does not divide
    def data_parallel(model):
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor, 0)
        for p in model.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
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
wrong | forgets to divide | if the function adds up and does not divide by the number of ranks | flat /= world_size →
wrong | divides first and sends nothing | communicates 0 times for 2 buckets
    -         dist.all_reduce(flat)
wrong | throws the means away | Did you assign to the name? `grad.copy_(…)` writes into the tensor
    grad.copy_(part.view_as(grad)) → part.view_as(grad)
wrong | assigns the means to the name | Did you assign to the name?
    grad.copy_(part.view_as(grad)) → grad = part.view_as(grad)
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
wrong | forgets to divide | if the function adds up and does not divide | part.view_as(p) / world_size → part.view_as(p)
wrong | waits for each bucket where it leaves | inside its backward pass
                  left.append((flat, dist.all_reduce(flat, async_op=True)))
    +             left[-1][1].wait()
wrong | lets all buckets leave in finish | 1 bucket was full before the last gradient came in pass 1, and none had left
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
wrong | lets each bucket leave as soon as it is full | though it is not its turn
    def overlapped(buckets):
        there, left = set(), []

        def ready(p):
            there.add(p)
            for bucket in buckets:
                if any(q is p for q in bucket) and there.issuperset(bucket):
                    flat = torch.cat([q.grad.flatten() for q in bucket])
                    left.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

        def finish():
            for bucket, flat, work in left:
                work.wait()
                for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                    p.grad.copy_(part.view_as(p) / world_size)
            there.clear()
            left.clear()

        for bucket in buckets:
            for p in bucket:
                p.register_post_accumulate_grad_hook(ready)
        return finish
wrong | does not begin anew for the next pass | in pass 2, and none had left. This happens if finish() does not begin
    -         there.clear()
    -         left.clear()
wrong | lets every full bucket leave again at each later gradient | 24 bytes, and the gradients have 16: a bucket leaves
    def overlapped(buckets):
        there, left = set(), []

        def ready(p):
            there.add(p)
            for bucket in buckets:
                if there.issuperset(bucket):
                    flat = torch.cat([q.grad.flatten() for q in bucket])
                    left.append((dist.all_reduce(flat, async_op=True), flat, bucket))

        def finish():
            for work, flat, bucket in left:
                work.wait()
                for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                    p.grad.copy_(part.view_as(p) / world_size)
            there.clear()

        for bucket in buckets:
            for p in bucket:
                p.register_post_accumulate_grad_hook(ready)
        return finish
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
