"""Say each call in the words of other systems: lesson 15e."""
