"""What is WHAT? A name, a recipe's variant, a reader's file becomes a module here and nowhere else."""

from attnlab.subjects.compose import Built, Size, attention, compose, decoder
from attnlab.subjects.files import blamed, question_of, read
from attnlab.subjects.twin import twin
from attnlab.subjects.what import Described, described, variant_of

__all__ = [
    "Built",
    "Described",
    "Size",
    "attention",
    "blamed",
    "compose",
    "decoder",
    "described",
    "question_of",
    "read",
    "twin",
    "variant_of",
]
