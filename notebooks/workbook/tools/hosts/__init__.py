"""Show which messages leave their host: the picture is of a schedule, or of a log of NCCL's."""
