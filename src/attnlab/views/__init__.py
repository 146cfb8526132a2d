"""Pictures: what was measured, as plain typed payloads; views.draw writes them as text and SVG."""
