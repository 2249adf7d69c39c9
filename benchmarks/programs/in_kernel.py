"""Take one system through four cells in a real Jupyter kernel: a sum, a rank that skips a call, and one that dies.

`python in_kernel.py SYSTEM LIMIT` prints what happened as one line of JSON. The benchmark gives it process numbers and
a network of its own: what a system leaves behind, listens on or kills by pattern ends with them.
"""

import json
import os
import sys
import tempfile
import time

import psutil
from jupyter_client.manager import KernelManager

JOIN = """
import os, torch
import torch.distributed as dist
{who}
dist.init_process_group("gloo", rank=rank, world_size=4, store=dist.FileStore("{store}", 4))
"""
FOLDER = tempfile.TemporaryDirectory(prefix="beside-")
STORE = os.path.join(FOLDER.name, "store")
IN_PARALLEL = """
import ipyparallel as ipp
cluster = ipp.Cluster(n=4, log_level=40)
client = cluster.start_and_connect_sync()
client.activate()
for rank, engine in enumerate(client.ids):
    client[engine]["rank"] = rank
"""
LAUNCHED = """
def cell():
    import torch
    import torch.distributed as dist
    from accelerate import PartialState
    rank = PartialState(cpu=True).process_index
{body}
from accelerate import debug_launcher
debug_launcher(cell, num_processes=4)
"""
# How a system is told to start four ranks, and what stands around a cell that runs on all of them.
SYSTEMS = {
    "labkit": (["from labkit import start\nlab = start(4, 'gloo')"], "%%px\n{body}"),
    "ipyparallel": ([IN_PARALLEL, "%%px\n" + JOIN.format(who="", store=STORE)], "%%px\n{body}"),
    "nbdistributed": (["%load_ext nbdistributed", "%dist_init -n 4"], "{body}"),
    "jupyter-distributed": ([JOIN.format(who="rank = int(os.environ['RANK'])", store=STORE)], "{body}"),
    "accelerate": ([], LAUNCHED),
}
ADD = "y = torch.tensor([rank + 1.0])\ndist.all_reduce(y)\nprint(f'sum {y.item():g}')"
MAKE = "kept = 100 + rank"
SKIP = "z = torch.ones(1)\nif rank != 2:\n    dist.all_reduce(z)"
DIE = "import os\nif rank == 2:\n    os.kill(os.getpid(), 9)"
READ = "print(f'kept {kept}')"
STOP = 20.0  # seconds that Stop is given


class Kernel:
    """A kernel of Jupyter's, whose cells are run as a notebook's front end runs them."""

    def __init__(self, system):
        self.start, self.around = SYSTEMS[system]
        self.manager = KernelManager(kernel_name="python3", transport="ipc", ip=os.path.join(FOLDER.name, "kernel"))
        if system == "jupyter-distributed":
            self.manager.kernel_spec.argv[2] = "jupyter_distributed.kernel"
            self.manager.kernel_spec.env["JUPYTER_DISTRIBUTED_WORLD_SIZE"] = "4"
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code, limit):
        """Run a cell; how long until its reply came, whether that took Stop (None: not even then), and its output."""
        began, said, stopped = time.monotonic(), [], False
        asked = self.client.execute(code, store_history=False)
        while True:
            left = began + limit + (STOP if stopped else 0) - time.monotonic()
            if left <= 0 and stopped:
                return None, None, "".join(said)
            if left <= 0:
                stopped = True
                self.manager.interrupt_kernel()
                continue
            try:
                message = self.client.get_iopub_msg(timeout=left)
            except Exception:  # queue.Empty, whichever queue this version has
                continue
            if message["parent_header"].get("msg_id") == asked:
                said.append(json.dumps(message["content"]))
                if message["content"].get("execution_state") == "idle":
                    return time.monotonic() - began, stopped, "".join(said)

    def on_all(self, body, limit):
        """Run a cell on all ranks."""
        lines = "\n".join("    " + line for line in body.splitlines()) if "{body}\nfrom" in self.around else body
        return self.run(self.around.format(body=lines), limit)

    def works(self, limit):
        """Whether a sum is right on all ranks, and on how many of them a variable of an earlier cell is there."""
        _, stopped, said = self.on_all(ADD, limit)
        right = stopped is False and said.count("sum 10") >= 1 and "Error" not in said
        _, stopped, said = self.on_all(READ, limit)
        return right, sum(f"kept {100 + rank}" in said for rank in range(4))


def main(system, limit):
    """Take it through the cells, and print what happened."""
    began = time.monotonic()
    kernel = Kernel(system)
    for code in kernel.start:
        kernel.run(code, 120)
    told = {"tries": 0}
    while "first" not in told and told["tries"] < 3:
        _, _, said = kernel.on_all(ADD, 120)
        told["tries"] += 1
        if "sum 10" in said:
            told["first"] = time.monotonic() - began
    if "first" not in told:
        sys.exit(f"no sum after {told['tries']} tries: {said[-300:]}")
    kernel.on_all(MAKE, limit)
    time.sleep(2)  # what the start still had to do is done
    mine = {os.getpid(), os.getppid()}
    told["memory"] = sum(p.memory_full_info().pss for p in psutil.process_iter() if p.pid not in mine) / 2**20
    for what, body in (("skip", SKIP), ("die", DIE)):
        seconds, stopped, said = kernel.on_all(body, limit)
        right, kept = kernel.works(limit)
        told[what] = {
            "seconds": seconds, "stopped": stopped, "names": "rank 2" in said.lower(), "right": right, "kept": kept,
        }  # fmt: skip
        if not right:
            break
    print(json.dumps(told), flush=True)


main(sys.argv[1], float(sys.argv[2]))
FOLDER.cleanup()
os._exit(0)  # the namespace's end takes what is still there
