"""Records: the plain types that cross rooms."""
