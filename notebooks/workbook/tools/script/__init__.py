"""Write the learner's cells as a program that torchrun runs: the capstone."""
