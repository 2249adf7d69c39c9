"""Planted mistakes of lesson 09b, in the form that `tests.mistakes` tells."""

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
