"""Plain ipyparallel, every default: four engines import torch, join a group and do an all-reduce."""

import os
import tempfile
import time

from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()

import ipyparallel as ipp  # noqa: E402


def join_and_reduce(rank, path):
    """Run on an engine: what a learner would write without labkit."""
    global x
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(path, 4), rank=rank, world_size=4)
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


cluster = ipp.Cluster(n=4, log_level=40)
client = cluster.start_and_connect_sync()
path = os.path.join(tempfile.mkdtemp(), "store")
replies = [client[engine].apply_async(join_and_reduce, rank, path) for rank, engine in enumerate(client.ids)]
said = [reply.get() for reply in replies]
first = time.monotonic()
assert said == [4.0] * 4, said

from cells import answer  # noqa: E402


def stop():
    """End what was started."""
    client.close()
    cluster.stop_cluster_sync()


client.activate()  # registers %%px, blocking
answer(shell, {"%%px": "", "%%px --no-stream": "--no-stream"}, stop, first)
