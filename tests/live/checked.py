"""A function of a learner's is checked by a lab, and the ranks are well afterwards."""

from __future__ import annotations

import re

from labkit.theory import collectives

RIGHT = "def f(x):\n    y = x.clone()\n    dist.all_reduce(y)\n    return y"
SOME = "def f(x):\n    y = x.clone()\n"
WELL = "y = torch.ones(1)\ndist.all_reduce(y)\nprint(rank, world_size, dist.get_world_size(), int(y), keep)"


def checked(lab, code: str, **given):
    """The verdict on a function; whatever it is, the next cell works and variables are kept."""
    lab.run(f"keep = 100 + rank\n{code}")
    verdict = lab.check("f", **{"means": collectives.all_reduce, **given})
    assert lab.run(WELL) == [f"{r} 4 4 4 {100 + r}\n" for r in range(4)]
    html = verdict._repr_html_()
    assert verdict.head in html
    assert html.count("<img ") == len(re.findall(r'<img alt="[^"]+"', html))
    return verdict
