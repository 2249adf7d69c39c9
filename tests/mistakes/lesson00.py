"""Planted mistakes of lesson 00, in the form that `tests.mistakes` tells."""

average_gradients = """
wrong | forgets the division | on ranks 0, 1 element 0 is 10 | p.grad /= world_size →
wrong | sums the weights instead of their gradients | changes the weights
    dist.all_reduce(p.grad) → dist.all_reduce(p.data)
wrong | takes what all_reduce returns | `p.grad` is None afterwards. `all_reduce` returns None
    -         dist.all_reduce(p.grad)
    -         p.grad /= world_size
    +         p.grad = dist.all_reduce(p.grad)
wrong | averages one parameter only | two parameters: on rank 0 element 0 in result[1] is 100
    model.parameters() → list(model.parameters())[:1]
deadlock | lets rank 0 alone make the call | Rank 1 finished the function without it
    dist.all_reduce(p.grad) → if rank == 0: dist.all_reduce(p.grad)
"""

hello_sum = """
wrong | hands back its own numbers | Rank 0 lacks rank 1 | dist.all_reduce(total) →
wrong | returns what all_reduce returns, which is None | on ranks 0, 1 None comes back
    -     dist.all_reduce(total)
    -     return total
    +     return dist.all_reduce(total)
wrong | sums into x itself | on ranks 0, 1 the argument is changed | x.clone() → x
wrong | counts rank 0 twice | Rank 0 counts rank 0 twice | return total → return total + x if rank == 0 else total
deadlock | lets rank 0 alone make the call | Rank 1 finished the function without it
    dist.all_reduce(total) → if rank == 0: dist.all_reduce(total)
"""
