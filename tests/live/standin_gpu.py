"""One GPU that all ranks share, as far as the lab sees it on a machine without one: the fork server imports this.

`LABKIT_PRELOAD=tests.live.standin_gpu` lets torch find a GPU, and a group with NCCL be one with Gloo. The ranks' cells
say what happens on the GPU: `launch()` a kernel that runs until the group is aborted, `fault()` as a failed assert
does. A process meets the MPS daemon that its environment names when it first uses the GPU, as CUDA does: see
tests/standin_mps.py.

STANDIN_NCCL is the version of NCCL, 2.28.9 where it is not set. STANDIN_REFUSES names ways in which NCCL joins nobody,
STANDIN_HANGS those in which the first kernel of a group never ends.
"""

import os
import select
import time

import torch
import torch.distributed as dist

from labkit.rank import group, stream
from tests import standin_mps

_client = None  # the connection to the daemon
_used = _faulty = _running = False
_init_process_group = dist.init_process_group


def way():
    """In which way this rank's environment lets it share the GPU."""
    if "NCCL_MULTI_RANK_GPU_ENABLE" in os.environ:
        return "direct"
    return "sockets" if standin_mps.FOLDER in os.environ else "turns"


def init_process_group(backend, device_id=None, **more):
    if "nccl" in backend and way() in os.environ.get("STANDIN_REFUSES", "").split():
        raise dist.DistBackendError(f"NCCL does not work by {way()} here")
    _init_process_group("gloo", **more)
    if "nccl" in backend and way() in os.environ.get("STANDIN_HANGS", "").split():
        launch()


def set_device(device):
    global _used, _client
    if not _used and (folder := os.environ.get(standin_mps.FOLDER)):
        _client = standin_mps.connected(folder)
        _client.sendall(f"client {os.getpid()}\n".encode())
    _used = True


def synchronize(device=None):
    global _running
    if _faulty or (_client is not None and select.select([_client], [], [], 0)[0]):
        raise torch.AcceleratorError(
            "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in the documentation.\nCUDA kernel "
            "errors might be asynchronously reported at some other API call."
        )
    while _running and not group.aborted():
        time.sleep(0.002)
    if _running:
        _running = False
        standin_mps.note("over", os.getpid())


def launch():
    global _running
    _running = True


def fault():
    """Spoil the GPU, for all clients of the daemon where there is one, and raise what the next call of CUDA raises."""
    global _faulty
    _faulty = True
    if _client is not None:
        _client.sendall(b"fault\n")
    synchronize()


stream.gpu = lambda: "cuda:0" if _used else ""
stream.mark_start = stream.mark_end = lambda what: None  # a GPU's own clock is nothing that this one has
torch.backends.cuda.is_built = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda.is_initialized = lambda: _used
torch.cuda.set_device, torch.cuda.synchronize = set_device, synchronize
torch.cuda.nccl.version = lambda: tuple(map(int, os.environ.get("STANDIN_NCCL", "2.28.9").split(".")))
dist.init_process_group = init_process_group
