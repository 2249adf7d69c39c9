"""What runs on a rank: the only room that imports torch. The cluster names its modules as strings."""
