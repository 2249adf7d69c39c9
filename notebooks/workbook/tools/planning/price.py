"""Price a plan: bytes that a GPU holds, bytes over each kind of link, and seconds by an α–β model.

Memory of a rank (`held`), in bytes. With Ψ weights on the rank, of d copies:

- states: 2 Ψ weights, 2 Ψ gradients and 12 Ψ of Adam's states in mixed precision; ZeRO's stages divide the last, the
  last two, or all three by d (Rajbhandari and others, 2020, arXiv 1910.02054, section 3.1 and figure 1). Stage 3 also
  holds one gathered layer.
- activations of one layer, for b sequences of s tokens, width h, a heads, t ranks along tensor, 2 bytes a number
  (Korthikanti and others, 2022, arXiv 2205.05198, sections 4.1 and 4.2): s b h (10 + 24/t), with sequence parallelism
  s b h · 34/t; dropout's masks are 2 of the 10. Where attention keeps its scores, 5 a s² b / t more. Megatron-LM
  (`training/theoretical_memory_usage.py`, at d98e8a6) computes both, from table 2 of that paper as it says: 18 + 4 f/h
  for a hidden layer of width f, which is 34 for f = 4h, divided by t; and 10 + 24/t without sequence parallelism.
- 1F1B keeps at most p - k micro-batches on stage k of p (Narayanan and others, 2021, arXiv 2104.04473, section 2.2).
- the last stage also keeps the scores of the vocabulary in float32 and what leads to them, 4 s b (h + v) / t
  (Korthikanti and others, section 4.3).

Bytes that a rank sends in a step (`sent`), with collectives that send the least; those of the ring:

- data: an all-reduce of the gradients, 2 (d-1)/d of them; with ZeRO-1 a reduce-scatter of the gradients and an
  all-gather of the weights. ZeRO-2 has no room for gradients that wait, so each micro-batch has a reduce-scatter of its
  own; with ZeRO-3 two all-gathers of the weights more (arXiv 1910.02054, section 7, where a step is one micro-batch).
- tensor: four all-reduces of s b h numbers in each layer and micro-batch (Shoeybi and others, 2019, arXiv 1909.08053).
  With sequence parallelism four all-gathers and four reduce-scatters, and two more all-gathers in the backward pass,
  because only a shard of the input is kept (Megatron-LM, `core/tensor_parallel/layers.py`). An embedding that is cut
  takes an all-reduce on the first stage, and the output one on the last.
- pipe: s b h numbers to the next stage and back; each of the t ranks sends all of them, or with sequence parallelism
  its own share.

Seconds are a model (`Price.seconds`): 6 operations for each weight and token at the job's speed; a message takes α, and
its bytes at the speed of NVLink, or of the host's NICs, which the GPUs of the host share; nothing overlaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from labkit.floor.errors import LabError
from workbook.tools import sharding
from workbook.tools.plan import parameters
from workbook.tools.planning.job import Job, Plan, impossible
from workbook.tools.planning.places import Array, Edge, Places, places

PARTS = ("computing", "tensor", "pipe", "data", "bubble")
OPERATIONS = 6  # for each weight and token: two forward, four backward


@dataclass(frozen=True)
class Flow:
    """What a dimension sends in a training step, in bytes."""

    sent: float  # by the busiest GPU
    inside: float  # by the GPU that sends most of it to GPUs of its own host
    across: float  # out of the busiest host, by all of its GPUs
    seconds: float


@dataclass(frozen=True)
class Price:
    """What a plan costs; `impossible` plans have none."""

    job: Job
    plan: Plan

    def __post_init__(self) -> None:
        if said := impossible(self.job, self.plan):
            raise LabError(f"{said[0]} Change the plan until `impossible` finds nothing.")

    # -- memory -------------------------------------------------------------------------------------------------------

    @cached_property
    def stages(self) -> list[dict[str, float]]:
        """Bytes that a GPU of each stage holds at most, by kind."""
        return [held(self.job, self.plan, stage) for stage in range(self.plan.pipe)]

    @cached_property
    def fullest(self) -> int:
        """The stage whose GPUs hold the most."""
        totals = [sum(stage.values()) for stage in self.stages]
        return totals.index(max(totals))

    @property
    def memory(self) -> float:
        """Bytes that the fullest GPU holds."""
        return sum(self.stages[self.fullest].values())

    @property
    def fits(self) -> bool:
        """Tell whether every GPU has room for its part."""
        return self.memory <= self.job.room

    # -- bytes and seconds --------------------------------------------------------------------------------------------

    @cached_property
    def where(self) -> Places:
        """The places of the ranks."""
        p = self.plan
        layout = Plan(p.data, p.tensor, p.pipe, order=p.order)  # nothing else moves a rank
        return places(layout, self.job.cluster.gpus_per_node)

    @cached_property
    def sent(self) -> dict[str, Array]:
        """Bytes that each rank sends along each dimension in a training step."""
        each = {name: np.array(values) for name, values in _by_stage(self.job, self.plan).items()}
        return {name: values[self.where.at["pipe"]] for name, values in each.items()}

    def _edges(self, name: str) -> list[tuple[Edge, Array]]:
        """Return the edges along which a dimension sends, and how much each rank does."""
        if name != "pipe":
            return [(self.where.edges[name], self.sent[name])]
        return [(self.where.edges[way], self.sent[way]) for way in ("next", "before")]

    @cached_property
    def pairs(self) -> Array:
        """Bytes from each rank to each other one in a training step: a square matrix, row sends to column."""
        matrix = np.zeros((self.plan.mesh.ranks,) * 2)
        ranks = np.arange(self.plan.mesh.ranks)
        for name in ("data", "tensor", "pipe"):
            for edge, size in self._edges(name):
                np.add.at(matrix, (ranks, edge.to), np.where(edge.to == ranks, 0, size))
        return matrix

    @cached_property
    def _busy(self) -> dict[str, tuple[Array, Array, Array]]:
        """Each dimension's bytes inside the host and across, a rank, and bytes that leave each host."""
        found = {}
        for name in ("data", "tensor", "pipe"):
            edges = self._edges(name)
            across = np.sum([np.where(edge.leaves, size, 0) for edge, size in edges], axis=0)
            inside = np.sum([np.where(edge.leaves, 0, size) for edge, size in edges], axis=0)
            found[name] = inside, across, np.bincount(self.where.host, across)
        return found

    def _seconds(self, name: str) -> Array:
        """Return the seconds that each stage communicates along a dimension in a training step."""
        job, plan, cluster = self.job, self.plan, self.job.cluster
        inside, across, out = self._busy[name]
        far, network = across > 0, cluster.network * 1e9
        moving = np.maximum(inside / (cluster.nvlink * 1e9), np.where(far, out[self.where.host], 0) / network)
        if name == "pipe":  # a message has one NIC, that of its GPU
            moving = np.maximum(moving, across / (network / cluster.gpus_per_node))
        latency = np.where(far, cluster.network_latency + cluster.nic_latency, cluster.nvlink_latency) * 1e-6
        stage = self.where.at["pipe"]
        slowest = np.zeros((2, plan.pipe))
        np.maximum.at(slowest[0], stage, moving)
        np.maximum.at(slowest[1], stage, latency)
        return slowest[0] + _steps(job, plan)[name] * slowest[1]

    @cached_property
    def seconds(self) -> dict[str, float]:
        """The seconds of a training step by what they go into; they add up to `total`.

        The slowest stage sets the pace: all its micro-batches, and one turn of each of the other stages, which is the
        bubble. What is sent along data comes after that.
        """
        job, plan = self.job, self.plan
        computing = np.array([_operations(job, plan, stage) for stage in range(plan.pipe)]) / job.flops
        tensor, pipe = self._seconds("tensor"), self._seconds("pipe")
        turns = (computing + tensor + pipe) / plan.micro
        slow = int(turns.argmax())
        parts = {"computing": computing[slow], "tensor": tensor[slow], "pipe": pipe[slow]}
        parts |= {"data": self._seconds("data").max(), "bubble": turns.sum() - turns[slow]}
        return {name: float(parts[name]) for name in PARTS}

    @property
    def total(self) -> float:
        """Seconds that a training step takes."""
        return sum(self.seconds.values())

    @property
    def bubble(self) -> float:
        """The part of the time in the pipeline that a GPU of the slowest stage waits: (p - 1) / (m + p - 1)."""
        piped = self.total - self.seconds["data"]
        return self.seconds["bubble"] / piped if piped else 0.0

    @cached_property
    def flows(self) -> dict[str, Flow]:
        """The flow along each dimension, inside hosts and across."""
        flows = {}
        for name, (inside, across, out) in self._busy.items():
            spent = self.seconds[name]
            flows[name] = Flow(float((inside + across).max()), float(inside.max()), float(out.max()), spent)
        return flows

    @property
    def across(self) -> float:
        """Bytes that leave the busiest host in a training step."""
        return float(np.sum([out for *_, out in self._busy.values()], axis=0).max())


