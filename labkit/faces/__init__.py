"""Hold what a learner's cell or a button calls, and is no method of a lab: tasks, sliders, progress, scripts."""
