"""Mechanisms: the replaceable questions of attention, and the mixers that ask others."""
