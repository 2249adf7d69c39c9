"""Lessons from 09 on: every solution is right on live ranks, and every planted mistake is named for what it is."""

from __future__ import annotations

from labkit import exercises
from labkit.grading.exercise import Exercise, Mutant
from tests.live import exercising

TRAINING = [exercise for exercise in exercises.every().values() if exercise.lesson >= "09"]
lab = exercising.lab


@exercising.each(TRAINING)
def test_the_solution_is_right(lab, exercise: Exercise):
    exercising.solution_is_right(lab, exercise)


@exercising.each(TRAINING)
def test_the_stub_is_not_attempted_yet_and_a_specimen_is_broken(lab, exercise: Exercise):
    exercising.stub_is_no_solution(lab, exercise)


@exercising.each_mistake(TRAINING)
def test_the_mistake_is_named_for_what_it_is(lab, exercise: Exercise, mutant: Mutant):
    exercising.mistake_is_named(lab, exercise, mutant)


def test_after_all_of_them_the_ranks_are_well(lab):
    exercising.ranks_are_well(lab)
