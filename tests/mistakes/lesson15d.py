"""Planted mistakes of lesson 15d, in the form that `tests.mistakes` tells."""

served = """
wrong | lets every message pass at once, as if it were alone | three messages at once: on rank 0 element 1 is 10
    free = max(free, arrives[i].item()) + takes[i].item() → free = (arrives[i] + takes[i]).item()
raises | begins with the first message, even where there is none | Ranks 0, 1: RuntimeError
    torch.zeros_like(arrives), 0.0 → torch.zeros_like(arrives), arrives.min().item()
wrong | lets a link begin before the message is there | on rank 0 element 2 is 30 | max(free, arrives[i].item()) → free
wrong | serves in the order of the list | on rank 0 element 0 is 40
    arrives.argsort(stable=True).tolist() → range(len(arrives))
"""

hierarchical_seconds = """
wrong | sends the whole buffer between the hosts | on ranks 0, 1 element 0 is 0.0237
    part / hosts / nic → nbytes / hosts / nic
raises | divides by the number of other hosts, even where there is none | Ranks 0, 1: ZeroDivisionError
    (hosts - 1) * (far + part / hosts / nic) → ((hosts - 1) * far + part / (hosts / (hosts - 1)) / nic)
wrong | forgets to gather in the hosts | on ranks 0, 1 element 0 is 0.00220 | 2 * (gpus - 1) → (gpus - 1)
wrong | reduces between the hosts, and hands nothing out | on ranks 0, 1 element 0 is 0.0160
    2 * (hosts - 1) → (hosts - 1)
"""

expected_wait = """
wrong | returns what the slowest takes, not what one waits for it | one rank waits for no other | range(2, → range(1,
raises | counts from 0 | Ranks 0, 1: ZeroDivisionError | range(2, → range(
wrong | leaves out the last rank | two ranks: on ranks 0, 1 element 0 is 0 | ranks + 1) → ranks)
wrong | waits for one hiccup, however many ranks there are | on ranks 0, 1 element 0 is 0.02
    sum(1 / k for k in range(2, ranks + 1)) → (ranks > 1)
"""

steps_between_checkpoints = """
wrong | takes the time between failures of one rank | on ranks 0, 1 element 0 is 27521 | mtbf / ranks → mtbf
not as asked | asks all ranks for a number that each of them can compute | Rank 0 makes 1 call that communicate
    -     return max(1, round(seconds / step))
    +     found = torch.tensor(max(1, round(seconds / step)), device=device)
    +     dist.all_reduce(found, op=dist.ReduceOp.MAX)
    +     return found.item()
wrong | may save after 0 steps, which is always | longer than the best interval: on ranks 0, 1 element 0 is 0
    max(1, round(seconds / step)) → round(seconds / step)
wrong | rounds down | on ranks 0, 1 element 0 is 27520 | round(seconds / step) → int(seconds / step)
"""

bytes_over_the_spine = """
wrong | leaves the ring open at its end | on ranks 0, 1 element 0 is 14
    (switch != switch.roll(-1)) → (switch[1:] != switch[:-1])
wrong | goes by the place in the ring, not by the host | dealt out in turns: on ranks 0, 1 element 0 is 28
    order // leaf → torch.arange(len(order)) // leaf
raises | looks for a host after the last one | Ranks 0, 1: IndexError
    (switch != switch.roll(-1)).sum().item() → sum(int(switch[i] != switch[i + 1]) for i in range(n))
wrong | counts what stays below a switch | on ranks 0, 1 element 0 is 84
    switch != switch.roll(-1) → switch == switch.roll(-1)
"""
