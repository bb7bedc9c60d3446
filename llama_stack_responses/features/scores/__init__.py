"""Scores and notes of responses, by people and by scripts."""
