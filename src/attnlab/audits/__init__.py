"""Audits: does it keep its promises? One probe a file; each measures, and names the smallest input that breaks it."""
