"""Work out what a rank of a mesh holds and sends in a training step, with data, tensor and pipeline parallelism.

A transformer of L layers of width w is laid over d x t x p ranks. Each of p *stages* has an equal run of layers (the
first one the embeddings too, the last one the output); each layer is cut into t parts, as Megatron does; and d copies
of all this read a share of the batch each. A layer has 12 w² + 13 w numbers, of which 6 w (norms, and the biases
after a sum) are not cut. For the backward pass it keeps 17 w numbers for each token, of which 4 w are not cut, or are
cut as well with sequence parallelism.

Sources: Shoeybi and others, *Megatron-LM*, 2019 (arXiv 1909.08053); Narayanan and others, *Efficient Large-Scale
Language Model Training on GPU Clusters Using Megatron-LM*, 2021 (arXiv 2104.04473); Korthikanti and others, *Reducing
Activation Recomputation in Large Transformer Models*, 2022 (arXiv 2205.05198), whose 34 bytes at 2 bytes a number are
these 17, without dropout and with an attention that keeps no matrix of scores. Pure arithmetic: neither torch nor a
cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.floor.errors import LabError
from workbook.tools.sharding import FLOAT32, KINDS, Recipe, all_reduced

CUT, WHOLE = 13, 4  # times the width: numbers that a layer keeps for each token, cut by tensor parallelism and not
REDUCED = 4  # all-reduces of tensor parallelism in a layer: two forward, two backward


@dataclass(frozen=True)
class Model:
    """A transformer as a plan sees it: as many layers of one width, a vocabulary, and positions that it knows.

    >>> Model(layers=2, width=32).parameters, Model(layers=4, width=64).parameters  # tiny.Transformer's
    (28068, 205220)
    """

    layers: int
    width: int
    vocabulary: int = 36
    positions: int = 8

    @property
    def layer(self) -> int:
        """The parameters of one layer."""
        return 12 * self.width**2 + 13 * self.width

    @property
    def parameters(self) -> int:
        """All parameters, with embeddings, the last norm and the output."""
        return self.layers * self.layer + self.first + self.last

    @property
    def first(self) -> int:
        """The parameters that the first stage has besides: embeddings of characters and of positions."""
        return (self.vocabulary + self.positions) * self.width

    @property
    def last(self) -> int:
        """The parameters that the last stage has besides: a norm and the output."""
        return 2 * self.width + (self.width + 1) * self.vocabulary


@dataclass(frozen=True)
class Mesh:
    """How many ranks lie along each dimension.

    >>> Mesh(data=2, tensor=2), Mesh(data=4).ranks
    (data 2 x tensor 2, 4)
    """

    data: int = 1
    tensor: int = 1
    pipe: int = 1

    def __post_init__(self) -> None:
        if min(self.data, self.tensor, self.pipe) < 1:
            raise LabError(f"No mesh is {self.data} x {self.tensor} x {self.pipe}. Give whole numbers from 1 on.")

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.data * self.tensor * self.pipe

    @property
    def team(self) -> int:
        """The ranks that hold one copy of the model together."""
        return self.tensor * self.pipe

    def __repr__(self) -> str:
        sizes = {"data": self.data, "tensor": self.tensor, "pipe": self.pipe}
        return " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "one rank"


def parameters(model: Model, mesh: Mesh, stage: int = 0, cut_ends: bool = False) -> float:
    """Count the weights that a rank of this stage holds; the layers' norms and two of their biases are on every rank.

    >>> parameters(Model(4, 32), Mesh(data=4)), parameters(Model(4, 32), Mesh(data=2, tensor=2))
    (53476.0, 28452.0)

    With `cut_ends` tensor parallelism cuts embeddings and output, too.
    """
    if stage not in range(mesh.pipe):
        raise LabError(f"There is no stage {stage!r} of {mesh.pipe}. Choose 0 to {mesh.pipe - 1}.")
    if model.layers % mesh.pipe:
        raise LabError(
            f"{model.layers} layers cannot be cut into {mesh.pipe} equal stages. "
            f"Choose a pipe that divides {model.layers}."
        )
    layer = (model.layer - 6 * model.width) / mesh.tensor + 6 * model.width
    ends = model.first * (stage == 0) + model.last * (stage == mesh.pipe - 1)
    return model.layers / mesh.pipe * layer + ends / (mesh.tensor if cut_ends else 1)


def held(
    model: Model,
    mesh: Mesh,
    tokens: float,
    stage: int = 0,
    recipe: Recipe = FLOAT32,
    zero: int = 0,
    sequence: bool = False,
) -> dict[str, float]:
    """Return the bytes that a rank of this stage holds at most: weights, gradients, optimizer's states, activations.

    >>> {kind: round(size / 1e3) for kind, size in held(Model(4, 32), Mesh(data=4), tokens=192).items()}
    {'weights': 214, 'gradients': 214, 'optimizer': 428, 'activations': 1671}

    `tokens` are those whose activations it keeps at once: its share of the batch, or what of it is under way. With
    `zero=1` the optimizer's states are sharded over the copies. What the embeddings, the output and the loss keep is
    left out, and so is what computing needs for a moment.
    """
    if zero not in (0, 1):
        raise LabError(f"zero={zero!r} is not a stage that this plan knows. Choose 0 (no shards) or 1.")
    mine = parameters(model, mesh, stage)
    states = {kind: getattr(recipe, kind) * mine for kind in KINDS}
    states["optimizer"] /= mesh.data if zero else 1
    whole = WHOLE / mesh.tensor if sequence else WHOLE
    numbers = tokens * model.layers / mesh.pipe * (CUT / mesh.tensor + whole) * model.width
    return {**states, "activations": numbers * recipe.weights}


def sent(model: Model, mesh: Mesh, tokens: float, stage: int = 0, recipe: Recipe = FLOAT32) -> dict[str, float]:
    """Return the bytes that a rank of this stage sends along each dimension in a training step, at the least.

    >>> {along: round(size / 1e3) for along, size in sent(Model(4, 32), Mesh(2, 2), tokens=384).items()}
    {'data': 114, 'tensor': 786, 'pipe': 0}

    `tokens` are those of one copy's share of the batch. Along `data` the gradients are all-reduced; along `tensor` the
    activations of every layer, four times; along `pipe` they go to the next stage, and their gradients come back.
    """
    passed = tokens * model.width * recipe.weights  # what goes into a layer, and what comes out of it
    neighbours = (stage > 0) + (stage < mesh.pipe - 1)
    return {
        "data": all_reduced(recipe.gradients * parameters(model, mesh, stage), mesh.data),
        "tensor": model.layers / mesh.pipe * REDUCED * all_reduced(passed, mesh.tensor),
        "pipe": neighbours * passed,
    }
