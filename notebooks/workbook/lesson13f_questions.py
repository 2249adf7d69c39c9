"""Predictions of lesson 13f: what is in a checkpoint's files, and what other ranks need of them."""

from labkit.grading.prediction import ask

a_file_with_an_object = ask("""
Somebody gives you a file with a tensor and a small object. You call `found = torch.load(path, weights_only=False)` and
never touch the object. When does code run that the **file** has chosen?
( ) never: a file holds data
    > That would be true of a file of numbers. A pickle is a program that builds objects.
( ) when I look at `found["note"]`
    > That would be true if objects were built when they are first used. `torch.load` builds all of them.
( ) never, unless I have imported the object's class
    > That would be true if the class were needed. The file names a function, and the loader imports it.
(x) while `torch.load` runs
Why: While it loads. A pickle says how to make each object again: *import this function, call it with these arguments*.
Here the call made an empty file; it could have been any other. With `weights_only=True`, which is the default since
torch 2.6, the loader makes tensors and plain containers only, and refuses the rest.
""")

columns_from_storage = ask("""
A matrix lies in a file, row after row. A row takes 3,840 bytes. The file is mapped into memory: what is touched is
read, in pages of 4,096 bytes. A rank copies a quarter of the **columns**, 240 of 960. How many per cent of the matrix
must the storage deliver?
= 100.0 % +- 5 %
( ) 25
    > That is what is copied, and what a quarter of the rows would need. Storage delivers whole pages.
( ) 50
    > A page is longer than a row: it always holds some bytes of these columns.
Why: 100 %. A quarter of each row is 960 bytes, and then 2,880 bytes follow that this rank does not need. That is less
than a page, so every page holds some byte that it does need. A quarter of the **rows** is one run of bytes, and there
25 % are enough.
""")

file_of_a_view = ask("""
`whole` has 240 rows of 960 numbers in float32, which is 900 KiB. A rank cuts its part, `mine = whole[:60]`, and saves
it: `torch.save(mine, path)`. About how many KiB does the file have?
= 900.0 KiB +- 10 %
( ) 225
    > That would be true of a copy: `whole[:60].clone()`. A view has no memory of its own.
( ) 450
    > Nothing is saved in 16 bits: float32 it was, and float32 it stays.
Why: About 900. `mine` is a view: it looks into the memory of all of `whole`, and `torch.save` keeps that memory, so
that views which share it still share it after loading. `mine.clone()` has memory of its own, 225 KiB. In the rank's
memory it is the same: as long as the view lives, all of `whole` does.
""")

what_to_empty_leaves = ask("""
A module makes a mask of 0 and 1 in its `__init__` and registers it as a buffer with `persistent=False`, so that no file
has to hold it. It is built on `meta`, `to_empty` gives it memory, and `load_state_dict` fills in everything that the
file has. What does the mask hold now?
( ) 0 and 1, as `__init__` made them
    > That would be true on a device with memory. On `meta`, `__init__` computed shapes and no numbers.
( ) zeros, because `to_empty` begins with zeros
    > That would be true if it wrote anything. It allocates, like `torch.empty`; fresh memory often happens to be
    zero, and used memory is not.
(x) whatever was in that memory before
( ) nothing: `load_state_dict` raises an error, because a buffer is missing
    > That would be true of a persistent buffer. `load_state_dict` does not look for the others.
Why: Whatever was there. The numbers of `__init__` were never computed, the file does not have them, and no error says
so. In many models, rotary embeddings and causal masks are such buffers. If you build on `meta`, compute them again
after `to_empty`, as everything else that is in no file.
""")

old_shards_of_a_new_rank = ask("""
A matrix of 12 rows was saved by four ranks, three rows in each file. Three ranks load it, four rows each. Which of the
files 0, 1, 2, 3 does **rank 1** have to open?
( ) file 1
    > That would be true if it needed rows 3, 4 and 5, the old rank 1's.
( ) files 0, 1 and 2
    > File 0 has rows 0 to 2. All of them belong to the new rank 0.
(x) files 1 and 2
( ) all four, and then it cuts
    > That is right and costly: it reads 12 rows for the sake of 4.
Why: Files 1 and 2. It needs rows 4 to 7; file 1 has rows 3 to 5, and file 2 has rows 6 to 8.
""")

what_dcp_reads = ask("""
A matrix of 12 long rows was saved by four ranks with DCP, three rows each. Three ranks load it, four rows each. DCP
reads from a file what was written there as one piece, and then cuts. How many per cent of what **it needs** does a rank
read?
= 150.0 % +- 5 %
( ) 100
    > That would be true if it read rows out of a piece. It reads whole pieces.
( ) 300
    > That is everything: 12 rows for the sake of 4. DCP leaves out pieces that it needs nothing of.
( ) 75
    > A rank needs four rows. One old piece has only three of them.
( ) 200
    > Each new rank needs two old pieces, of three rows each, and four rows are what it keeps.
Why: 150 %. Each new rank needs four rows, which lie in two old pieces of three rows. It reads both pieces whole, six
rows, and throws two away. Your `read_part` would read four.
""")

weights_of_an_async_save = ask("""
`saving = dcp.async_save(state, …)` returns while a thread still writes. At once the program adds 1 to every weight, as
the next training step might, and then it waits: `saving.result()`. What does the file hold?
(x) the old weights
( ) the new weights
    > That would be true if the thread read the weights when it writes them.
( ) a mixture: some tensors are old, others new
    > That would be true if the thread read the weights while they change. This is what has to be prevented.
( ) an error: the state has changed while it was saved
    > Nobody looks for changes; and nobody has to.
Why: The old weights. Before it returns, `async_save` copies everything that it will write. So the price of going on at
once is the memory of a second copy (of this rank's part), and the time to make it.
""")
