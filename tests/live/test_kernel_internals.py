"""ipykernel, ipyparallel and ipywidgets have the private names that labkit uses, and they do what they are used for."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import ipyparallel
import ipywidgets
import pytest
from ipykernel.comm import Comm
from ipyparallel.controller.hub import Hub
from packaging.version import Version

from labkit.floor import kernel_internals as internals
from tests.internals import ROOT, names, relies_on, tested, users
from tests.live.processes import eventually

IPYKERNEL = Version(version("ipykernel"))
ON_A_RANK = "import sys\nfrom labkit.floor import kernel_internals as internals\n"
SOON = 20  # seconds in which an engine or the hub answers, however busy the machine


def on_rank_0(lab, expression):
    return lab.run(f"{ON_A_RANK}if rank == 0: print({expression})")[0]


@pytest.fixture(scope="module")
def client(lab):
    return lab._engines.processes.client


def test_every_name_is_used_and_has_its_canary():
    by = users(internals)
    assert names(internals) == tested[internals.__name__]
    assert not [name for name in by if not by[name]]


# -- ipykernel ----------------------------------------------------------------------------------------------------


@relies_on(internals, "is_outstream")
def test_a_ranks_streams_are_outstreams_and_others_are_none(lab):
    assert on_rank_0(lab, "[*map(internals.is_outstream, (sys.stdout, sys.stderr))]") == "[True, True]\n"
    assert not internals.is_outstream(io.StringIO())


@relies_on(internals, "has_unsent")
def test_a_stream_has_text_until_it_is_flushed(lab):
    code = "def fills():\n    sys.stderr.flush()\n    empty = not internals.has_unsent(sys.stderr)\n"
    code += "    sys.stderr.write('.')\n    return empty and internals.has_unsent(sys.stderr)\n"
    # Again and again: it is flushed by itself now and then, perhaps just between two lines.
    assert lab.run(f"{ON_A_RANK}{code}print(any(fills() for _ in range(100)))") == ["True\n"] * lab.n


PIPED = """
import json, os, queue, stat, sys, threading, zmq
from ipykernel.iostream import IOPubThread, OutStream
from jupyter_client.session import Session
from labkit.floor import kernel_internals as internals
class Stream(OutStream):
    def write(self, text):
        read.put([text, threading.current_thread() is self.watch_fd_thread])
read = queue.Queue()
sender = IOPubThread(zmq.Context().socket(zmq.PUB))
sender.start()
stream = Stream(Session(), sender, "stdout")
found = [stat.S_ISFIFO(os.fstat(internals.pipe(stream)).st_mode)]
for text in b"piped", b"\\n":  # the first has been copied when the second is read
    os.write(internals.way_in(stream), text)
    found += read.get(timeout=20)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # as a cell may do
