"""Does each step of a file that follows the scaffold do what the assignment says?"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from attnlab.audits.probe import Probe, Silent
from attnlab.audits.staged import STAGES, staged
from attnlab.records.finding import Finding
from attnlab.subjects import files
from attnlab.subjects.subject import Subject


class Followed(NamedTuple):
    """A file that follows the scaffold."""

    name: str
    names: Mapping[str, Any]
    kind: str = "scaffold"
    guess: str = "the steps of self-attention by the names of the scaffold, each looked at by itself"
    promises: tuple[str, ...] = ("standard-attention",)


def followed(path: str) -> Followed:
    return Followed(path, files.names_of(path))


class InStages(Probe):
    """A stage, asked as a probe is."""

    def __call__(self, subject: Any) -> Finding:
        return next(one for one in staged(subject.names) if one.code == self.code)


def look(subject: Subject) -> Silent:
    return Silent("a stage is asked of a file, with --staged")


# What a usual slip of each stage looks like.
SLIPS = {
    "stage-1": "attn_softmax (line 12) runs over the queries (dim=-2), not over the keys (dim=-1)",
    "stage-2": "apply_causal_mask (line 21) sets hidden scores to 0, which a softmax counts as exp(0); set them to -∞",
    "stage-3": "attn_scaled (line 9) divides by √6 (n_embd), not by √2 (n_embd / n_heads)",
}

STAGED = tuple(
    InStages(
        code=stage.code,
        promise="standard-attention",
        family="agreement",
        says=f"With --staged: the functions of {stage.title}, do what the assignment says.",
        cause="a function of this stage, or how self_attention uses it",
        example=f"attnlab audit mine.py --staged says: {stage.title}: {SLIPS[stage.code]}",
        look=look,
    )
    for stage in STAGES
)
