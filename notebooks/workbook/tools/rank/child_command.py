"""Runs a command that ends with the process that asks for it, for `workbook.tools.child_command`; standard library.

`python -I -S child_command.py folder command …`, with a pipe as its standard input: the command runs until it ends, or
until the pipe does, because the asking process closed it or was killed; then the folder, made for the command, is
removed, too. The exit code is the command's; 128 + s after a signal s.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import threading

SESSION_ENDS = 3.0  # seconds between the request to end and the end of the whole session


def main(folder: str, command: list[str]) -> int:
    """Run the command in this process's session, which is its own; return the exit code."""
    popen = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: popen.terminate())
    threading.Thread(target=_end_with_the_pipe, args=[folder, popen], daemon=True).start()
    code = popen.wait()
    if select.select([0], [], [], 0)[0]:  # at its end, since nothing is written to it
        shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


def _end_with_the_pipe(folder: str, popen: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    popen.terminate()  # mpiexec ends its ranks
    try:
        popen.wait(SESSION_ENDS)
    except subprocess.TimeoutExpired:
        shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)  # and this process


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
