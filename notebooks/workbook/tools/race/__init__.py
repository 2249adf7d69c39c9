"""Let all-reduces race on a lab's ranks: lesson 06b."""