def held(job: Job, plan: Plan, stage: int) -> dict[str, float]:
    """Return the bytes that a rank of this stage holds at most, by kind."""
    mine, model, d = _weights(job, plan, stage), job.model, plan.data
    found = sharding.held(mine, d, plan.zero, job.recipe)
    if plan.zero == 3 and d > 1:
        found["weights"] += job.recipe.weights * model.layer / plan.tensor  # one layer, gathered
    alive = min(plan.pipe - stage, plan.micro)
    found["activations"] = alive * model.layers / plan.pipe * layer_keeps(job, plan)
    if stage == plan.pipe - 1:
        found["activations"] += _scores(job, plan)
    return found


def _weights(job: Job, plan: Plan, stage: int) -> float:
    return parameters(job.model, plan.mesh, stage, job.cut_ends)


def layer_keeps(job: Job, plan: Plan) -> float:
    """Return the bytes that a rank keeps of one layer for the backward pass of one micro-batch."""
    tokens = micro_tokens(job, plan)
    size, masks = job.recipe.weights, 2 * job.dropout
    whole = (4 * size + masks) / (plan.tensor if plan.sequence else 1)
    scores = job.scores * (2 * size + 1) * job.heads * job.tokens / job.model.width / plan.tensor
    return tokens * job.model.width * (whole + 12 * size / plan.tensor + scores)


