"""Say for how long one process waits for another, in seconds: each limit once, with its reason.

`labkit.cluster.reaper` keeps its own, since it imports nothing of labkit; so do the tools of one lesson.
"""

# -- a running cell, and how its ranks are released ---------------------------------------------------------------

STOP_LOOK = 0.05  # between two looks at the Stop button and at the controller: a press is felt at once
RANKS_LOOK = 0.25  # between two looks at ranks that have not finished
AGENT_ANSWERS = 1.0  # in which an agent answers, however busy the machine
AGENT_GLANCE = 0.2  # in which an idle machine's agent answers; a later answer is heard by the next look
RECORDS_COME = 5.0  # in which ranks tell all that they recorded of a cell, which can be long
DEADLOCK_SURE = 1.0  # without a byte or a step: a wait that no rank can end is then a deadlock
LIBRARY_IMPORT = 60.0  # for which a wait does not count while another rank imports a library, on a busy machine slowly
ASLEEP = 3.0  # without a look: this process stood still, as a laptop that slept, and its ranks too
RANKS_SETTLE = 1.0  # in which ranks that go from call to call come to rest before their sockets are shut
RELEASE_STEP = 0.3  # between two ways of releasing a rank
INTERRUPT_LOST = 0.5  # after which an interrupt counts as lost: IPython takes it between statements, or a destructor
CELL_LEFT = 1.4  # in which a rank that was interrupted leaves its cell: none outlives its limit by over two
SILENT_ENDED = 1.8  # without an answer, after which a rank is ended when its cell is cut short
ERROR_TOLD = 10.0  # in which a rank that has left its cell answers: it tells of its error, on a busy machine slowly
PROCESS_ENDS = 5.0  # in which a process ends that was told to, or killed
BROKEN_OFF = 1.0  # within which the lab has broken off every rank: what one raises then is not the learner's
MISMATCH_GATHERED = 0.5  # that a rank which has found a mismatch waits for those that have not come, to name all
CALL_WITHDRAWN = 0.02  # after which a call that torch refuses has been taken back
TASKS_CANCELLED = 1.0  # in which what a failed cell has begun is over once it is cancelled
LOCK_PASSED_ON = 0.002  # in which a thread that waits for Python's lock has it, once it is let go
OUTPUT_DRAINS = 0.5  # in which what a program wrote comes through its pipe, where no program writes on
BOARD_LOOK = 0.002  # between two looks at what other ranks have put on a board
STORE_LOOK = 0.002  # between two looks into the store
SUBWORLD_LOOK = 0.0003  # between two looks for the other ranks of a group within a group
AT_PROMPT = 30 * 86400.0  # that torch waits for a rank which stands at a prompt: no learner thinks for a month
PROMPT_SETTLES = 0.5  # in which the other ranks come to rest when one has stopped: where they wait is told beside
PROMPT_BACK = 3.0  # after which another rank's prompt is shown, where one that goes on has not stopped again
NETLINK_ANSWERS = 0.5  # in which the kernel tells of sockets: it does at once, what imitates it perhaps never

# -- joining and healing ------------------------------------------------------------------------------------------

RANKS_JOIN = 30.0  # in which all ranks have joined
RANKS_MEET = 20.0  # that a rank waits for the others to join, or a fifth of the group's time-out
STORE_ANSWERS = 20.0  # in which a store on another host answers
GROUP_TIMEOUT = 60.0  # torch's own limit for a group, at least: ten times the lab's, which comes first
GROUP_MADE = 10.0  # in which the group for a run of a function is made
CALL_RETURNS = 60.0  # in which a function of labkit's that a learner's line calls returns
DEFINITIONS_BACK = 30.0  # in which the definitions of earlier cells are made again
NAME_FOUND = 10.0  # in which the ranks say whether they have a name
KERNELS_OVER = 0.6  # in which kernels are over before a rank is ended that shares its GPU under MPS
GPU_ANSWERS = 0.3  # in which CUDA says whether it still computes for a process
GPU_CATCHES_UP = 0.2  # that the GPU has to come to what is enqueued, once it is asked; ranks that share it take turns

# -- starting and ending a lab ------------------------------------------------------------------------------------

TURN_LOOK = 0.1  # between two looks at which labs start before this one
TURN_MOVES = 20.0  # in which one of those before has started: one that hangs delays no other for longer
NVIDIA_SMI = 10.0  # in which nvidia-smi tells of memory; it loads the driver first
TORCH_TELLS = 60.0  # in which a new process has imported torch and says what it finds, on a busy machine slowly
ENGINES_UP = 60.0  # in which everything is up, on a laptop that does much else
ENGINES_BACK = 10.0  # in which engines are known to a new controller
SOCKETS_CONNECT = 3.0  # in which an engine that is known has connected all its sockets
HUB_ASKED = 2.0  # after which the hub is asked whom it knows: what it tells of itself can be lost
HUB_ANSWERS = 1.0  # in which the hub, or an engine that came up beside one that did not, answers
CONTROLLER_STILL = 1.5  # for which the controller may stand still: less than a rank has to leave its cell
STACKS_WRITTEN = 1.0  # in which a process writes down where its threads are
ENGINES_HEAR = 1.0  # in which engines have heard that they are to end, or have ended
MPS_STARTS = 10.0  # in which the control program has started a daemon
MPS_ANSWERS = 5.0  # in which a daemon that was started answers

# -- several hosts ------------------------------------------------------------------------------------------------

HOST_CALLS = 60.0  # in which a host's process has called, once it was started
HOST_ANSWERS = 20.0  # in which a host answers
HOST_LOST = 6.0  # after which a connection that is gone counts as lost
HOST_QUIET = 3.0  # of silence, after which a host's connection is looked at
HOSTS_LEAVE = 5.0  # in which the commands end once their hosts were told to
SLURM_ANSWERS = 5.0  # in which squeue says what a job waits for
NOTEBOOK_REACHED = 15.0  # in which a host reaches the notebook
NOTEBOOK_BACK = 5.0  # in which a connection to it that is lost is back
NOTEBOOK_LOOK = 1.0  # between two looks whether anybody listens where the notebook did, and for each

# -- a learner's function, and what shows itself ------------------------------------------------------------------

CHECK = 60.0  # that a whole check may take
RUN = 10.0  # that one run of a function may compute, at least
RUN_BEYOND_LIMIT = 5.0  # that it may take longer than a rank may wait: what is stuck is named before
RERUNS = 3.0  # for the runs with other numbers
PROBES = 15.0  # that all the probes of a cell may take
BYTES_ARRIVE = 2.0  # without a byte, after which what was sent and has not arrived never will
SLIDER_RESTS = 0.05  # in which further moves, which the kernel may have received already, are heard as well
REPETITION = 0.012  # that a measured repetition should last, far above the clock's and the barrier's own jitter
GLOO_WORKS = 1.0  # of looking in vain at Gloo: a collective may need what this rank does after this operation
