"""Draw what ranks put into windows of one another: lesson 02b."""
