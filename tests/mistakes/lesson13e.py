"""Planted mistakes of lesson 13e, in the form that `tests.mistakes` tells."""

attend_gathered = """
wrong | counts its positions from 0 | on rank 1 element [0, 0, 0] is -0.298 | here = rank * length + → here =
wrong | joins the parts as heads | on ranks 0, 1 the shape is (2, 2, 2)
    comms.all_gather(t), dim=1) → comms.all_gather(t), dim=0)
deadlock | stays away on rank 0, which needs nothing of the others | Rank 0 finished the function without it
    +     if rank == 0:
    +         return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
          k, v = (torch.cat(comms.all_gather(t), dim=1) for t in (k, v))
wrong | gathers where autograd does not see it | no gradient reaches k
    def attend_gathered(q, k, v):
        parts = [[torch.empty_like(t) for _ in range(world_size)] for t in (k, v)]
        for rooms, t in zip(parts, (k, v)):
            dist.all_gather(rooms, t.detach())
        k, v = (torch.cat(rooms, dim=1) for rooms in parts)
        length = q.shape[1]
        here = rank * length + torch.arange(length)
        mask = torch.arange(k.shape[1]) <= here[:, None]
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
"""

merge_pieces = """
wrong | adds the pieces without rescaling what was there | still relative to the old
    out * old[..., None] + powers @ v, new, total * old → out + powers @ v, new, total
wrong | rescales the values only | `total` has the new piece | total * old → total
wrong | takes the new piece's maximum for everyone's | not the largest so far
    torch.maximum(top, scores.amax(-1)) → scores.amax(-1)
wrong | takes −inf off −inf | on ranks 0, 1 element [0, 0, 0] in result[0] is nan
    new.masked_fill(new == -torch.inf, 0) → new
wrong | divides by the sum, piece by piece | divided by `total` already
    def merge_pieces(out, top, total, scores, v):
        new = torch.maximum(top, scores.amax(-1))
        shift = new.masked_fill(new == -torch.inf, 0)
        old, powers = (top - shift).exp(), (scores - shift[..., None]).exp()
        total = total * old + powers.sum(-1)
        return (out * old[..., None] + powers @ v) / total[..., None], new, total
not as asked | asks the other ranks for their maximum | Rank 0 makes 1 call that communicates, dist.all_reduce
    +     dist.all_reduce(new.clone(), op=dist.ReduceOp.MAX)
          shift = new.masked_fill(new == -torch.inf, 0)
"""

ring_attention = """
raises | counts the blocks in the wrong direction | was told that the block is rank
    (rank - step) % world_size) → (rank + step) % world_size)
not as asked | runs round the ring the other way | Rank 0 sends to rank 3
    def ring_attention(q, kv, fold):
        state, after, before = None, (rank + 1) % world_size, (rank - 1) % world_size
        for step in range(world_size):
            works = []
            if step < world_size - 1:
                room = torch.empty_like(kv)
                works = [dist.isend(kv, dst=before), dist.irecv(room, src=after)]
            state = fold(state, q, kv, (rank + step) % world_size)
            for work in works:
                work.wait()
            kv = room
        return state
not as asked | sends the last block home | Rank 0 sends 4 messages
    def ring_attention(q, kv, fold):
        state = None
        for step in range(world_size):
            room = torch.empty_like(kv)
            works = [dist.isend(kv, dst=(rank + 1) % world_size), dist.irecv(room, src=(rank - 1) % world_size)]
            state = fold(state, q, kv, (rank - step) % world_size)
            for work in works:
                work.wait()
            kv = room
        return state
deadlock | sends first, on every rank, and waits for it | Rank 0 waits for rank 1 to receive
    -             exchange = [dist.P2POp(dist.isend, kv, after), dist.P2POp(dist.irecv, room, before)]
    -             works = dist.batch_isend_irecv(exchange)
    +             dist.send(kv, dst=after)
    +             dist.recv(room, src=before)
not as asked | waits for the next block before it folds this one | start the transfer, then fold
    def ring_attention(q, kv, fold):
        state = fold(None, q, kv, rank)
        for step in range(1, world_size):
            room = torch.empty_like(kv)
            works = [dist.isend(kv, dst=(rank + 1) % world_size), dist.irecv(room, src=(rank - 1) % world_size)]
            for work in works:
                work.wait()
            kv = room
            state = fold(state, q, kv, (rank - step) % world_size)
        return state
wrong | leaves out the block that comes last | has not been folded in
    for step in range(world_size): → for step in range(world_size - 1):
wrong | starts anew with each block | on rank 0 element [0, 0, 0] is nan | fold(state, q, kv, → fold(None, q, kv,
forbidden | gathers all blocks | It calls comms.all_gather
    def ring_attention(q, kv, fold):
        state = None
        for theirs, block in enumerate(comms.all_gather(kv)):
            state = fold(state, q, block, theirs)
        return state
"""

zigzag_positions = """
wrong | takes two pieces that follow one another | This rank's queries see 3 keys in all, and an even share is 5
    -     pieces = torch.arange(length).chunk(2 * world_size)
    -     return torch.cat([pieces[rank], pieces[-1 - rank]])
    +     return torch.arange(length).chunk(world_size)[rank]
wrong | takes the piece that lies world_size further on | This rank's queries see 4 keys in all, and an even share is 5
    pieces[-1 - rank] → pieces[world_size + rank]
wrong | puts the later piece first | on rank 0 element 0 is 3
    [pieces[rank], pieces[-1 - rank]] → [pieces[-1 - rank], pieces[rank]]
not as asked | asks rank 0 for its positions | Rank 0 makes 1 call that communicates, dist.broadcast
    +     dist.broadcast(torch.arange(length), src=0)
          return torch.cat([pieces[rank], pieces[-1 - rank]])
"""

swap_heads = """
wrong | takes the positions of all ranks in turns | on rank 0 element [0, 1, 0] is 0.0814
    got.permute(1, 2, 0, 3, 4) → got.permute(1, 2, 3, 0, 4)
wrong | attends to its own positions only | called 0 times
    def swap_heads(q, k, v, attend):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
not as asked | exchanges q, k and v one by one | Rank 0 makes 4 calls that communicate, dist.all_to_all_single
    def swap_heads(q, k, v, attend):
        heads, length, size = q.shape

        def exchanged(t):
            give = t.view(world_size, -1, length, size)
            got = torch.empty_like(give)
            dist.all_to_all_single(got, give.contiguous())
            return got.transpose(0, 1).reshape(-1, world_size * length, size)

        mine = attend(*(exchanged(t) for t in (q, k, v)))
        give = mine.view(-1, world_size, length, size).transpose(0, 1).contiguous()
        out = torch.empty_like(give)
        dist.all_to_all_single(out, give)
        return out.view(heads, length, size)
wrong | gathers everything, and computes all heads on every rank | on ranks 0, 1 the shape is (1, 2, 2)
    def swap_heads(q, k, v, attend):
        heads, length, size = q.shape
        each = heads // world_size
        q, k, v = torch.cat(comms.all_gather(torch.stack([q, k, v])), 2)
        return attend(q[:each], k[:each], v[:each])
"""

ring_backward = """
wrong | stops a step too early: the gradient is not home yet | element [0, 0, 0, 0] in result['dkv'] is -0.0173
    +         if step == world_size - 1:
    +             break
              parcel = torch.stack([carried, kv]) if step < world_size - 1 else carried[None]
wrong | keeps the last block's part of dq | on rank 1 element [0, 0, 0] in result['dq'] is 0.0524
    dq, carried = dq + mine, carried + more → dq, carried = mine, carried + more
raises | counts the blocks in the wrong direction | was told that the block is rank
    (rank - step) % world_size) → (rank + step) % world_size)
costly | sends the blocks home, too | Its busiest rank sends 4.0 S
    torch.stack([carried, kv]) if step < world_size - 1 else carried[None] → torch.stack([carried, kv])
forbidden | adds the gradients up in an all-reduce of the whole sequence | It calls comms.all_gather and
    def ring_backward(q, kv, fold_back):
        dq, grads = torch.zeros_like(q), []
        for theirs, block in enumerate(comms.all_gather(kv)):
            mine, more = fold_back(q, block, theirs)
            dq = dq + mine
            grads.append(more)
        return dq, comms.all_reduce(torch.stack(grads))[rank]
"""
