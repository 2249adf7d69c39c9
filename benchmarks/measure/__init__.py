"""What every benchmark here shares: the machine, programs in processes of their own, and tables."""
