"""What harnesses of exercises build of torch's classes: imported on ranks alone, which see torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from labkit.rank.cell_names import rank, torch, world_size


class Small(torch.nn.Module):
    """A pipeline's stage with one weight, as the harnesses of lessons 13 and 13b use it."""

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
    count = 0

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # else torch imports its compiler at the first operation, for seconds

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv")
        return function(*args, **(kwargs or {}))


class AdamW:
    """Adam with decoupled weight decay; torch's own imports for seconds in its first step, one rank after another."""

    def __init__(self, params, lr, decay=0.01, betas=(0.9, 0.999), eps=1e-8):
        self.params, self.lr, self.decay, self.betas, self.eps, self.state = list(params), lr, decay, betas, eps, {}

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p in self.params:
            first, second, count = self.state.get(p, (torch.zeros_like(p), torch.zeros_like(p), 0))
            first = self.betas[0] * first + (1 - self.betas[0]) * p.grad
            second = self.betas[1] * second + (1 - self.betas[1]) * p.grad**2
            self.state[p] = first, second, count + 1
            scale = (second / (1 - self.betas[1] ** (count + 1))).sqrt() + self.eps
            p.mul_(1 - self.lr * self.decay).sub_(self.lr * first / (1 - self.betas[0] ** (count + 1)) / scale)


class Adam:
    """Adam, which keeps each gradient that it saw; torch's own imports a compiler for seconds when it is first used."""

    def __init__(self, params, lr):
        self.param_groups, self.state, self.gradients = [{"params": list(params), "lr": lr}], {}, []

    def zero_grad(self, set_to_none=True):
        for p in self.param_groups[0]["params"]:
            p.grad = None

    @torch.no_grad()
    def step(self):
        (p,), lr = self.param_groups[0]["params"], self.param_groups[0]["lr"]
        self.gradients.append(None if p.grad is None else p.grad.clone())
        if p.grad is None:
            return
        step, mean, square = self.state.get(p, (0, torch.zeros_like(p), torch.zeros_like(p)))
        step, mean, square = step + 1, mean.lerp(p.grad, 0.1), square * 0.999 + 0.001 * p.grad**2
        self.state[p] = step, mean, square
        p -= lr * mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
