"""Planted mistakes of lesson 15b, in the form that `tests.mistakes` tells."""

pcie_path = """
wrong | takes the CPU for a switch | on rank 1 'PXB' comes back
    set(mine[:-1]) & set(theirs[:-1]) → set(mine) & set(theirs)
wrong | does not ask for the CPU | on rank 0 'PIX' comes back
    mine[-1] != theirs[-1] → mine[:1] != theirs[:1] and False
wrong | takes any switch that both are below for PIX | on rank 1 'PIX' comes back
    "PIX" if mine[0] == theirs[0] else "PXB" → "PIX"
wrong | looks at the nearest switch only | on rank 1 'PHB' comes back
    not set(mine[:-1]) & set(theirs[:-1]) → mine[0] != theirs[0] or len(mine) == 1
raises | takes it that a switch is above everything | Rank 0: IndexError
    not set(mine[:-1]) & set(theirs[:-1]) → mine[1] == mine[-1] and mine[0] != theirs[0]
"""

choose_nics = """
wrong | sorts the words by their letters | on rank 0 element 0 is 1 | order.index(path) → path
wrong | gives all GPUs of a switch the same NIC | on rank 1 element 1 is 0 | taken[nic] += 1 →
wrong | takes NODE for nearer than PHB | on rank 0 element 1 is 1 | "PHB", "NODE" → "NODE", "PHB"
raises | knows no host bridges | Rank 0: ValueError | "PXB", "PHB", "NODE" → "PXB", "NODE"
"""

tree_parents = """
wrong | mirrors for odd n as well | on rank 0 element 1 is 2 | if n % 2 == 0: → if True:
wrong | shifts for even n as well | on rank 0 element 1 is 3 | if n % 2 == 0: → if False:
wrong | leaves the second root with a parent | on rank 1 element 1 is 2 | n - 1 - up if up >= 0 else -1 → n - 1 - up
raises | counts the mirror from n on | Rank 0: IndexError
    first(n - 1 - place) → [first(r) for r in range(n)][n - place]
"""

pat_sends = """
wrong | begins with the nearest jump | on rank 0 element 0 in result[0] is 3 | 2 ** (steps - 1 - step) → 2**step
wrong | goes all the way round | on rank 0 the list in result[1] has 3 entries
    range(0, n - d, 2 * d) → range(0, n, 2 * d)
wrong | sends what the receiver had first | on rank 0 element 0 in result[1] is 1
    (place + far) % n → (place - d + far) % n
raises | rounds the number of steps down | Rank 0: TypeError | (n - 1).bit_length() → n.bit_length() - 1
"""

leaves_node = """
wrong | goes round the ring once | on rank 1 element 0 is 1.5 | 2 * nbytes * (n - 1) / n → nbytes * (n - 1) / n
wrong | counts nodes in the ring, and no ranks | on rank 1 element 0 is 1.6 | n = nodes * gpus → n = nodes
wrong | uses one tree for both halves | on rank 1 element 1 is 800 | in (first, second)) → in (first, first))
raises | looks for a child of every node | Rank 0: ValueError | tree.count(m) → (tree.index(m) >= 0)
"""

ran_as = """
wrong | takes the last channel's number for how many | on rank 0 element 0 in result[4] is 1
    int(high) - int(low) + 1 → max(int(high), 1)
wrong | leaves the bytes a text | on ranks 0, 1 a str comes back in result[1] | int(size) → size
wrong | swaps algorithm and protocol | on rank 0 'simple' comes back in result[2]
    words[5], words[7] → words[7], words[5]
wrong | keeps NCCL's name of the operation | on rank 0 'Broadcast' comes back in result[0] | names[op] → op
raises | counts the words from the beginning of the line | Ranks 0, 1: ValueError
    line.split("NCCL INFO ")[1].split() → line.split()
"""
