"""Price each parallelism by itself over some GPUs: what it sends, and what a fast link is worth to it."""

from __future__ import annotations

from dataclasses import dataclass

from workbook.tools.planning.job import Job, Plan
from workbook.tools.planning.price import Price


@dataclass(frozen=True)
class Alone:
    """Bytes that the busiest GPU sends in a training step, and the seconds that these take on either kind of link."""

    way: str
    sent: float
    nvlink: float
    network: float


def alone(job: Job, gpus: int = 8, chosen: int = 2) -> list[Alone]:
    """Price each parallelism by itself over so many GPUs, with their share of the batch, whatever memory it takes.

    Expert parallelism is for a model whose layers have an expert on each GPU, and send each token to `chosen` of them:
    an all-to-all there and one back in the forward pass of each layer, and two in the backward pass, each with
    chosen · (gpus - 1) / gpus of the numbers of a GPU's tokens (lesson 13c).
    """
    part = job.but(gpus=gpus, rows=max(gpus, job.rows * gpus // job.gpus))
    meshes = {"tensor": Plan(tensor=gpus, micro=part.rows), "data": Plan(data=gpus), "pipe": Plan(pipe=gpus, micro=8)}
    sent = {way: Price(part, plan).flows[way].sent for way, plan in meshes.items()}
    tokens = part.rows / gpus * job.tokens
    numbers = chosen * tokens * job.model.width * (gpus - 1) / gpus
    sent["expert"] = 4 * job.model.layers * numbers * job.recipe.weights
    cluster = job.cluster
    own = cluster.network / cluster.gpus_per_node
    order = ("tensor", "expert", "data", "pipe")
    return [Alone(way, sent[way], sent[way] / cluster.nvlink / 1e9, sent[way] / own / 1e9) for way in order]
