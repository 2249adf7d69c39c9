"""Run the notebooks and write them in their normal form, or check that they are in it.

    python .ci/notebooks.py [--fresh] [notebook or folder ...]     runs and writes (make notebooks)
    python .ci/notebooks.py --check [notebook or folder ...]       runs nothing, writes nothing

Outputs that say what the committed ones say stay as committed, so a second run leaves no git diff;
`--fresh` takes all new outputs, as after a change in how pictures are drawn. A notebook in which a cell
raises without the tag raises-exception is left as it was.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from cells import code_cells, named, notebook_paths
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from normal_form import faults, keep_committed, normalise, serialised

CELL_SECONDS = 120


class NotebookFault(Exception):
    """What is wrong in one notebook, ready to print."""


def run(nb: nbformat.NotebookNode, path: Path) -> None:
    """Run every code cell in a fresh kernel, in the notebook's own folder; raise at the first that fails."""
    place = tempfile.TemporaryDirectory(prefix="kernel-")
    client = NotebookClient(
        nb,
        # No TCP ports: Jupyter only looks for free ones, and somebody else may have one before the kernel does.
        km=AsyncKernelManager(
            kernel_name="python3", transport="ipc", ip=f"{place.name}/k", connection_file=f"{place.name}/kernel.json"
        ),
        timeout=CELL_SECONDS,
        store_widget_state=False,
        resources={"metadata": {"path": str(path.resolve().parent)}},
    )
    with place, client.setup_kernel():
        for cell in code_cells(nb):
            try:
                client.execute_cell(nb.cells[cell.index], cell.index)
            except CellExecutionError as error:
                raise NotebookFault(named(path, cell, f"raises {error.ename}: {error.evalue}")) from None
            except CellTimeoutError:
                raise NotebookFault(named(path, cell, f"takes over {CELL_SECONDS} s")) from None
            except DeadKernelError:
                raise NotebookFault(named(path, cell, "ends the kernel")) from None


def committed(path: Path) -> nbformat.NotebookNode | None:
    """The notebook as git last committed it, None where it never did; without git, as it lies there."""
    folder = path.resolve().parent

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)

    try:
        if git("rev-parse", "--is-inside-work-tree").returncode:
            return nbformat.read(path, as_version=4)
        shown = git("show", f"HEAD:./{path.name}")
    except FileNotFoundError:  # no git on this machine
        return nbformat.read(path, as_version=4)
    return None if shown.returncode else nbformat.reads(shown.stdout, as_version=4)


def renew(path: Path, fresh: bool) -> str:
    """Run one notebook and write it where that changes it; returns the line that says so."""
    began = time.perf_counter()
    nb = nbformat.read(path, as_version=4)
    before = path.read_text(encoding="utf-8")
    run(nb, path)
    if not fresh and (old := committed(path)) is not None:
        keep_committed(nb, old)
    after = serialised(normalise(nb))
    if found := list(faults(after)):
        raise NotebookFault("\n".join(named(path, *fault) for fault in found))
    if after != before:
        path.write_text(after, encoding="utf-8")
    verb = "written" if after != before else "unchanged"
    return f"{path}: {verb}, {len(code_cells(nb))} code cells, {time.perf_counter() - began:.0f} s"


def check(path: Path) -> None:
    """Raise with every fault where the file is not in normal form."""
    found = list(faults(path.read_text(encoding="utf-8")))
    if found:
        lines = [named(path, *fault) for fault in found]
        raise NotebookFault("\n".join([*lines, f"{path}: run `make notebooks` and commit what it writes"]))


def main() -> int:
    """Renew or check the notebooks named on the command line, or all of them; 1 where one is at fault."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="run nothing, write nothing, name each fault")
    parser.add_argument("--fresh", action="store_true", help="keep no committed output")
    parser.add_argument("paths", nargs="*")
    arguments = parser.parse_args()
    os.environ["LABKIT_QUIET"] = "1"  # progress displays would be recorded
    scratch = tempfile.TemporaryDirectory()  # a learner who has done nothing yet
    os.environ["LABKIT_PROGRESS"] = scratch.name
    status = 0
    for path in notebook_paths(arguments.paths):
        try:
            if arguments.check:
                check(path)
            else:
                print(renew(path, arguments.fresh), flush=True)
        except NotebookFault as fault:
            status = 1
            print(fault, file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
