#!/bin/sh
# Pid 1 of a host (tests/hosts/hosts.py): NAME PYTHON HOME CODE…, in namespaces of its own.
# It gives the host its own file systems, waits until its files are written, starts its daemons, and collects orphans.
set -eu
name=$1 python=$2 home=$3
shift 3

hostname "$name"
mount -t tmpfs -o mode=755 tmpfs /run
# The code is seen at its own path, under /tmp or the home as well; what is written there stays on this host.
i=0
for place; do
  mkdir -p /run/code/$i/written /run/code/$i/work /run/code/$i/seen
  mount -t overlay -o "lowerdir=$place,upperdir=/run/code/$i/written,workdir=/run/code/$i/work" code /run/code/$i/seen
  i=$((i + 1))
done
for place in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $place; done
mount -t tmpfs -o mode=700 tmpfs "$home"
i=0
for place; do
  mkdir -p "$place"
  mount --move /run/code/$i/seen "$place"
  i=$((i + 1))
done
# /sys shows the network that it was mounted in; slurmd needs the control groups under it.
mkdir /run/cgroup
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs sysfs /sys
mount --move /run/cgroup /sys/fs/cgroup
mount -t tmpfs tmpfs /etc/slurm
mkdir -m 755 /run/host /run/sshd /run/munge /run/slurm
mkdir -m 700 "$home/.ssh"

echo mounted
read -r _ # until the files are written and the link is there
exec </dev/null >/run/host/log 2>&1
mount --bind /run/host/hosts /etc/hosts

/usr/sbin/sshd -D -f /run/host/sshd_config -E /run/host/sshd.log &
/usr/sbin/munged --foreground --key-file=/run/munge/key --pid-file=/run/munge/pid --log-file=/run/munge/log \
  --seed-file=/run/munge/seed --num-threads=2 &
until [ -S /run/munge/munge.socket.2 ]; do sleep 0.02; done
if [ "$name" = head ]; then slurmctld -D -c & else slurmd -D -N "$name" & fi
exec "$python" -I -S -c '
import os, signal
while True:
    try:
        os.wait()
    except ChildProcessError:
        signal.pause()
'
