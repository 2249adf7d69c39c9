"""The base of values that show themselves as a picture, with the same told in words. No torch, no cluster."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from labkit.plot import svg


class Picture:
    """A value that shows itself: as text by `repr`, on a page as a picture; a subclass says it, and draws it."""

    def _drawn(self) -> Any:
        """Return the axes of the picture, as a module of `labkit.plot` draws them."""
        raise NotImplementedError

    @property
    def alt(self) -> str:
        """The picture in words."""
        return repr(self)

    @cached_property
    def svg(self) -> bytes:
        """The picture as SVG; equal values give equal bytes."""
        return svg.svg(self._drawn())

    def _repr_html_(self) -> str:
        return svg.img(self.svg, self.alt)
