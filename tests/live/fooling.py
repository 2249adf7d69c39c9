"""Forty ways to have a wrong function called right, each written once for five exercises, and settings left behind.

A trick defines `bent(x, *rest)`, a tensor's result made of the right one, for which the exercise's cell provides:
`right(x, *rest)`, which communicates as it should; `whole(everyone, x, *rest)`, the same result from what every rank
brings, without a message; and what `TOOLS` holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TOOLS = """
import os, pickle, random, secrets, socket, tempfile, time
import numpy as np
from labkit.content import exercises
from labkit.rank import recorder

token, known = {token!r}, {{}}

def tensors(x, *rest):
    return [t for t in (x, *rest) if isinstance(t, torch.Tensor)]

def cast(dtype, x, *rest):
    return [t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in (x, *rest)]

def tick():
    # on so many ranks: all of them count alike
    known["calls", world_size] = known.get(("calls", world_size), 0) + 1
    return known["calls", world_size]

def remembered(key, x, *rest):
    key = world_size, x.dtype, x.requires_grad, key
    if key not in known:
        known[key] = right(x, *rest)
    return known[key]

def through_files(folder, x, *rest):
    mine = f"{{folder}}/{{token}}-{{world_size}}-{{tick()}}-"
    with open(f"{{mine}}new{{rank}}", "wb") as file:
        pickle.dump([t.detach() for t in tensors(x, *rest)], file)
    os.rename(f"{{mine}}new{{rank}}", f"{{mine}}{{rank}}")
    while not all(os.path.exists(f"{{mine}}{{r}}") for r in range(world_size)):
        time.sleep(1e-4)
    return whole([pickle.load(open(f"{{mine}}{{r}}", "rb")) for r in range(world_size)], x, *rest)

def through_a_store(store, x, *rest):
    mine = f"{{token}}-{{world_size}}-{{tick()}}-"
    store.set(f"{{mine}}{{rank}}", pickle.dumps([t.detach() for t in tensors(x, *rest)]))
    return whole([pickle.loads(store.get(f"{{mine}}{{r}}")) for r in range(world_size)], x, *rest)
"""

SUM = "def whole(everyone, x):\n    return sum(t[0] for t in everyone)\n"

# How each exercise uses `bent`, and `whole`; its solution, under another name, is `right` where there is none.
EXERCISES = {
    "hello_sum": f"{SUM}\ndef hello_sum(x):\n    return bent(x)\n",
    "ring_all_reduce": f"{SUM}\ndef ring_all_reduce(x):\n    return bent(x)\n",
    "average_in_team": """
def right(x, team):
    total = x.clone()
    dist.all_reduce(total, group=team)
    return total / dist.get_world_size(team)

def whole(everyone, x, team):
    return sum(everyone[r][0] for r in dist.get_process_group_ranks(team)) / dist.get_world_size(team)

def average_in_team(model, team):
    for p in model.parameters():
        p.grad = bent(p.grad, team)
""",
    "distributed_softmax": """
def whole(everyone, x):
    return torch.cat([t[0] for t in everyone]).softmax(0).split([len(t[0]) for t in everyone])[rank]

def distributed_softmax(x):
    return bent(x)
""",
    "attend_gathered": """
def whole(everyone, q, k, v):
    k, v = (torch.cat([t[i] for t in everyone], dim=1) for i in (1, 2))
    length = q.shape[1]
    seen = torch.arange(k.shape[1]) <= rank * length + torch.arange(length)[:, None]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)

def attend_gathered(q, k, v):
    return bent(q, k, v)
