"""Markdown as HTML, by mistune; as plain text it reads as it is. Imports nothing of labkit."""

import mistune

_read = mistune.create_markdown()


def html(text: str) -> str:
    r"""Return the text as HTML.

    >>> html("Use `2**k`, **x** < 3.")
    '<p>Use <code>2**k</code>, <strong>x</strong> &lt; 3.</p>\n'
    """
    return str(_read(text))
