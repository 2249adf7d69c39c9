"""Settings of the workbook's own Jupyter servers: a kernel listens at Unix sockets, as the ranks do.

At TCP a kernel is told ports that were free a moment before. Where a class opens a lesson at once, another's kernel may
have taken one of them meanwhile: the page says "Connecting" for a minute, and then the kernel is dead. Names of sockets
are taken by nobody else; where the path is too long for one, ports have to do.
"""

import os
import uuid

from jupyter_core.paths import jupyter_runtime_dir

LONGEST = 103  # bytes that a socket's path may have on every Unix

c = get_config()  # noqa: F821
if os.name == "posix" and len(os.fsencode(f"{jupyter_runtime_dir()}/kernel-{uuid.uuid4()}-ipc-5")) <= LONGEST:
    c.KernelManager.transport = "ipc"
