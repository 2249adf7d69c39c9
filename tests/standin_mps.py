"""What `nvidia-cuda-mps-control` does, as far as a lab sees it: a daemon that answers at `control`, and its clients.

Copied to a folder on PATH under that name (`installed`). A client keeps a connection to the daemon, as CUDA does from a
process's first use of it on. A fault of one client reaches all of them, and nobody new is taken until they have left.

STANDIN_MPS makes it misbehave: "fails", "hangs" (it never starts a daemon), "mute" (the daemon does not answer).
STANDIN_LOG names a file in which it notes what happens, a line each.
"""

import contextlib
import os
import selectors
import socket
import stat
import sys
import time

NAME = "nvidia-cuda-mps-control"
FOLDER = "CUDA_MPS_PIPE_DIRECTORY"


def installed(folder):
    """Put the program into a folder, under its name; the folder."""
    with open(__file__) as source, open(os.path.join(folder, NAME), "w") as program:
        program.write(f"#!{sys.executable} -IS\n{source.read()}")
    os.chmod(os.path.join(folder, NAME), 0o755)
    return str(folder)


def note(*words):
    """Note what happens."""
    if log := os.environ.get("STANDIN_LOG"):
        with open(log, "a") as f:
            print(*words, file=f)


def connected(folder):
    """A connection to the daemon of a folder; OSError where there is none."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.path.join(folder, "control"))
    except OSError:
        connection.close()
        raise
    return connection


def control():
    """Pass the commands of standard input on; the exit code."""
    for command in sys.stdin.read().splitlines():
        try:
            with connected(os.environ[FOLDER]) as connection, connection.makefile("rb") as answer:
                connection.sendall(f"{command}\n".encode())
                sys.stdout.write(answer.readline().decode())
        except OSError:
            print("Cannot find MPS control daemon process")
            return 1
    return 0


def start():
    """Leave a daemon behind; the exit code."""
    how, folder = os.environ.get("STANDIN_MPS"), os.environ[FOLDER]
    if how == "fails":
        print("Cannot create the log directory: Permission denied")
        return 1
    if how == "hangs":
        time.sleep(1000)
    with contextlib.suppress(OSError):
        connected(folder).close()
        print("An instance of this daemon is already running")
        return 1
    listener = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, "control"))
    listener.bind(os.path.join(folder, "control"))
    listener.listen()
    if os.fork():
        return 0
    os.setsid()
    if os.fork():
        os._exit(0)
    mode = stat.S_IMODE(os.stat(folder).st_mode)
    note("begun", os.getpid(), folder, oct(mode), os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    with open(os.path.join(folder, f"{NAME}.pid"), "w") as f:
        f.write(str(os.getpid()))
    serve(listener, mute=how == "mute")
    note("ended", os.getpid())
    os._exit(0)


def serve(listener, mute):
    """Answer until told to quit and the last client has left."""
    clients, faulty, leaving = set(), False, []
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while not (leaving and not clients):
        for key, _ in selector.select():
            if key.fileobj is listener:
                selector.register(listener.accept()[0], selectors.EVENT_READ)
                continue
            connection = key.fileobj
            command = b""
            with contextlib.suppress(ConnectionResetError):  # it has left, and read nothing of what it was told
                command = b"" if mute else b" ".join(connection.recv(1000).split())
            if not command:
                selector.unregister(connection)
                if not mute:
                    connection.close()
                clients.discard(connection)
                faulty = faulty and bool(clients)
            elif command.startswith(b"client"):
                note(command.decode())
                clients.add(connection)
                if faulty:
                    connection.sendall(b"fault\n")
            elif command == b"fault":
                faulty = True
                for client in clients:
                    client.sendall(b"fault\n")
            elif command == b"quit":
                note("quit")
                leaving.append(connection)
            else:
                connection.sendall(b"\n")


if __name__ == "__main__":
    sys.exit(start() if sys.argv[1:] == ["-d"] else control())