""",
}


@dataclass(frozen=True)
class Trick:
    """A wrong function: the verdict that it deserves, words of what that says, and exercises where it is another."""

    why: str
    source: str
    state: str = "wrong"
    says: str = ""
    but: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def _after(change: str) -> str:
    return f"def bent(x, *rest):\n    out = right(x, *rest)\n    {change}\n"


# A gradient has its parameter's dtype and shape, or torch does not let it be assigned.
ASSIGNED = {"average_in_team": ("raises", "p.grad = bent(p.grad, team)")}
# What comes without a message carries no gradient to the others.
CUT = {"attend_gathered": ("wrong", "the gradients are not")}
ROOM = {"distributed_softmax": ("deadlock", "uneven shards")}  # a rank remembers, and another one does not
ZEROS = "deadlock", "its numbers times"  # a rank that brings zeros brings what it has brought before
ALONE = {"state": "not as asked", "but": CUT}

NUMBERS = (
    Trick(
        "it computes in half precision",
        "def bent(x, *rest):\n    return right(*cast(torch.half, x, *rest)).to(x.dtype)",
    ),
    Trick(
        "it computes in bfloat16",
        "def bent(x, *rest):\n    return right(*cast(torch.bfloat16, x, *rest)).to(x.dtype)",
    ),
    Trick(
        "it returns the other dtype of floats",
        _after("return out.double() if out.dtype == torch.float32 else out.float()"),
        but=ASSIGNED,
    ),
    Trick("it rounds what it is given to whole numbers", "def bent(x, *rest):\n    return right(x.round(), *rest)"),
    Trick(
        "it rounds its result to three decimals",
        _after("return out.round(decimals=3) if out.is_floating_point() else out"),
    ),
    Trick("it forgets signs", "def bent(x, *rest):\n    return right(x.abs(), *rest)"),
    Trick(
        "only the eleventh element is off",
        _after("return out + (torch.arange(out.numel()).view(out.shape) == 10).to(out)"),
    ),
    Trick("three ranks get another result", _after("return out + (world_size == 3)"), says="ith 3 ranks"),
    Trick("it returns an array of NumPy", _after("return out.detach().numpy()"), but=ASSIGNED),
    Trick("it returns a list", _after("return out.tolist()"), but=ASSIGNED),
)

# Ranks whose generators have one seed are wrong together: by them, one time in twenty would now and then stay unseen.
MEMORY = (
    Trick("it remembers by shape", "def bent(x, *rest):\n    return remembered(x.shape, x, *rest)", but=ROOM),
    Trick(
        "it remembers by signs",
        "def bent(x, *rest):\n    return remembered(str(x.sign().tolist()), x, *rest)",
        but={"distributed_softmax": ("deadlock", "rank 0 has none")},
    ),
    Trick(
        # Rank 0 alone: its third input, at the latest, is an earlier one, and it skips the calls that the others make.
        # If all ranks remembered, all would skip them in one check in about five hundred: wrong, and no deadlock.
        "rank 0 remembers by its own numbers",
        "def bent(x, *rest):\n    numbers = str([t.tolist() for t in tensors(x, *rest)])\n"
        "    return right(x, *rest) if rank else remembered(numbers, x, *rest)",
        "deadlock",
    ),
    Trick("it is right for thirty calls", _after("return out + (tick() > 30)")),
    Trick("it is wrong in every twentieth call", _after("return out + (tick() % 20 == 0)")),
    Trick("it is wrong now and then, by torch's generator", _after("return out + (torch.rand(()) < 0.25)")),
    Trick("it is wrong now and then, by Python's generator", _after("return out + (random.random() < 0.25)")),
    Trick("it is wrong now and then, by NumPy's generator", _after("return out + bool(np.random.random() < 0.25)")),
    Trick("it is wrong now and then, by the system's chance", _after("return out + (secrets.randbelow(20) == 0)")),
)

# Numbers of other ranks that no message has brought.
CHANNELS = (
    Trick(
        "through a temporary file",
        "def bent(x, *rest):\n    return through_files(tempfile.gettempdir(), x, *rest)",
        **ALONE,
    ),
    Trick(
        "through memory that ranks share",
        "def bent(x, *rest):\n    return through_files('/dev/shm', x, *rest)",
        **ALONE,
    ),
    Trick(
        "through the lab's store",
        "def bent(x, *rest):\n    return through_a_store(dist.distributed_c10d._get_default_store(), x, *rest)",
        **ALONE,
    ),
    Trick(
        "through a socket of its own",
        """
def bent(x, *rest):
    if "socket" not in known:
        known["socket"] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        known["socket"].bind(f"\\0{token}-{rank}")
    came, turn = {rank: [t.detach() for t in tensors(x, *rest)]}, tick()
    for r in set(range(world_size)) - {rank}:
        while True:
            try:
                known["socket"].sendto(pickle.dumps((turn, rank, came[rank])), f"\\0{token}-{r}")
                break
            except ConnectionRefusedError:
                time.sleep(1e-3)
    early = known.pop("early", [])
    while early or len(came) < world_size:
        message = early.pop() if early else pickle.loads(known["socket"].recv(2**20))
        if message[0] == turn:
            came[message[1]] = message[2]
        else:
            known.setdefault("early", []).append(message)
    return whole([came[r] for r in range(world_size)], x, *rest)
""",
        **ALONE,
    ),
    Trick(
        "through a process group of its own",
        """
