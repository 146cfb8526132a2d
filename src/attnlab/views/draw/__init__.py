"""Payloads written down: for a terminal, or as SVG."""
