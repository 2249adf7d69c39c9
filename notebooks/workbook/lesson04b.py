"""Predictions of lesson 04b: which operations are refused, and what becomes of a nan."""

from labkit.grading.prediction import ask

refused_for_integers = ask("""
The ranks bring the **integers** 1, 2, 3 and 4 to `dist.all_reduce`. Which of these operations does the backend of this
lab refuse?
( ) `PRODUCT`
    > A product of integers is an integer, and fits into the tensor that the call overwrites.
(x) `AVG`
( ) `BAND`
    > *Bitwise and* is meant for integers. With Gloo it is floats that it refuses.
( ) none of them
    > The result has to fit into the tensor that the call overwrites. Which of the three may leave a fraction?
Why: `AVG`: their mean is 2.5, and the call overwrites a tensor of integers. Gloo adds first and refuses to divide
afterwards, so the sum may already have replaced your numbers.
Elsewhere: **With NCCL**, on GPUs, it is `BAND`: torch lets no bitwise operation through to NCCL. `AVG` drops the
fraction there and says nothing. (From the sources of torch and NCCL, not run.)
On NCCL: `BAND`
( ) `PRODUCT`
    > A product of integers is an integer, and fits into the tensor that the call overwrites.
( ) `AVG`
    > Gloo refuses it. NCCL divides, and drops the fraction without a word.
( ) none of them
    > NCCL has no operation on bits.
Why: `BAND`: NCCL has no operation on bits, so torch refuses all three. `AVG` of 1, 2, 3 and 4 leaves 2: the fraction is
dropped, without an error. (From the sources of torch and NCCL.)
Elsewhere: **With Gloo**, on CPUs, it is `AVG`.
""")

max_with_nan = ask("""
Four ranks bring 1, nan, 3 and 4, and call `dist.all_reduce` with `ReduceOp.MAX`. What do they hold afterwards?
( ) nan
    > `torch.max` of one tensor with these numbers is nan, and you would need nan here to see that a rank has diverged.
    A sum does it: with `SUM` every rank gets nan.
(x) 1
( ) 4
    > This would be true if the nan were left out. But each step compares two numbers, and a comparison with a nan is
    false, however large the other number is.
( ) an error
    > No one looks at the numbers. A reduction combines whatever bits it gets.
Why: The number 1: the nan is gone, and so are 3 and 4. A comparison with a nan is always false, so which of the two
numbers is kept depends on their order, and what survives in the end depends on the order in which the ranks are
combined. `MIN` has the same fault.

So do not look for a diverged rank with `MAX`. Reduce `torch.isnan(x).any()` as a number, or take the `SUM`.
Elsewhere: **With NCCL**, on GPUs, it is 4: its `MAX` of floats leaves a nan out. The nan is lost there as well. (From
NCCL's source, not run.)
On NCCL: 4
( ) 1
    > This is what Gloo leaves, where a comparison with a nan is false and the order decides. NCCL takes the number
    that is not a nan.
Why: The number 4. NCCL compares floats by CUDA's `fmaxf`, which takes the other number if one of them is a nan. `MIN`
does the same. (From NCCL's source.) The maximum is that of the healthy ranks, and nothing tells you that rank 1 has
diverged.

So do not look for a diverged rank with `MAX`. Reduce `torch.isnan(x).any()` as a number, or take the `SUM`.
Elsewhere: **With Gloo**, on CPUs, all four hold 1. There a comparison with a nan is false, so which number is kept
depends on the order in which the ranks are combined.
""")
