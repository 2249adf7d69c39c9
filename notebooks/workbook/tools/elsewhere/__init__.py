"""Say each call, and the same ten lines, in the words of other systems: lesson 15e."""
