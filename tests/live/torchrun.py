"""torchrun as it is, but for its store, which listens on loopback alone: torch has no option for that.

python tests/live/torchrun.py --nproc-per-node 4 mean.py
"""

import functools
import socket
import sys

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listens = {"master_listen_fd": listening.detach()}
        static_tcp_rendezvous.TCPStore = functools.partial(dist.TCPStore, **listens)  # type: ignore[misc]
        port = socket.socket(fileno=listens["master_listen_fd"])
        sys.argv[1:1] = ["--master-addr=127.0.0.1", f"--master-port={port.getsockname()[1]}"]
        port.detach()
        from torch.distributed.run import main

        main()
