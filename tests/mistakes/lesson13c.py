"""Planted mistakes of lesson 13c, in the form that `tests.mistakes` tells."""

vocab_embedding = """
wrong | adds row 0 where it has nothing | on ranks 0, 1 element [0, 0] is -5 | * here.unsqueeze(-1) →
wrong | zeroes the numbers and leaves their gradients | the gradient of part is wrong: element [0, 0] is 0.611
    -     rows = part[torch.where(here, place, 0)] * here.unsqueeze(-1)
    +     rows = part[torch.where(here, place, 0)]
    +     rows = rows - rows.detach() * ~here.unsqueeze(-1)
raises | looks up what it does not have | Rank 0: IndexError | part[torch.where(here, place, 0)] → part[place]
wrong | cuts the gradient off | no gradient reaches part | part[torch.where → part.detach()[torch.where
forbidden | gathers the table | It calls comms.all_gather
    def vocab_embedding(part, ids):
        parts = comms.all_gather(part.detach())
        parts[rank] = part
        return torch.cat(parts)[ids]
"""

vocab_head = """
wrong | counts the padding as words | padding: on ranks 0, 1 element 0 in result['loss'] is 6.59
    logits[:, max(0, words - first) :] = -torch.inf →
wrong | takes its own part of the gradient of x for the whole | element [0, 0] in result['gradient of x'] is 0.0135
    dist.all_reduce(d_x) →
wrong | adds up the gradients of different words | on rank 0 element [0, 0] in result['gradient of my rows'] is -0.454
    +             d_part = d_logits.T @ x
                  dist.all_reduce(d_x)
    -             return d_x, d_logits.T @ x
    +             dist.all_reduce(d_part)
    +             return d_x, d_part
not as asked | reduces the two sums in two calls | Rank 0 makes 4 calls that communicate, dist.all_reduce
    dist.all_reduce(sums) → dist.all_reduce(sums[0]); dist.all_reduce(sums[1])
forbidden | gathers the logits | It calls comms.all_gather
    def vocab_head(x, part, target, words):
        class Head(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, part):
                logits = torch.cat(comms.all_gather(x @ part.T), dim=1)[:, :words]
                ctx.save_for_backward(x, part, logits.softmax(dim=1))
                return torch.nn.functional.cross_entropy(logits, target)

            @staticmethod
            def backward(ctx, d_loss):
                x, part, shares = ctx.saved_tensors
                d_logits = torch.zeros(len(x), world_size * len(part), dtype=x.dtype)
                d_logits[:, :words] = shares
                d_logits[torch.arange(len(x)), target] -= 1
                d_logits = d_logits.chunk(world_size, dim=1)[rank] * d_loss / len(x)
                d_x = d_logits @ part
                dist.all_reduce(d_x)
                return d_x, d_logits.T @ x

        return Head.apply(x, part)
"""

rows_to_columns = """
wrong | sends the block row by row, not block by block | on rank 0 element [1, 0] is -4
    torch.cat([block.flatten() for block in x.split(widths, dim=1)]) → x.flatten()
raises | takes the receive sizes for the send sizes | Ranks 0, 1: RuntimeError
    -     dist.all_to_all_single(received, send, [h * mine for h in heights], [len(x) * w for w in widths])
    +     dist.all_to_all_single(received, send, [len(x) * w for w in widths], [h * mine for h in heights])
raises | takes all blocks to be equally long | rows that do not divide evenly
    [h * mine for h in heights], [len(x) * w for w in widths] → None, None
forbidden | gathers the matrix and cuts it | It calls comms.all_gather
    def rows_to_columns(x, rows):
        whole = torch.cat(comms.all_gather(x))
        wide = -(-whole.shape[1] // world_size)
        return whole[:, rank * wide : (rank + 1) * wide]
wrong | reads the columns of what it has | on ranks 0, 1 the shape is (1, 1)
    def rows_to_columns(x, rows):
        dist.barrier()
        wide = -(-x.shape[1] // world_size)
        return x[:, rank * wide : (rank + 1) * wide].clone()
"""

product_on_k = """
wrong | adds the bias on every rank | with a bias: on rank 0 element [0, 0] is 10
    def product_on_k(x, w, bias):
        y = x @ w + bias
        mine = y.new_empty(len(y) // world_size, y.shape[1])
        dist.reduce_scatter_single(mine, y)
        return torch.relu(mine)
wrong | activates what is not added up | on rank 0 element [0, 0] is 2 | y = x @ w → y = torch.relu(x @ w)
wrong | forgets to activate | on rank 0 element [0, 0] is -1 | torch.relu(mine + bias) → mine + bias
forbidden | adds up everything on every rank | It calls dist.all_reduce
    dist.reduce_scatter_single(mine, y) → dist.all_reduce(y); mine = y.chunk(world_size)[rank]
"""

summa = """
raises | takes places in the group for ranks of the world | Rank 1: ValueError
    dist.broadcast(right, group=column, group_src=owner) → dist.broadcast(right, src=owner, group=column)
wrong | broadcasts X alone | on rank 0 element [0, 0] is -18 | dist.broadcast(right, group=column, group_src=owner) →
wrong | broadcasts W alone | on rank 0 element [0, 0] is -20 | dist.broadcast(left, group=row, group_src=owner) →
forbidden | gathers whole strips | It calls dist.all_gather
    def summa(x, w, row, column, panels):
        def gathered(t, group, dim):
            rooms = [torch.empty_like(t) for _ in range(dist.get_world_size(group))]
            dist.all_gather(rooms, t, group=group)
            return torch.cat(rooms, dim)

        return gathered(x, row, 1) @ gathered(w, column, 0)
"""

cheapest_chain = """
wrong | leaves the last result in columns | on ranks 0, 1 element 0 is 0 | + share * widths[-1]) → )
wrong | feeds columns to a matrix that is cut into columns | on ranks 0, 1 element 0 is 24
    cut + share * widths[layer]) → cut)
wrong | cuts by columns and rows in turn, whatever the widths | on ranks 0, 1 element 0 is 360
    def cheapest_chain(widths, tokens, ranks):
        share = (ranks - 1) / ranks * tokens
        layers = len(widths) - 1
        sent = sum(2 * share * widths[i + 1] for i in range(layers) if i % 2)
        return sent + (share * widths[-1] if layers % 2 else 0.0)
not as asked | asks the ranks what a formula says | Rank 0 makes 1 call that communicates, dist.barrier
    share = (ranks - 1) / ranks * tokens → dist.barrier(); share = (ranks - 1) / ranks * tokens
"""
