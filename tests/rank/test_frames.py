"""Where another thread is, as it was at one moment."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from labkit.rank import frames


def waits_for(event: threading.Event) -> None:
    event.wait()


def test_the_frames_of_a_thread_are_innermost_first_and_none_are_left_when_it_has_ended():
    event = threading.Event()
    thread = threading.Thread(target=waits_for, args=(event,))
    thread.start()
    while "waits_for" not in (names := [frame.f_code.co_name for frame in frames.stack(thread.ident)]):
        pass
    assert names.index("waits_for") < names.index("_bootstrap")
    event.set()
    thread.join()
    assert frames.stack(thread.ident) == []


def test_nothing_is_collected_while_the_frames_of_another_thread_are_taken(monkeypatch):
    """In Python 3.11 a collection that let the other thread go on ended the rank: the frame's memory was another's."""
    before, here, seen = gc.get_threshold(), sys._getframe(), []

    class Frame(SimpleNamespace):
        @property
        def f_back(self):
            seen.append(gc.get_threshold()[0])
            return here

    def current() -> dict[int, Frame]:
        seen.append(gc.get_threshold()[0])
        return {1: Frame()}

    monkeypatch.setattr(sys, "_current_frames", current)
    assert frames.stack(1)[1:] == list(frames.callers(here))
    assert frames.others() == {1}
    assert seen == [0, 0, 0]
    assert gc.get_threshold() == before


ON_A_DEVICE = '''\
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils import backend_registration

from labkit.rank import frames, memory
from labkit.rank.frames import MAIN

backend_registration._setup_privateuseone_for_python_backend("gpu")  # torch's engine gives it a thread, as it does CUDA


def on_gpu(x):
    return torch._C._acc.create_empty_tensor(tuple(x.shape), x.dtype)


class There(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: on_gpu(x))
    backward = staticmethod(lambda ctx, g: torch.ones(g.shape))


class Back(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: torch.ones(x.shape))
    backward = staticmethod(lambda ctx, g: on_gpu(g))


def here():
    known = [(code.co_name, line) for code, line in frames.leading_here()]
    return known, frames.works_for_backward(), threading.get_ident() == MAIN


def at_work():
    """Whose frames another thread finds in the main one's place."""
    found = lambda stack: [f.f_code.co_name for f in stack if "ipython" in f.f_code.co_filename]
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(frames.look, MAIN, found).result()


exec(compile(open("cell.py").read(), "<ipython-input-1>", "exec"), globals())
sys.stdout.flush()
os._exit(0)  # the engine's thread asks Python for this device, and may do so when Python is gone
'''
CELL = """\
def learn(there, x=None):
    w = torch.ones(100, requires_grad=True)
    first = 0 if x is None else (x * 2).sum()
    gpu = There.apply(w)
    gpu.register_hook(there)
    (first + Back.apply(gpu).sum()).backward()
def hook(gradient):
    print(here(), at_work())
    kept.append(torch.ones(1000))
kept = []
with memory.peak() as most:
    learn(hook)
print(most.bytes >= 4000)
both = threading.Barrier(2)
def meets(gradient):
    both.wait(60)
    print(here())
    both.wait(60)
def busy(gradient):
    both.wait(60)
    both.wait(60)
x = torch.ones(3, requires_grad=True)
x.register_hook(busy)
learn(meets, x)
"""


def test_a_hook_that_autograd_calls_on_a_thread_of_its_own_is_led_to_by_the_cell_that_waits(tmp_path):
    (tmp_path / "cell.py").write_text(CELL)
    ran = subprocess.run([sys.executable, "-c", ON_A_DEVICE], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert ran.returncode == 0, ran.stderr
    alone, counted, beside = ran.stdout.splitlines()
    led = [("hook", 8), ("learn", 6), ("<module>", 12)]
    assert alone == f"{(led, True, False)} ['hook', 'learn', '<module>']"
    assert counted == "True"
    led = [("meets", 17), ("learn", 6), ("<module>", 24)]
    assert beside == f"{(led, True, False)}", "and not what the main thread does in a hook meanwhile"


def test_a_thread_that_python_has_begun_is_led_to_by_its_own_frames_alone():
    with ThreadPoolExecutor(1) as pool:
        code = compile("pool.submit(leading_here).result(), leading_here()", "<ipython-input-1>", "eval")
        theirs, mine = eval(code, {"pool": pool, "leading_here": frames.leading_here})
    assert theirs == []
    assert [(place.co_filename, line) for place, line in mine] == [("<ipython-input-1>", 1)]
