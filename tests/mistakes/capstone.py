"""Planted mistakes of the capstone, in the form that `tests.mistakes` tells."""

mesh_price = """
wrong | cuts all activations by the tensor dimension | on ranks 0, 1 element 0 in result['memory'] is 3.77
    (4 + 13 / tensor) → 17 / tensor
wrong | all-reduces the whole model's gradients | on ranks 0–3 element 0 in result['data'] is 213904
    all_reduced(4 * mine, data) → all_reduced(4 * parameters, data)
wrong | counts the forward pass alone | on ranks 0, 1 element 0 in result['tensor'] is 786432
    my_layers * 4 * all_reduced → my_layers * 2 * all_reduced
forbidden | brings the gradients together to count them | It calls dist.barrier
    +     dist.barrier()
          mine, share, my_layers = parameters / tensor / pipe, tokens / data, layers / pipe
"""

make_groups = """
wrong | lets the first dimension be that of neighbours | on rank 0 element 1 in result['data'] is 1
    view(*shape.values()), → view(*reversed(shape.values())).permute(*reversed(range(len(shape)))),
wrong | lets the members alone make a group | Every rank has to make every group
    -             group = dist.new_group(ranks)
                  if rank in ranks:
    -                 groups[name] = group
    +                 groups[name] = dist.new_group(ranks)
wrong | keeps the group that was made last | that it is not in
    -             if rank in ranks:
    -                 groups[name] = group
    +             groups[name] = group
raises | lets the members alone make a group, and says so | leave use_local_synchronization out
    -             group = dist.new_group(ranks)
                  if rank in ranks:
    -                 groups[name] = group
    +                 groups[name] = dist.new_group(ranks, use_local_synchronization=True)
raises | counts ranks from 1 | Ranks 0, 1: ValueError | torch.arange(world_size) → torch.arange(1, world_size + 1)
"""

mesh_step = """
wrong | reads by its rank in the world | different rows
    read(dist.get_rank(data), dist.get_world_size(data)) → read(rank, world_size)
wrong | averages the gradients over the world | on rank 0 element 0 in result['my columns'] is 1.075
    (gradients, op=dist.ReduceOp.AVG, group=data) → (gradients, op=dist.ReduceOp.AVG)
wrong | forgets the other copies | on ranks 0, 1 element 1 in result['losses'] is 0.351
    dist.all_reduce(gradients, op=dist.ReduceOp.AVG, group=data) →
raises | lets one copy report the loss | Rank 0 brings 1 element to all_reduce
    -     dist.all_reduce(loss, op=dist.ReduceOp.AVG, group=data)
    +     if dist.get_rank(data) == 0:
    +         dist.all_reduce(loss, op=dist.ReduceOp.AVG, group=data)
"""

save_mesh = """
wrong | marks it before the parts are written | is not written yet | dist.barrier() →
wrong | waits for its team alone | is not written yet | dist.barrier() → dist.barrier(group=team)
wrong | lets every copy write the parts | part-0.pt is written by 2 ranks, and one is enough
    if dist.get_rank(data) == 0: → if True:
wrong | leaves the optimizer out | on ranks 0, 1 the dict in result['part'] lacks 'optimizer'
    , "optimizer": optimizer.state_dict()} → }
wrong | saves rank 0's reader for everyone | there is no reader-1.pt | if dist.get_rank(team) == 0: → if rank == 0:
wrong | lets rank 0 write its part alone | there is no part-1.pt | if dist.get_rank(data) == 0: → if rank == 0:
wrong | never marks it | it never counts
    -     if rank == 0:
    -         put({}, f"{here}/complete")
deadlock | lets those wait who have written | Rank 0 waits in barrier
    dist.barrier() → if dist.get_rank(data) == 0: dist.barrier()
"""

load_mesh = """
wrong | takes the newest one, complete or not | on ranks 0, 1 element 0 in result['model']['weight'] is 30.5
    if os.path.exists(f"{folder}/{name}/complete") → if name.startswith("step-")
wrong | forgets the optimizer | on rank 0 element 0 in result['optimizer']['moments'] is 0
    optimizer.load_state_dict(part["optimizer"]) →
wrong | forgets where the reader was | on ranks 0, 1 element 0 in result['reader']['step'] is 0
    reader.load_state_dict(torch.load(f"{here}/reader-{dist.get_rank(data)}.pt", weights_only=True)) →
raises | takes its part by its rank in the world | Rank 1: FileNotFoundError
    part-{dist.get_rank(team)}.pt → part-{rank}.pt
raises | stumbles where there is none | Ranks 0, 1: ValueError | , default=0) → )
"""

mesh_norm = """
wrong | counts every copy | on ranks 0, 1 element 0 is 6.28
    dist.all_reduce(squares, group=team) → dist.all_reduce(squares)
wrong | adds up over the copies instead of the team | on rank 1 element 0 is 4 | group=team → group=data
wrong | adds up norms | on ranks 0, 1 element 0 is 5.67
    +     squares = squares.sqrt()
          dist.all_reduce(squares, group=team)
    +     squares = squares**2
not as asked | reduces each gradient by itself | Rank 0 makes 3 calls that communicate, dist.all_reduce
    def mesh_norm(cut, whole, data, team):
        squares = torch.zeros((), device=device)
        for gradient in [*cut, *whole]:
            part = (gradient**2).sum()
            dist.all_reduce(part, group=team)
            squares += part / (1 if any(gradient is g for g in cut) else dist.get_world_size(team))
        return squares.sqrt().item()
"""

best_mesh = """
wrong | does not look at the memory | less memory: on ranks 0, 1 element 1 is 4 | cost["memory"] <= room and →
wrong | always names a mesh | no room at all: on ranks 0–3 a list of 3 comes back
    return best → return best or [gpus, 1, 1]
raises | leaves GPUs out | 21 x 3 x 1 are not all 64 GPUs | gpus % (tensor * pipe) == 0 and → tensor * pipe <= gpus and
forbidden | asks the other ranks | It calls dist.barrier
    best, least = None, float("inf") → dist.barrier(); best, least = None, float("inf")
"""
