"""Evaluation: policies compared on the same prompts and seeds, with intervals, tables and plots."""
