"""Slow twins: the formulas again, one number at a time, to define what the mechanisms must answer."""
