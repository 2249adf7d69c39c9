"""The same ten lines in TensorFlow: one data-parallel training step with tf.distribute, then each call once.

It does what ten_lines_torch.py does, on the same numbers, and prints the same lines. Lesson 15e starts it, a process a
worker; each finds its place in the environment variable TF_CONFIG. TensorFlow's workers listen on all network
interfaces while they run, whatever addresses TF_CONFIG gives them.

The step uses what tf.distribute offers to everybody. The other calls are operations from `tf.raw_ops`, which
tf.distribute is made of; a `group_key` names a group, an `instance_key` one call in it. "absent" are calls
that TensorFlow does not have, or not on CPUs.
"""

import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # after its settings

place = json.loads(os.environ["TF_CONFIG"])
rank, n = place["task"]["index"], len(place["cluster"]["worker"])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
calls = iter(range(1, 1000))


def keys(size=n, group=1):
    """What names a call: the group and its size, and a number that every member counts alike."""
    return {"group_size": size, "group_key": group, "instance_key": next(calls)}


def gathered(tensor):
    """All workers' tensors, one after the other."""
    return tf.raw_ops.CollectiveGatherV2(input=tensor, ordering_token=[], **keys())


def summed(tensor):
    """The sum of all workers' tensors."""
    return tf.raw_ops.CollectiveReduceV2(input=tensor, ordering_token=[], merge_op="Add", final_op="Id", **keys())


def broadcast(tensor, sends, keys):
    """The tensor of the one worker that sends it."""
    if sends:
        return tf.raw_ops.CollectiveBcastSendV2(input=tensor, **keys)
    return tf.raw_ops.CollectiveBcastRecvV2(T=tensor.dtype, shape=tensor.shape, **keys)


def tell(call, mine):
    """Print what every rank holds, on rank 0."""
    told = gathered(tf.constant([[float(x) for x in mine]])).numpy().tolist()
    if rank == 0:
        print(f"{call:15}", *map(json.dumps, told), flush=True)


def absent(call, why="no such call"):
    """Print that there is none, on rank 0."""
    if rank == 0:
        print(f"{call:15} absent: {why}", flush=True)


if rank == 0:
    print(f"tensorflow {tf.__version__}, {n} ranks")

# the ten lines
with strategy.scope():
    w = tf.Variable([1.0, 2.0] if rank == 0 else [0.0, 0.0])  # a new variable is broadcast from rank 0


@tf.function
def step(x, y):
    """Move the weights; this is run on every worker."""
    gradient = 2 * (tf.reduce_sum(w * x) - y) * x  # of (w · x − y)²
    gradient = tf.distribute.get_replica_context().all_reduce("MEAN", gradient)
    w.assign_sub(gradient / 16)


row = [strategy.experimental_distribute_values_from_function(lambda _, v=v: v) for v in ([rank + 1.0, 2.0], 10.0)]
strategy.run(step, args=row)  # a row for each rank
# end

tell("step", w.numpy())

# each call once
mine, parts = tf.constant([rank + 1.0]), 10.0 * (rank + 1) + tf.range(float(n))

tell("broadcast", broadcast(mine, rank == 0, keys()))
absent("reduce")
tell("all_reduce", summed(mine))
absent("gather")
absent("scatter")
tell("all_gather", gathered(mine))
exchanged = tf.raw_ops.CollectiveAllToAllV2(input=parts, ordering_token=[], **keys())
tell("all_to_all", exchanged)
absent("send, recv")
team = keys(size=n - 1, group=2)  # rank 0, which is not in it, counts the call as well
tell("group", mine if rank == 0 else broadcast(mine, rank == 1, team))
absent("async", "operations of a tf.function wait for their inputs alone")

try:  # last, because its failure ends all collectives of the program
    part = tf.raw_ops.CollectiveReduceScatterV2(input=parts, ordering_token=[], merge_op="Add", final_op="Id", **keys())
    tell("reduce_scatter", part)
except tf.errors.InternalError as error:
    absent("reduce_scatter", str(error).partition("aborted by: ")[2].splitlines()[0])
