"""Planted mistakes of lesson 13g, in the form that `tests.mistakes` tells."""

read_part = """
wrong | reads the whole tensor, and cuts | rank 0 reads 24 bytes of the file, and its part has 12
    def read_part(file, dtype, shape, offset, dim, start, end):
        file.seek(offset)
        whole = torch.empty(shape, dtype=dtype)
        file.readinto(whole.view(torch.uint8).numpy())
        return whole.narrow(dim, start, end - start).clone().to(device)
wrong | forgets where the tensor begins | if the function reads from the beginning of the file
    file.seek(offset + start * → file.seek(start *
wrong | takes every number to be four bytes long | if the function takes every number to be four bytes long
    (i * shape[1] + start) * dtype.itemsize → (i * shape[1] + start) * 4
wrong | begins at rows of four-byte numbers | rows in float64: element [0, 0]
    start * torch.Size(shape[1:]).numel() * dtype.itemsize → start * torch.Size(shape[1:]).numel() * 4
raises | asks for the number of the file | the check's file lies in memory
    file.seek(offset + start * → os = __import__("os"); os.pread(file.fileno(), 1, 0); file.seek(offset + start *
raises | takes every tensor for a matrix | Ranks 0, 1: IndexError | torch.Size(shape[1:]).numel() → shape[1]
"""

pieces_for_me = """
wrong | counts from where the whole tensor begins, not the chunk | reaches beyond chunk
    there = [a - b for a, b in zip(first, offsets)] → there = first
wrong | puts the pieces where the whole tensor has them | what the rank needs
    here = [a - b for a, b in zip(first, mine[0])] → here = first
wrong | brings empty pieces, too | rank 0's piece (2, [0], [6], [0]) is empty
    a < b for a, b in zip(first, after) → a <= b for a, b in zip(first, after)
wrong | stops at the first chunk that fits | on rank 0 element 3 is nan
    +             break
          return pieces
raises | thinks that its own box was saved | Rank 0: ValueError
    def pieces_for_me(mine, chunks):
        nowhere = [0] * len(mine[1])
        return [(chunks.index(mine), nowhere, nowhere, mine[1])]
"""

save_whole = """
wrong | writes over the old checkpoint | writes over the bytes
    def save_whole(state, path):
        if rank == 0:
            torch.save(state, path)
        dist.barrier()
wrong | removes the old one first | gone before the new one
    os.replace(path + ".new", path) → os.remove(path); os.replace(path + ".new", path)
wrong | does not wait for rank 0 | loads the old one | dist.barrier() →
wrong | leaves the bytes to the operating system | os.fsync first | os.fsync(file.fileno()) →
wrong | keeps the old one under a name of its own | it leaves model.pt.bak beside the checkpoint
    os.replace(path + ".new", path) → os.link(path, path + ".bak"); os.replace(path + ".new", path)
wrong | calls fsync before it writes | before all bytes of the file
    +             os.fsync(file.fileno())
                  torch.save(state, file)
    -             file.flush()
    -             os.fsync(file.fileno())
wrong | writes in /tmp and moves what it has written | it writes the new checkpoint in another folder
    def save_whole(state, path):
        import shutil
        if rank == 0:
            with open("/tmp/model.pt.new", "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            shutil.move("/tmp/model.pt.new", path)
        dist.barrier()
wrong | lets every rank save | rank 1 saves, and rank 0 alone should
    def save_whole(state, path):
        with open(f"{path}.{rank}", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.{rank}", path)
        dist.barrier()
deadlock | lets all but rank 0 come to the barrier | Rank 0 finished the function without it
    -     dist.barrier()
    +     else:
    +         dist.barrier()
"""

mine_to_write = """
wrong | counts pieces | that a rank has to write, and not their bytes | todo[writer] += piece[2] → todo[writer] += 1
wrong | takes the lists as they are | if the function does not go through the pieces in sorted order
    sorted({tuple(piece) for pieces in held for piece in pieces}) → dict.fromkeys(tuple(p) for ps in held for p in ps)
wrong | lets the lowest rank write everything | if the function gives every piece to its first holder
    min(holders, key=lambda r: todo[r]) → holders[0]
wrong | plans for the ranks of the check, not for those of the lists | plans for the `world_size` ranks of the check
    enumerate(held) if → enumerate(held[:world_size]) if
wrong | takes the largest first | result[0][0], and 'down' should. You get this if the function goes through the largest
    for pieces in held for piece in pieces}): → for pieces in held for piece in pieces}, key=lambda p: -p[2]):
wrong | lets the last of those with equally few write | a piece to the last one of those that have equally few
    key=lambda r: todo[r] → key=lambda r: (todo[r], -r)
wrong | takes shards of one tensor for the same | on rank 1 the list has 3 entries
    -     todo = [0] * len(held)
    -     mine = []
    +     todo, seen, mine = [0] * len(held), set(), []
          for piece in sorted({tuple(piece) for pieces in held for piece in pieces}):
    +         if piece[0] in seen:
    +             continue
    +         seen.add(piece[0])
forbidden | asks the others for their lists | It calls comms.all_gather
    todo = [0] * len(held) → todo = [0] * len(comms.all_gather(held) and held)
"""

what_is_missing = """
wrong | looks at its own files only | on rank 1 element 0 in result[0][1] is 0
    [piece for pieces in comms.all_gather(found) for piece in pieces] → found
deadlock | has nothing to say, and does not take part | Rank 1 finished the function without it
    +     if not found:
    +         return missing
          everyones = [piece for pieces in comms.all_gather(found) for piece in pieces]
wrong | counts rows, and copies hide what is missing | on ranks 0, 1 the list has 0 entries
    def what_is_missing(rows, found):
        everyones = [piece for pieces in comms.all_gather(found) for piece in pieces]
        total = {name: sum(b - a for other, a, b in everyones if other == name) for name in rows}
        return [(name, total[name], rows[name]) for name in rows if total[name] < rows[name]]
wrong | goes back to the end of a piece that lies within another | within others: on ranks 0, 1 the list has 2 entries
    reached = max(reached, end) → reached = end
"""

restack = """
wrong | takes the old shards for parts of one matrix | two stacked matrices
    size = rows // stacked → size, stacked = rows, 1
wrong | puts the old shards together, and cuts | rank 0 reads 12 rows, and returns 6
    def restack(read, rows, stacked, old, new, place, part_of):
        lengths = [part_of(rows // stacked, old, r) for r in range(old)]
        whole = torch.cat([read(r, 0, stacked * (b - a)) for r, (a, b) in enumerate(lengths)])
        return whole[slice(*part_of(rows, new, place))].clone()
raises | counts rows as the whole matrix does | rank 0 reads rows 4 to 5 of old shard 1, which ends at 4
    read(r, begin + a - first, begin + b - first) → read(r, begin + a, begin + b)
wrong | loses the remainder | sizes that do not divide: on rank 0 the shape is (6, 2)
    start, end = part_of(size, new, place) → start, end = place * (size // new), (place + 1) * (size // new)
forbidden | asks the other ranks for what they have read | It calls comms.all_gather
    return torch.cat(parts) → return comms.all_gather(torch.cat(parts))[rank]
"""
