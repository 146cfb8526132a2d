"""Draws the pictures of the README: python docs/pictures/draw.py"""

from pathlib import Path

from attnlab.subjects import attention
from attnlab.views import maps
from attnlab.views.draw.svg import svg
from attnlab.views.maps import Map

HERE = Path(__file__).parent
N, WIDTH = 12, 64

# What is drawn, and what stands below it.
WEIGHED = {
    "attention": ({}, "softmax of q·k / √d"),
    "alibi": ({"position": "alibi"}, "nearer keys are favored"),
    "window(last=4)": ({"visibility": "window(last=4)"}, "itself and three before"),
    "strided(stride=3)": ({"visibility": "strided(stride=3)"}, "near, then every third"),
    "blockwise(size=4)": ({"visibility": "blockwise(size=4)"}, "its own block alone"),
    "prefix(length=4)": ({"visibility": "prefix(length=4)"}, "all see the first four"),
    "sparsemax": ({"normalizer": "sparsemax"}, "most weights exactly 0"),
}
INFLUENCED = {
    "aft-simple": ({"mixer": "aft-simple"}, "keys never meet a query"),
    "gru": ({"mixer": "gru"}, "no attention at all"),
    "zero-after-softmax": ({"normalizer": "zero-after-softmax"}, "hears its future"),
}
NOTES = (
    "A row asks, a column answers; the shade is the share of the largest in its row.",
    "Random parameters and tokens in float64; the last three by gradient. × is heard, although the rule hides it.",
)


def attention_svg() -> str:
    """Who looks where: seven by the weights of their first head, three by which input moves which output."""
    x = maps.random_tokens(N, d_model=WIDTH)
    drawn: list[Map] = []
    for table, look in ((WEIGHED, maps.weights), (INFLUENCED, maps.influence)):
        for name, (variant, caption) in table.items():
            mixer = attention(d_model=WIDTH, n_heads=4, length=N, **variant).double()
            drawn.append(look(mixer, x, title=name, caption=caption))
    return svg(drawn, columns=5, title="Who looks where in ten ways to mix tokens, one of them faulty", notes=NOTES)


PICTURES = {"attention.svg": attention_svg}

if __name__ == "__main__":
    for name, made in PICTURES.items():
        (HERE / name).write_text(made(), encoding="utf-8")
        print(f"docs/pictures/{name}")
