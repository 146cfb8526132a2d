"""What is WHAT? A name, a recipe's variant, a reader's file becomes a module here and nowhere else."""

from attnlab.subjects.compose import Built, Size, attention, compose, decoder
from attnlab.subjects.files import question_of, read

__all__ = ["Built", "Size", "attention", "compose", "decoder", "question_of", "read"]
