"""Planted mistakes of lesson 13f, in the form that `tests.mistakes` tells."""

load_for_all = """
wrong | forgets the buffers | buffers: on rank 1 element 0 in result['buffers'][0] is -14
    [*model.parameters(), *model.buffers()] → model.parameters()
raises | leaves the tensors where they were saved | Rank 0: RuntimeError | , map_location=device →
wrong | lets every rank read the whole file | rank 0 alone may
    def load_for_all(model, path):
        model.load_state_dict(torch.load(path, map_location=device))
wrong | trusts whoever made the file | whatever code somebody has put into the file runs
    weights_only=True → weights_only=False
wrong | broadcasts before it has read | on rank 1 element 0 in result['parameters'][0] is -2
    def load_for_all(model, path):
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        if rank == 0:
            model.load_state_dict(torch.load(path, map_location=device))
deadlock | lets rank 0 alone call broadcast | Rank 1 finished the function without it
    dist.broadcast(tensor.detach(), src=0) → if rank == 0: dist.broadcast(tensor.detach(), src=0)
"""

part_of = """
wrong | loses the remainder | on rank 0 element 1 is 1
    -     short, longer = divmod(count, n)
    -     start = place * short + min(place, longer)
    -     return start, start + short + (place < longer)
    +     return place * (count // n), (place + 1) * (count // n)
wrong | rounds up, as chunk does, and the last ones get nothing | on rank 1 element 1 is 4
    def part_of(count, n, place):
        size = -(-count // n)
        return min(place * size, count), min((place + 1) * size, count)
wrong | counts the end in | on rank 0 element 1 is 1 | (place < longer) → (place < longer) - 1
raises | asks chunk, which makes fewer parts than it was told | Rank 1: IndexError
    def part_of(count, n, place):
        mine = torch.arange(count).chunk(n)[place]
        return int(mine[0]), int(mine[-1]) + 1
"""

load_slices = """
wrong | takes the rank in the world, and the world's size | on ranks 0, 1 the shape in result['up'] is (2, 3)
    dist.get_world_size(group), dist.get_rank(group) → world_size, rank
wrong | takes the rank in the world | on rank 1 element [0, 0] in result['up'] is 0.851
    dist.get_rank(group) → rank % dist.get_world_size(group)
wrong | cuts along the wrong dimension | on ranks 0, 1 the shape in result['down'] is (1, 2)
    dim, stacked = plan[name] → dim, stacked = 0, plan[name][1]
wrong | takes the first of the stacked matrices only | rank 0 reads 23 numbers, and its part has 11
    torch.cat(parts, dim) → parts[0]
wrong | forgets what nobody cuts | on ranks 0, 1 the dict lacks 'prior' | mine[name] = read(name) →
forbidden | lets the first rank read for its group | It calls comms.all_gather
    mine[name] = read(name) → mine[name] = comms.all_gather(read(name), group=group)[0]
"""

load_stage = """
wrong | loses the remainder, and all later stages begin too early | block 0 of rank 1 holds layer 2 of the checkpoint
    start, _ = part_of(layers, world_size, rank) → start = rank * (layers // world_size)
raises | keeps the names of the whole model | Rank 1: RuntimeError
    mine[name] = whole[there] → mine[there] = whole[there]
wrong | forgets the buffers | on rank 0 element 0 in result['blocks.0.count'] is -1
    -         mine[name] = whole[there]
    -     stage.load_state_dict(mine, assign=True)
    +         if name in dict(stage.named_parameters()):
    +             mine[name] = whole[there]
    +     stage.load_state_dict(mine, strict=False)
wrong | reads the whole model, and keeps its stage | rank 0 reads 7 tensors, and its stage has 3
    mine = {} → mine, whole = {}, dict(whole)
wrong | forgets the embedding and the head | on rank 1 element 0 in result['head.weight'] is -1
    -         mine[name] = whole[there]
    -     stage.load_state_dict(mine, assign=True)
    +         if there != name or start == 0:
    +             mine[name] = whole[there]
    +     stage.load_state_dict(mine, strict=False)
"""

hand_out = """
wrong | keeps a view of the whole tensor | still in memory
    mine[name].copy_(whole[start:end]) → mine[name] = whole[start:end]
costly | broadcasts every tensor, and each rank cuts | Its busiest rank sends 2.0 S
    def hand_out(pieces, shapes, part_of):
        mine = {}
        for name, shape in shapes.items():
            whole = next(pieces)[1] if rank == 0 else torch.empty(shape, device=device)
            dist.broadcast(whole, src=0)
            mine[name] = whole[slice(*part_of(shape[0], world_size, rank))].clone()
            del whole
        return mine
wrong | loses the remainder | do not divide: on rank 0 the shape in result['up'] is (2, 3)
    +         shape = (shape[0] // world_size * world_size, *shape[1:])
              parts = [part_of(shape[0], world_size, r) for r in range(world_size)]
wrong | hands the parts to the wrong ranks | on rank 1 element [0, 0] in result['up'] is 4
    dist.send(whole[slice(*parts[r])], dst=r) → dist.send(whole[slice(*parts[r])], dst=world_size - r)
deadlock | sends nothing to a rank that waits for it | Rank 1 waits for rank 0 to send | elif start < end: → else:
"""