def micro_tokens(job: Job, plan: Plan) -> float:
    """Return the tokens of one micro-batch."""
    return job.rows / plan.data / plan.micro * job.tokens


def _scores(job: Job, plan: Plan) -> float:
    if not job.cut_ends:  # the small model scores one position of each sequence
        return 0.0
    return 4 * micro_tokens(job, plan) * (job.model.width + job.model.vocabulary) / plan.tensor


def _operations(job: Job, plan: Plan, stage: int) -> float:
    """Count the operations of a rank of this stage in a training step; looking up an embedding is none."""
    model = job.model
    numbers = model.layers / plan.pipe * model.layer / plan.tensor
    numbers += model.last / plan.tensor * (stage == plan.pipe - 1)
    return OPERATIONS * numbers * job.rows / plan.data * job.tokens


def _halves(job: Job, plan: Plan, stage: int) -> float:
    """Count all-gathers and reduce-scatters along tensor of one micro-batch; an all-reduce is two of them."""
    if plan.tensor == 1:
        return 0.0
    each = job.model.layers / plan.pipe * (10 if plan.sequence else 8)
    ends = 2 * (stage == 0) + (3 if plan.sequence else 2) * (stage == plan.pipe - 1)
    return each + ends * job.cut_ends


def _rounds(plan: Plan) -> tuple[int, int]:
    """Count reduce-scatters of the gradients and all-gathers of the weights in a training step, along data."""
    return {0: (2, 0), 1: (1, 1), 2: (plan.micro, 1), 3: (plan.micro, 2 * plan.micro)}[plan.zero]


def _by_stage(job: Job, plan: Plan) -> dict[str, list[float]]:
    """Return the bytes that a rank of each stage sends in a step: along data, tensor, to the next stage and back."""
    passed = micro_tokens(job, plan) * job.model.width * job.recipe.weights
    scatters, gathers = _rounds(plan)
    once = passed * plan.micro / (plan.tensor if plan.sequence else 1)
    stages = range(plan.pipe)
    moved = job.recipe.gradients * scatters + job.recipe.weights * gathers
    return {
        "data": [moved * _weights(job, plan, k) * (plan.data - 1) / plan.data for k in stages],
        "tensor": [plan.micro * _halves(job, plan, k) * passed * (plan.tensor - 1) / plan.tensor for k in stages],
        "next": [once * (k < plan.pipe - 1) for k in stages],
        "before": [once * (k > 0) for k in stages],
    }


def _steps(job: Job, plan: Plan) -> dict[str, Array]:
    """Count messages that follow one another in a training step, for each stage; along data a call for each layer."""
    halves = np.array([_halves(job, plan, k) for k in range(plan.pipe)])
    middle = np.array([(k > 0) + (k < plan.pipe - 1) for k in range(plan.pipe)])
    calls = sum(_rounds(plan)) * job.model.layers / plan.pipe
    return {
        "data": np.full(plan.pipe, calls * (plan.data - 1)),
        "tensor": plan.micro * halves * (plan.tensor - 1),
        "pipe": plan.micro * middle,
    }


@dataclass(frozen=True)
class Alone:
    """Bytes that the busiest GPU sends in a training step, and the seconds that these take on either kind of link."""

    way: str
    sent: float
    nvlink: float
    network: float


def alone(job: Job, gpus: int = 8) -> list[Alone]:
    """Price each parallelism by itself over so many GPUs, with their share of the batch; memory is not looked at.

    Expert parallelism is for a model whose layers have an expert on each GPU, and send each token to two of them:
    an all-to-all there and one back in the forward pass of each layer, and two in the backward pass, each with
    2 (gpus - 1) / gpus of the numbers of a GPU's tokens (lesson 13d).
    """
    part = job.but(gpus=gpus, rows=max(gpus, job.rows * gpus // job.gpus))
    meshes = {"tensor": Plan(tensor=gpus, micro=part.rows), "data": Plan(data=gpus), "pipe": Plan(pipe=gpus, micro=8)}
    sent = {way: Price(part, plan).flows[way].sent for way, plan in meshes.items()}
    tokens = part.rows / gpus * job.tokens
    numbers = 2 * tokens * job.model.width * (gpus - 1) / gpus
    sent["expert"] = 4 * job.model.layers * numbers * job.recipe.weights
    cluster = job.cluster
    own = cluster.network / cluster.gpus_per_node
    order = ("tensor", "expert", "data", "pipe")
    return [Alone(way, sent[way], sent[way] / cluster.nvlink / 1e9, sent[way] / own / 1e9) for way in order]
