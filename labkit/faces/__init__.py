"""Hold what a learner's cell or a button calls, and is not a method of a lab: tasks, sliders, progress, scripts."""
