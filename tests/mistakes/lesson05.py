"""Planted mistakes of lesson 05, in the form that `tests.mistakes` tells."""

save_then_load = """
raises | lets the readers go ahead of the writer | model.pt is not there yet | dist.barrier()  # it is written →
raises | removes it before all have read it | model.pt is not there any more | dist.barrier()  # everyone has read it →
wrong | leaves the file behind | it does not remove the file, and rank 0 should | os.remove(path) → pass
wrong | lets the last rank remove it | it does not remove the file, and rank 0 should
          dist.barrier()  # everyone has read it
    -     if rank == 0:
    +     if rank == world_size - 1:
              os.remove(path)
wrong | returns its own x | on rank 1 element 0 is 10 | return loaded → return x
wrong | sleeps | it loads, and has not heard from rank 0
    def save_then_load(x, path):
        import os, time
        if rank == 0:
            torch.save(x, path)
        time.sleep(0.5 * (rank > 0))
        loaded = torch.load(path)
        dist.barrier()
        if rank == 0:
            os.remove(path)
        return loaded
wrong | sleeps before it removes the file | it does not communicate after its load
    dist.barrier()  # everyone has read it → __import__("time").sleep(0.4)
wrong | looks for the file | it loads, and has not heard from rank 0
    def save_then_load(x, path):
        import os, time
        if rank == 0:
            torch.save(x, path)
        while not os.path.exists(path):
            time.sleep(0.01)
        time.sleep(0.1)
        loaded = torch.load(path)
        dist.barrier()
        if rank == 0:
            os.remove(path)
        return loaded
wrong | sends x and leaves the file out | never calls torch.load
    def save_then_load(x, path):
        return comms.broadcast(x, src=0)
"""

bench_by_hand = """
wrong | does not warm up | on ranks 0, 1 element 0 is 107
    -     for _ in range(3):
    -         work()
wrong | lets the ranks start when they like | repeat 1 begins without a barrier | dist.barrier() →
wrong | times the barrier, too | on ranks 0, 1 element 0 is 20.5
    -         dist.barrier()
              began = clock()
    +         dist.barrier()
wrong | takes each rank's median first, then the slowest of these | on ranks 0, 1 element 0 is 6
    -     dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    -     return slowest.quantile(0.5).item()
    +     middle = slowest.quantile(0.5)
    +     dist.all_reduce(middle, op=dist.ReduceOp.MAX)
    +     return middle.item()
deadlock | lets rank 0 alone reduce | Rank 0 waits in all_reduce
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX) → if rank == 0: dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
"""

tell_when_saved = """
wrong | tells the path first, and sleeps | it tells the path before it has saved
    def tell_when_saved(x, path):
        box = [path]
        dist.broadcast_object_list(box, src=0)
        if rank == 0:
            torch.save(x, box[0])
        __import__("time").sleep(0.4 * (rank > 0))
        return torch.load(box[0])
wrong | loads on rank 0, and sends what it has loaded | Rank 1 with 2 ranks: it never calls torch.load
    def tell_when_saved(x, path):
        if rank == 0:
            torch.save(x, path)
            x = torch.load(path)
        box = [x]
        dist.broadcast_object_list(box, src=0)
        return box[0]
wrong | tells the path before the file is there | it tells the path before it has saved
    def tell_when_saved(x, path):
        box = [path]
        dist.broadcast_object_list(box, src=0)
        if rank == 0:
            torch.save(x, box[0])
        return torch.load(box[0])
not as asked | tells the path first, and lets all wait for the file in a barrier | Rank 0 makes 2 calls that communicate
    def tell_when_saved(x, path):
        box = [path]
        dist.broadcast_object_list(box, src=0)
        if rank == 0:
            torch.save(x, box[0])
        dist.barrier()
        return torch.load(box[0])
not as asked | adds a barrier, to be sure | Rank 0 makes 2 calls that communicate
    box = [path] → dist.barrier(); box = [path]
deadlock | lets rank 0 alone call | Rank 0 waits in broadcast_object_list
    dist.broadcast_object_list(box, src=0) → if rank == 0: dist.broadcast_object_list(box, src=0)
raises | takes the last rank for the root | Ranks 0, 1: AttributeError | src=0 → src=world_size - 1
wrong | sends x and leaves the file out | never calls torch.load
    def tell_when_saved(x, path):
        return comms.broadcast(x, src=0)
"""

work_meanwhile = """
wrong | waits first, then works | began its work only after
    def work_meanwhile(work):
        dist.barrier()
        return work()
wrong | never waits | it left before rank 1 had come | coming.wait() →
wrong | works first and says only then that it has come | still waited for the work
    -     coming = dist.barrier(async_op=True)
          result = work()
    -     coming.wait()
    +     dist.barrier()
wrong | works twice | it called work() 2 times | return result → return work()
deadlock | lets rank 0 alone call the barrier | Rank 0 waits in barrier
    def work_meanwhile(work):
        result = work()
        if rank == 0:
            dist.barrier()
        return result
"""

barrier_by_hand = """
wrong | stops a step too early | it left before rank 1 had come
    while distance < world_size → while 2 * distance <= world_size - 1
forbidden | asks torch for a barrier | It calls dist.barrier
    def barrier_by_hand():
        dist.barrier()
deadlock | sends first, all of them | Rank 0 waits for rank 1 to receive
    -         exchange = [
    -             dist.P2POp(dist.isend, sent, (rank + distance) % world_size),
    -             dist.P2POp(dist.irecv, heard, (rank - distance) % world_size),
    -         ]
    -         for work in dist.batch_isend_irecv(exchange):
    -             work.wait()
    +         dist.send(sent, dst=(rank + distance) % world_size)
    +         dist.recv(heard, src=(rank - distance) % world_size)
costly | collects at rank 0, which answers one after the other | It takes 6 steps
    def barrier_by_hand():
        box = torch.zeros(1, device=device)
        for other in range(1, world_size):
            if rank == 0:
                dist.recv(box, src=other)
            elif rank == other:
                dist.send(box, dst=0)
        for other in range(1, world_size):
            if rank == 0:
                dist.send(box, dst=other)
            elif rank == other:
                dist.recv(box, src=0)
"""

late_or_slow = """
wrong | counts from the first rank's beginning | on ranks 0, 1 element 1 is 25 | begins.amax(0) → begins.amin(0)
wrong | takes its own end | on rank 0 element 1 is 1.25 | dist.all_reduce(end, op=dist.ReduceOp.MAX) →
wrong | takes the rank that is latest on average | on ranks 0, 1 element 0 is 0
    begins.argmax(0).bincount(minlength=world_size).argmax() → begins.mean(1).argmin()
deadlock | gathers on rank 0 alone | ranks disagree on the operation: rank 0 calls all_gather
    dist.all_gather(everyone, began) → if rank == 0: dist.all_gather(everyone, began)
"""
