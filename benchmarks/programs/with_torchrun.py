"""One rank under torchrun: join the group, do an all-reduce, say when it was done."""

import json
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
value = x.item()
first = time.monotonic()
assert value == 4.0, value
sys.stdout.write(f"@ {json.dumps({'first': first})}\n")  # one write: torchrun's ranks share an unbuffered pipe
dist.destroy_process_group()
