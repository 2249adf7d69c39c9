"""What a machine lacks for three hosts of its own: the tests there are skipped by that name."""

from __future__ import annotations

import os
import shutil
import subprocess

MPIEXEC = "/usr/bin/mpiexec.openmpi"  # the environment's own `mpiexec` is another MPI's
# program → the Debian package that brings it
PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "bridge": "iproute2",
    "ss": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "munged": "munge",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "srun": "slurm-wlm",
    MPIEXEC: "openmpi-bin",
}
SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing() -> str:
    """What is missing, for a skip's reason; nothing where three hosts can be made."""
    if os.geteuid() != 0:
        return "hosts: not root"
    absent = [program for program in PROGRAMS if not shutil.which(program, path=SEARCHED)]
    if absent:
        packages = sorted({PROGRAMS[program] for program in absent})
        return f"hosts: no {', '.join(map(os.path.basename, absent))} (apt-get install {' '.join(packages)})"
    tried = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "hostname", "any"],
        capture_output=True,
        text=True,
    )
    if tried.returncode:
        return f"hosts: no namespaces here ({tried.stderr.strip()})"
    return ""
