"""Browse published tables of nccl-tests, with one's own log beside them: lessons 07 and 07b."""
