"""What harnesses of exercises build of torch's classes: imported on ranks alone, which see torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils._python_dispatch import TorchDispatchMode

from workbook.harnesses import adam_step

if TYPE_CHECKING:
    from labkit.rank.cell_names import rank, torch, world_size


class Small(torch.nn.Module):
    """A pipeline's stage with one weight, as the harnesses of lessons 12 and 12b use it."""

    asked = 0  # how often for the loss

    def __init__(self, weight, place=None, places=None):
        super().__init__()
        place, places = rank if place is None else place, places or world_size
        self.weight = torch.nn.Parameter(weight.clone())
        self.before = None if place == 0 else (place - 1) % world_size
        self.after = None if place == places - 1 else (place + 1) % world_size

    def room(self, rows):
        return self.weight.new_empty(rows, len(self.weight)).detach()

    def loss(self, y, targets):
        self.asked += 1
        return ((y - targets) ** 2).mean()

    def forward(self, x):
        return torch.tanh(self.weight * x)


class Products(TorchDispatchMode):
    """A count of the products of matrices that are computed inside it."""

    count = 0

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # else torch imports its compiler at the first operation, for seconds

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv")
        return function(*args, **(kwargs or {}))


class AdamW:
    """Adam with decoupled weight decay; torch's own imports for seconds in its first step, one rank after another."""

    def __init__(self, params, lr, decay=0.01):
        self.params, self.lr, self.decay, self.state = list(params), lr, decay, {}

    def zero_grad(self, set_to_none=True):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p in self.params:
            mean, square, count = self.state.get(p, (0, 0, 0))
            mean, square, by = adam_step(mean, square, p.grad, count + 1)
            self.state[p] = mean, square, count + 1
            p.mul_(1 - self.lr * self.decay).sub_(self.lr * by)


class Adam(AdamW):
    """Adam of one parameter, which keeps each gradient that it saw, and does nothing without one."""

    def __init__(self, params, lr):
        super().__init__(params, lr, decay=0)
        self.gradients = []

    def step(self):
        (p,) = self.params
        self.gradients.append(None if p.grad is None else p.grad.clone())
        if p.grad is not None:
            super().step()
