"""Show how a learner stands: a line per lesson, the exercises of one, and the place on a way through the workbook."""
