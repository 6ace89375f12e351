"""Exact replay: recorded texts, cost tables, and the environments that run on them without a model."""
