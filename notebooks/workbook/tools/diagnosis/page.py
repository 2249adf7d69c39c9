"""The clinic's diagnosis tree, on a page to print: `tree` shows it, and `tree.save("tree.html")` writes it."""

from __future__ import annotations

from html import escape
from pathlib import Path

from labkit.show import markdown
from workbook.tools import saving
from workbook.tools.diagnosis.questions import TREE, Branch, Question

TITLE = "Hang, raise or lie? A diagnosis tree"
HOW = "Ask from top to bottom. The first yes names the likely cause; the number is its case in lessons 14 and 14b."
# One page of A4 or of Letter. Lines and letters take the page's own colours, light or dark.
STYLE = """
.labkit-tree { max-width: 200mm; font: 7.9pt/1.2 'DejaVu Sans', Verdana, Arial, sans-serif; }
.labkit-tree h1 { font-size: 13pt; margin: 0 0 1mm; }
.labkit-tree .branch { break-inside: avoid; margin: 1.6mm 0 0; padding-left: 2.5mm; border-left: 2.4pt solid #8a8a84; }
.labkit-tree .symptom { font-size: 10.5pt; font-weight: 700; }
.labkit-tree .rung { display: grid; grid-template-columns: 1fr 12mm 1.15fr; margin-top: 0.9mm;
  break-inside: avoid; }
.labkit-tree .ask, .labkit-tree .cause { border: 0.6pt solid #8a8a84; border-radius: 4px; padding: 0.4mm 1.4mm; }
.labkit-tree .ask { border-radius: 9px; }
.labkit-tree .ask b, .labkit-tree .cause b { display: block; }
.labkit-tree .answers { align-self: center; text-align: center; white-space: nowrap; font-weight: 700; }
.labkit-tree .answers span { display: block; }
.labkit-tree .otherwise { margin-top: 1.1mm; }
.labkit-tree .case { float: right; margin-left: 1.5mm; border: 0.6pt solid currentColor;
  border-radius: 8px; padding: 0 1.2mm; }
.labkit-tree p { display: inline; margin: 0; }
.labkit-tree code { font: 7.6pt/1.15 'DejaVu Sans Mono', Menlo, monospace; background: none; padding: 0;
  color: inherit; }
"""
PRINT = """
@page { size: auto; margin: 8mm; }
html { color-scheme: light dark; }
body { margin: 0 auto; max-width: 200mm; }
@media print { html { color-scheme: light; } body { max-width: none; } .labkit-tree { max-width: none; } }
"""


class Tree:
    """The tree, as text, as HTML, and with `tree.save("tree.html")` as a page to print.

    >>> print(repr(Tree()).splitlines()[0])
    Hang, raise or lie? A diagnosis tree
    """

    def __repr__(self) -> str:
        lines = [TITLE, HOW]
        for branch in TREE:
            lines += ["", f"{branch.symptom}: {branch.sign}"]
            for question in branch.questions:
                case = f" [{question.case}]" if question.case else ""
                lines.append(f"  {question.ask} ({question.tool})")
                lines.append(f"    yes → {question.cause}{case}: {question.remedy}")
            lines.append(f"  none of these → {branch.otherwise}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        branches = "".join(map(_branch, TREE))
        return f"<style>{STYLE}</style><div class='labkit-tree'><h1>{TITLE}</h1><div>{HOW}</div>{branches}</div>"

    def save(self, file: str = "diagnosis-tree.html", overwrite: bool = False) -> Path:
        """Write the tree as a page that a browser prints on one sheet of A4 or Letter; its path.

        Raises `LabError` where there is a file of this name that labkit has not written, unless `overwrite`.
        """
        html = self._repr_html_()
        return saving.save_page(file, TITLE, PRINT, html, "tree.save", "diagnosis-tree.html", overwrite)


def _branch(branch: Branch) -> str:
    rungs = "".join(map(_rung, branch.questions))
    return (
        f"<div class='branch'><span class='symptom'>{escape(branch.symptom)}.</span> {escape(branch.sign)}{rungs}"
        f"<div class='cause otherwise'>{markdown.html(branch.otherwise)}</div></div>"
    )


def _rung(question: Question) -> str:
    case = f"<span class='case' title='case of the clinic'>{escape(question.case)}</span>" if question.case else ""
    return (
        f"<div class='rung'><div class='ask'><b>{markdown.html(question.ask)}</b>{markdown.html(question.tool)}</div>"
        f"<div class='answers'><span>yes →</span><span>no ↓</span></div>"
        f"<div class='cause'>{case}<b>{markdown.html(question.cause)}</b>{markdown.html(question.remedy)}</div></div>"
    )


tree = Tree()
