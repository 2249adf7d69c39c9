"""Turn what a rank brings to a collective into tensors: a tensor as it is, any other object pickled into bytes."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from labkit.floor.errors import LabError

HEADER = 1024  # bytes per rank in an exchange's first all-gather; few need a second


@dataclass(frozen=True)
class Parcel:
    """What one rank brings: its tensors, what they were, and what is wrong with them ("" for nothing)."""

    kind: str  # "tensor", "object", or "nothing"
    tensors: tuple[torch.Tensor, ...] = ()
    what: str = "None"  # in the learner's words
    complaint: str = ""


NOTHING = Parcel("nothing")


def pack(x: Any, group: Any = None) -> Parcel:
    """Pack one value: a tensor as it is, a Python object as a tensor of its bytes."""
    if not isinstance(x, torch.Tensor):
        return _pickled([x], type(x).__name__, group)
    return Parcel("tensor", (x,), "tensor", _complaint(x))


def pack_chunks(xs: Any, n: int, group: Any = None) -> Parcel:
    """Pack one value for each of n ranks: tensors of one dtype as they are, any other mixture as bytes."""
    what = type(xs).__name__
    if not isinstance(xs, (list, tuple)):
        remedy = f"Pass one chunk per rank, e.g. x.tensor_split({n})."
        return Parcel("nothing", what=what, complaint=f"a {what} is not a list of chunks. {remedy}")
    if len(xs) != n:
        complaint = f"{len(xs)} chunks for {n} ranks. Bring one chunk for each rank."
        return Parcel("nothing", what=what, complaint=complaint)
    parcels = [pack(x, group) for x in xs]
    if any(p.kind == "object" for p in parcels) or len({(x.dtype, x.device.type) for x in xs}) > 1:
        return _pickled(xs, f"{what} of objects", group)
    complaint = next((p.complaint for p in parcels if p.complaint), "")
    return Parcel("tensor", tuple(xs), f"{what} of tensors", complaint)


def unpack(tensor: torch.Tensor, kind: str) -> Any:
    """Return the value that `pack` took: the tensor, or the object that its bytes say."""
    return tensor if kind == "tensor" else loads(tensor.cpu().numpy().tobytes())


def exchange(x: Any, group: Any = None) -> list[Any]:
    """Return every rank's Python object, in the group's order."""
    data = dumps(x)
    data, room = len(data).to_bytes(8, "big") + data, HEADER
    # One all-gather of 1 KiB per rank, and a second one where an object needs more than that.
    while True:
        mine = to_tensor(data[:room].ljust(room, b"\0"), group)
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everyone, mine, group=group)
        found = [tensor.cpu().numpy().tobytes() for tensor in everyone]
        lengths = [8 + int.from_bytes(f[:8], "big") for f in found]
        if max(lengths) <= room:
            return [loads(f[8:length]) for f, length in zip(found, lengths, strict=True)]
        room = max(lengths)


def to_tensor(data: bytes, group: Any = None) -> torch.Tensor:
    """Turn bytes into a uint8 tensor on the device that the group sends from: NCCL takes no CPU tensor."""
    device = "cpu" if "cpu:" in dist.get_backend_config(group) else "cuda"
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def dumps(x: Any) -> bytes:
    """Pickle an object; tensors inside it travel as CPU tensors, since their GPU is another one elsewhere."""
    buffer = io.BytesIO()
    _ToCpu(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(x)
    return buffer.getvalue()


def loads(data: bytes) -> Any:
    """Unpickle what `dumps` made. Its class must be known here too."""
    try:
        return pickle.loads(data)
    except (AttributeError, ImportError) as error:
        raise LabError(f"{error}. Define it on every rank before it is sent.") from error


def _complaint(x: torch.Tensor) -> str:
    """Say what keeps a tensor from being sent as it lies in memory."""
    if x.layout != torch.strided:
        return "the tensor is sparse. Pass x.to_dense()."
    if x.is_quantized:
        return "the tensor is quantized. Pass x.dequantize()."
    return "the tensor is the conjugate of another one. Pass x.resolve_conj()." if x.is_conj() else ""


def _pickled(xs: Any, what: str, group: Any) -> Parcel:
    try:
        return Parcel("object", tuple(to_tensor(dumps(x), group) for x in xs), what)
    except Exception as error:  # pickle raises what the object's own methods raise
        complaint = f"this {what} cannot be pickled ({str(error)[:200]}). Send what it is made of."
        return Parcel("object", what=what, complaint=complaint)


class _ToCpu(pickle.Pickler):
    def reducer_override(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.device.type != "cpu":
            return x.cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented
