"""Run the same ten lines by other systems, or show what they printed once: lesson 15e."""