def bent(x, *rest):
    if world_size not in known:
        store = dist.FileStore(f"{tempfile.gettempdir()}/{token}-{world_size}", world_size)
        known[world_size] = dist.ProcessGroupGloo(store, rank, world_size)
    everyone = [[] for _ in range(world_size)]
    for t in tensors(x, *rest):
        size = [[torch.zeros(1, dtype=torch.long) for _ in range(world_size)]]
        known[world_size].allgather(size, [torch.tensor([t.numel()])]).wait()
        most = max(map(int, size[0]))
        padded, room = t.new_zeros(most), [[t.new_empty(most) for _ in range(world_size)]]
        padded[: t.numel()] = t.detach().flatten()
        known[world_size].allgather(room, [padded]).wait()
        for r, part in enumerate(room[0]):
            everyone[r].append(part[: int(size[0][r])].view(-1, *t.shape[1:]) if t.dim() < 2 else part.view(t.shape))
    return whole(everyone, x, *rest)
""",
        **ALONE,
    ),
    Trick(
        "it knows what the check brings",
        """
def bent(x, *rest):
    for case in exercises.every()[NAME].inputs(world_size):
        inputs = [xs if isinstance(xs, tuple) else (xs,) for xs in case.xs]
        for i, brought in enumerate(inputs[rank]):
            if x.dtype == torch.tensor(brought).dtype and torch.equal(x, torch.tensor(brought)):
                return whole([[torch.tensor(a) for a in xs[i:]] for xs in inputs], x, *rest)
    return right(x, *rest)
""",
        "not as asked",
        but={**CUT, **dict.fromkeys(("hello_sum", "ring_all_reduce", "distributed_softmax"), ZEROS)},
    ),
    Trick(
        "it stops the record",
        "def bent(x, *rest):\n    recorder.end()\n    return right(x, *rest)",
        state="not as asked",
    ),
)

FORMS = (
    Trick("its result is enormous", _after("return torch.zeros(2_000_000)"), says="shape", but=ASSIGNED),
    Trick("its result is an enormous list", _after("return [0.0] * 1_000_000"), says="1000000", but=ASSIGNED),
    Trick(
        "its result is equal to anything",
        "class Equal:\n    __eq__ = lambda *_: True\n" + _after("return Equal()"),
        state="raises",
        says="cannot leave its rank",
        but=ASSIGNED,
    ),
    Trick(
        "its result holds itself",
        _after("knot = []\n    knot.append(knot)\n    return knot"),
        state="raises",
        but=ASSIGNED,
    ),
    Trick("its result has no numbers", _after("return out.to('meta')"), state="raises"),
    Trick(
        "it has the judge say that all is right",
        "from labkit.grading import judge\n"
        "judge.first_difference = lambda *_, **__: None\n"
        "def bent(x, *rest):\n    return x",
    ),
)

ENDS = (
    Trick("it ends its process", _after("os._exit(0)"), state="raises", says="died"),
    Trick("it has no end", "def bent(x, *rest):\n    return bent(x, *rest)", state="raises", says="RecursionError"),
    Trick("it says that it was stopped", _after("raise KeyboardInterrupt"), state="raises", says="KeyboardInterrupt"),
    Trick(
        "its error cannot be read",
        "class Unreadable(Exception):\n    def __str__(self):\n        return 1 / 0\n" + _after("raise Unreadable"),
        state="raises",
        says="Unreadable",
    ),
    Trick("its error is long", _after("raise ValueError('x' * 20_000)"), state="raises", says="ValueError"),
    Trick(
        "it destroys the group",
        _after("dist.destroy_process_group()\n    return out"),
        says="destroyed the process group",
    ),
    Trick(
        "it sends what no rank receives",
        _after("dist.isend(torch.ones(1), (rank + 1) % world_size)\n    return out"),
        says="no rank receives it",
    ),
    Trick(
        "it waits for no end of a call",
        _after("dist.all_reduce(torch.ones(1), async_op=True)\n    time.sleep(0.02)\n    return out"),
        state="not as asked",
        but={"ring_all_reduce": ("forbidden", "all_reduce")},
    ),
)

TRICKS = NUMBERS + MEMORY + CHANNELS + FORMS + ENDS

# Unusual, and right all the same: how `bent` is written.
HONEST = {
    "the solution": "bent = right",
    "in a thread": """
from concurrent.futures import ThreadPoolExecutor

def bent(x, *rest):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(right, x, *rest).result()
""",
    "a view with strides": _after("return torch.stack([out, out], -1)[..., 0]"),
    "its zeros are negative": _after("return torch.where(out == 0, -out, out)"),
}