os.write(internals.log_descriptor(stream), json.dumps([*found, internals.way_in(stream)]).encode())
os._exit(0)
"""


@relies_on(internals, "pipe", "way_in", "log_descriptor")
def test_what_programs_write_comes_through_a_pipe_and_is_copied_to_where_it_went_before():
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}  # no pipe there
    ran = subprocess.run([sys.executable, "-c", PIPED], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert ran.stdout.startswith("piped"), ran.stderr
    assert json.loads(ran.stdout.removeprefix("piped")) == [True, "piped", True, "\n", True, None]
    assert internals.pipe(io.StringIO()) is internals.way_in(io.StringIO()) is None


@relies_on(internals, "cell_awaits")
def test_a_kernel_says_whether_a_cell_may_await_something(lab):
    with_lock = Version("7") <= IPYKERNEL
    assert on_rank_0(lab, "internals.cell_awaits(get_ipython().kernel)") == f"{with_lock}\n"


@relies_on(internals, "takes_input")
def test_a_kernel_says_whether_a_cell_may_ask_for_what_is_typed(notebook):
    code = "from labkit.floor import kernel_internals as internals\ninternals.takes_input(get_ipython().kernel)"
    assert notebook.value(code) == "True"
    message = notebook.client.execute(code, allow_stdin=False)
    assert notebook.wait(message).result == "False"
    assert not internals.takes_input(None)


@relies_on(internals, "answer_where_asked")
def test_a_widgets_message_goes_to_the_thread_that_it_was_sent_to():
    comm = Comm.__new__(Comm)
    assert hasattr(comm, "_reply_subshell_for") == (Version("7.4") <= IPYKERNEL)
    internals.answer_where_asked(comm)
    if Version("7.4") <= IPYKERNEL:
        assert comm._reply_subshell_for({}, "here") == "here"


# -- ipywidgets ---------------------------------------------------------------------------------------------------


@relies_on(internals, "hear_clicks")
def test_a_click_is_heard_and_not_acted_on():
    button, heard, acted = ipywidgets.Button(), [], []
    button.on_click(acted.append)
    internals.hear_clicks(button, lambda *said: heard.append(said[1]))
    button._handle_custom_msg({"event": "click"}, [])
    assert (heard, acted) == ([{"event": "click"}], [])
    button.click()
    assert acted == [button]


# -- ipyparallel --------------------------------------------------------------------------------------------------


@relies_on(internals, "engines", "ask_hub", "learn_engines")
def test_a_client_knows_engines_as_the_hub_does_and_learns_of_others(client):
    known = internals.engines(client)
    assert sorted(known) == client.ids
    asked = internals.ask_hub(client, "connection_request", {})
    assert asked.wait(SOON)
    assert {int(e): name for e, name in asked.result()["content"]["engines"].items()} == dict(known)
    internals.learn_engines(client, {"999": "another"})
    try:
        assert eventually(lambda: 999 in client.ids)
        assert internals.engines(client)[999] == "another"
    finally:
        client._ids.remove(999)
        client._engines.pop(999)


@relies_on(internals, "ask_agent")
def test_an_engine_answers_on_its_control_channel(client):
    reply = internals.ask_agent(client, client.ids[0], "kernel_info_request", {})
    assert reply.wait(SOON)
    assert reply.result()["header"]["msg_type"] == "kernel_info_reply"


@relies_on(internals, "execute", "replies", "content")
def test_a_cell_is_sent_with_an_expression_whose_value_the_reply_has(client):
    asks = {"code": "six = 6", "silent": False, "user_expressions": {"seven": "six + 1"}, "stop_on_error": False}
    engines = client.ids[:2]
    sent = [internals.execute(client, engine, asks) for engine in engines]
    result = ipyparallel.AsyncResult(client, sent, fname="%px", targets=engines, owner=True)
    assert list(internals.replies(result)) == list(zip(engines, sent, strict=True))
    assert sent[0].wait(SOON)
    assert internals.content(sent[0].result())["user_expressions"]["seven"]["data"]["text/plain"] == "7"
    asks["user_expressions"] = {"told": "get_ipython().kernel.get_parent('shell')['metadata']['labkit']"}
    told = internals.execute(client, engines[0], asks, {"labkit": "debug"})
    assert told.wait(SOON)
    assert internals.content(told.result())["user_expressions"]["told"]["data"]["text/plain"] == "'debug'"


@relies_on(internals, "apply", "content")
def test_a_call_is_sent_and_its_reply_is_what_it_returns(client, lab):
    reply = internals.apply(client, client.ids[0], os.getpid, [])
    assert reply.wait(SOON)
    assert reply.result() in [member.pid for member in lab._engines.members]
    assert internals.content(reply.result()) == {}


@relies_on(internals, "save_engines_whole")
def test_a_hub_that_ends_while_it_saves_its_engines_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    hub = Hub.__new__(Hub)
    hub.engine_state_file = str(tmp_path / "engines.json")
    internals.save_engines_whole(hub)
    hub._save_engine_state()
    assert json.loads((tmp_path / "engines.json").read_text()) == {"engines": {}, "next_id": hub._idcounter}

    def killed(state, file):
        file.write("{")
        file.flush()
        raise KeyboardInterrupt

    hub._idcounter += 1
    monkeypatch.setattr(json, "dump", killed)
    with pytest.raises(KeyboardInterrupt):
        hub._save_engine_state()
    monkeypatch.undo()
    assert json.loads((tmp_path / "engines.json").read_text())["next_id"] == hub._idcounter - 1


@relies_on(internals, "connection_info", "end_loop", "LOOP_ENDS")
def test_where_a_loop_runs_a_cluster_is_asked_on_a_thread_which_can_be_ended(lab):
    cluster = lab._engines.processes.cluster

    async def ask():
        return internals.connection_info(cluster)

    with ThreadPoolExecutor(1) as beside:  # this thread may have a loop already, a browser's
        assert {"client", "engine"} <= beside.submit(lambda: asyncio.run(ask())).result().keys()
    thread = cluster._async_thread
    internals.end_loop(cluster)  # which waits for a moment: on busy cores the thread needs longer
    thread.join(SOON)
    assert not thread.is_alive()
    assert {"client", "engine"} <= internals.connection_info(cluster).keys()
