"""Describe a job that is too big for one GPU and a plan for it, and say what makes a plan impossible.

>>> print(Plan(data=4, tensor=8, pipe=2, micro=64, zero=1, sequence=True))
data 4 x tensor 8 x pipe 2, 64 micro-batches, ZeRO-1, sequence parallel

Neither torch nor a cluster that runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from labkit.floor.errors import LabError
from workbook.tools.costs.machine import H100, Cluster
from workbook.tools.plan import Mesh, Model
from workbook.tools.sharding import FLOAT32, MIXED, STAGES, Recipe

ORDERS = (  # of the dimensions in the numbers of the ranks; neighbours differ along the last one
    "pipe data tensor", "data pipe tensor", "pipe tensor data", "data tensor pipe", "tensor pipe data",
    "tensor data pipe",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A transformer, the batch of a training step and the GPUs for it.

    Args:
        name: "66B".
        model: its layers, width, vocabulary and positions.
        heads: of attention, in each layer.
        tokens: of a sequence.
        rows: sequences in the batch of a training step.
        gpus: how many there are; `cluster.gpus_per_node` of them are in a host.
        cluster: its links.
        room: bytes of memory of a GPU.
        flops: operations a second that a GPU is assumed to do: not what its data sheet promises.
        recipe: bytes of a weight, a gradient and the optimizer's states.
        dropout: whether the layers keep its masks, a byte for each number.
        scores: whether attention keeps its scores. Flash attention, or selective recomputation, does not.
        cut_ends: whether tensor parallelism cuts embeddings and output along the vocabulary, as Megatron-LM does.
    """

    name: str
    model: Model
    heads: int
    tokens: int
    rows: int
    gpus: int
    cluster: Cluster = H100
    room: float = 80e9
    flops: float = 400e12
    recipe: Recipe = MIXED
    dropout: bool = True
    scores: bool = False
    cut_ends: bool = True

    @property
    def hosts(self) -> int:
        """The number of hosts that the GPUs are in."""
        return -(-self.gpus // self.cluster.gpus_per_node)

    def but(self, **changes: Any) -> Job:
        """Return the same job with something changed."""
        return replace(self, **changes)

    def __repr__(self) -> str:
        m, c = self.model, self.cluster
        return (
            f"{self.name}: {m.parameters / 1e9:,.1f} billion parameters ({m.layers} layers, width {m.width:,}, "
            f"{self.heads} heads), {self.rows:,} sequences of {self.tokens:,} tokens per step, "
            f"{self.gpus:,} GPUs of {self.room / 1e9:g} GB in {self.hosts} hosts of {c.gpus_per_node}"
        )


@dataclass(frozen=True)
class Plan:
    """How a job is laid over its GPUs.

    Args:
        data, tensor, pipe: how many ranks lie along each dimension.
        micro: micro-batches into which a copy's share of the batch is cut.
        zero: 0 to 3, what is sharded over the copies.
        sequence: sequence parallelism beside tensor parallelism.
        order: of the dimensions in the numbers of the ranks; neighbours differ along the last one.
    """

    data: int = 1
    tensor: int = 1
    pipe: int = 1
    micro: int = 1
    zero: int = 0
    sequence: bool = False
    order: str = field(default=ORDERS[0])

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise LabError(f"order={self.order!r} is none. Choose one of: {', '.join(map(repr, ORDERS))}.")
        if self.zero not in range(len(STAGES)):
            raise LabError(f"zero={self.zero!r} is not a stage of ZeRO. Choose 0, 1, 2 or 3.")
        whole = (self.data, self.tensor, self.pipe, self.micro)
        if min(whole) < 1 or any(int(k) != k for k in whole):
            raise LabError(f"data, tensor, pipe, micro = {whole} is not a plan. Give whole numbers from 1 on.")

    @property
    def mesh(self) -> Mesh:
        """The ranks along each dimension."""
        return Mesh(self.data, self.tensor, self.pipe)

    def but(self, **changes: Any) -> Plan:
        """Return the same plan with something changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        parts = [repr(self.mesh), f"{self.micro:,} micro-batch{'es' * (self.micro > 1)}"]
        parts += [STAGES[self.zero]] if self.zero else []
        parts += ["sequence parallel"] if self.sequence else []
        parts += [f"order {self.order}"] if self.order != ORDERS[0] else []
        return ", ".join(parts)


def impossible(job: Job, plan: Plan) -> list[str]:
    """Say why a plan cannot be laid out, a sentence each, apart from memory; nothing where it can.

    >>> impossible(JOBS["7B"], Plan(data=16, micro=4))
    []
    >>> impossible(JOBS["7B"], Plan(data=4, tensor=3))[0]
    'data 4 x tensor 3 is 12 GPUs, and there are 16.'
    """
    model, mesh, said = job.model, plan.mesh, []
    if mesh.ranks != job.gpus:
        said.append(f"{mesh!r} is {mesh.ranks:,} GPUs, and there are {job.gpus:,}.")
    if job.heads % plan.tensor:
        said.append(f"{job.heads} heads cannot be shared equally by tensor {plan.tensor}.")
    if job.cut_ends and model.vocabulary % plan.tensor:
        said.append(f"A vocabulary of {model.vocabulary:,} cannot be shared equally by tensor {plan.tensor}.")
    if plan.sequence and job.tokens % plan.tensor:
        said.append(f"Sequences of {job.tokens:,} tokens cannot be shared equally by tensor {plan.tensor}.")
    if model.layers % plan.pipe:
        said.append(f"{model.layers} layers cannot be cut into {plan.pipe} equal stages.")
    if job.rows % plan.data:
        said.append(f"{job.rows:,} sequences cannot be shared equally by data {plan.data}.")
    elif job.rows // plan.data % plan.micro:
        rows = job.rows // plan.data
        said.append(f"Each copy has {rows:,} sequences, which cannot be cut into {plan.micro:,} equal micro-batches.")
    return said


JOBS = {
    job.name: job
    for job in (
        Job("7B", Model(32, 4096, 32_000, 4096), heads=32, tokens=4096, rows=64, gpus=16),
        Job("66B", Model(80, 8192, 128_256, 8192), heads=64, tokens=8192, rows=256, gpus=64),
        Job("1T", Model(128, 25_600, 51_200, 2048), heads=160, tokens=2048, rows=1024, gpus=1024),
    )
}


def small(gpus: int = 4) -> Job:
    """Return the transformer that the workbook's own ranks train, as if they were the GPUs of two hosts.

    float32, no dropout, embeddings and output on every rank of the first and the last stage.
    """
    cluster = H100.but(name="ranks here", gpus_per_node=gpus // 2)
    return Job(
        "small", Model(4, 128), heads=4, tokens=8, rows=192, gpus=gpus, cluster=cluster, recipe=FLOAT32,
        dropout=False, cut_ends=False,
    )  # fmt: skip


def found(job: str | Job) -> Job:
    """Find a job by its name; a `LabError` names those there are."""
    if isinstance(job, Job):
        return job
    if job not in JOBS:
        raise LabError(f"There is no job {job!r}. Choose one of: {', '.join(map(repr, JOBS))}.")
    return JOBS[job]
