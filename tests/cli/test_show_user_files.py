"""Is an idea of ten lines, in a file of its own, all that it takes?"""

import json
from pathlib import Path

import pytest

SMALL = ("--d-model", "16", "--n-heads", "2", "--length", "8", "--batch", "2", "--draw", "6", "--no-time", "--json")

FILES = {
    "projection": '''
from torch import nn

class Tied(nn.Module):
    """q = k = v = A x"""
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.map, self.n_heads = nn.Linear(d_model, d_model), n_heads
    def forward(self, x, memory=None):
        t = self.map(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        return t, (t,)
    def open(self, t):
        return t, t
''',
    "position": '''
from attnlab.mechanisms.parts import Position

class Root(Position):
    """s_ij - √|i - j|"""
    def bias(self, q, k, at):
        return -at.distance().abs().sqrt().to(q.dtype)
''',
    "score": '''
from einops import einsum
from torch.nn import functional as F

def cosine(q, k, at, *, temperature: float = 0.1):
    """s_ij = cos(q_i, k_j) / τ: direction alone, never length."""
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return einsum(q, k, "b h i d, b h j d -> b h i j") / temperature
''',
    "visibility": '''
def every_other(at, *, stride: int = 2):
    """i - j is a multiple of the stride"""
    return at.steps() % stride == 0
''',
    "normalizer": '''
def even(scores, allowed):
    """w_ij = 1 / n_i for the n_i keys that i may look at"""
    seen = allowed.to(scores.dtype).expand_as(scores)
    return seen / seen.sum(dim=-1, keepdim=True).clamp(min=1)
''',
    "merge": '''
def loudest_first(heads, x, tokens):
    """the heads of each token in the order of their norm"""
    order = heads.norm(dim=-1, keepdim=True).argsort(dim=1, descending=True)
    return heads.take_along_dim(order, dim=1)
''',
    "mixer": '''
import torch
from torch import nn

class RunningMean(nn.Module):
    """y_i = A mean(x_0 … x_i)"""
    def __init__(self, dim):
        super().__init__()
        self.map = nn.Linear(dim, dim)
    def forward(self, x):
        return self.map(x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None])
''',
}

# The same idea in the other forms that Python has for one.
OTHER_FORMS = {
    "a mixer as a function": ("mixer", 'def shift(x):\n    """y_i = x_{i-1}"""\n    return x.roll(1, dims=1)\n'),
    "a score as a module": (
        "score",
        "import torch\nfrom torch import nn\n"
        "class Bilinear(nn.Module):\n"
        '    """s_ij = q_i·(M k_j)"""\n'
        "    def __init__(self, head_dim):\n"
        "        super().__init__()\n        self.between = nn.Parameter(torch.eye(head_dim))\n"
        "    def forward(self, q, k, at):\n        return q @ self.between @ k.mT\n",
    ),
    "a normalizer as a class with a call": (
        "normalizer",
        "class Even:\n"
        '    """1/n"""\n'
        "    def __init__(self, *, power: int = 1):\n        self.power = power\n"
        "    def __call__(self, scores, allowed):\n"
        "        seen = allowed.to(scores.dtype).expand_as(scores)\n"
        "        return seen / seen.sum(dim=-1, keepdim=True) ** self.power\n",
    ),
    "a visibility of our own rules": (
        "visibility",
        "from attnlab.mechanisms.visibility import window\n"
        'def near_or_far():\n    """the last two, or the first"""\n'
        "    from attnlab.mechanisms.visibility import prefix\n"
        "    return window(last=2) | prefix(length=1)\n",
    ),
    "a visibility as frozen data": (
        "visibility",
        "from dataclasses import dataclass\nfrom attnlab import Visible\n"
        "@dataclass(frozen=True)\nclass Every(Visible):\n"
        '    """every `step`th"""\n    step: int = 3\n'
        "    def __call__(self, at, /):\n        return at.steps() % self.step == 0\n",
    ),
    "a builder of a projection": (
        "projection",
        "from torch import nn\nfrom attnlab.mechanisms.projections import Each\n"
        'def twice(*, d_model, n_heads):\n    """q = k = A x, v = B x"""\n'
        "    both, value = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)\n"
        "    return Each(query=both, key=both, value=value, n_heads=n_heads)\n",
    ),
    "a position that models add": (
        "position",
        "import torch\nfrom attnlab.mechanisms.positions import Absolute\n"
        'class Clock(Absolute):\n    """x_i + i mod 7"""\n'
        "    def __init__(self, d_model):\n        super().__init__()\n        self.d_model = d_model\n"
        "    def forward(self, tokens):\n"
        "        return (tokens.position % 7).double()[..., None].expand(-1, -1, self.d_model)\n",
    ),
    "a module that wants torch's own names": (
        "mixer",
        "from torch import nn\nclass Torch(nn.Module):\n"
        '    """softmax attention, as torch has it"""\n'
        "    def __init__(self, embed_dim, num_heads):\n        super().__init__()\n"
        "        self.inside = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)\n"
        "    def forward(self, x):\n        return self.inside(x, x, x, need_weights=False)\n",
    ),
}


@pytest.mark.parametrize(
    ("question", "text"),
    [*FILES.items(), *OTHER_FORMS.values()],
    ids=[*FILES, *OTHER_FORMS],
)
def test_a_file_is_all_that_it_takes(
    question: str, text: str, attnlab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(text, encoding="utf-8")
    assert len([line for line in text.splitlines() if line.strip()]) <= 12
    said = attnlab("show", "mine.py", *SMALL)
    assert said.status == 0, said.err
    shown = json.loads(said.out)
    (part,) = shown["parts"]
    assert part["question"] == question
    assert part["formula"] == text.split('"""')[1]
    assert part["source"].startswith(str(tmp_path / "mine.py"))
    assert shown["maps"][-1]["kind"] == "influence"
    assert shown["maps"][-1]["leaks"] == []
    assert shown["costs"]["forward"]["total"] > 0 or question == "mixer"


def test_settings_of_a_file_are_written_as_those_of_the_catalog(attnlab, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    for question, written, setting in (
        ("score", "cosine(temperature=0.2)", {"name": "temperature", "value": 0.2, "written": True}),
        ("visibility", "every_other(3)", {"name": "stride", "value": 3, "written": True}),
        ("visibility", "every_other", {"name": "stride", "value": 2, "written": False}),
    ):
        path.write_text(FILES[question], encoding="utf-8")
        shown = json.loads(attnlab("show", f"{path}:{written}", *SMALL).out)
        assert shown["parts"][0]["settings"] == [setting]


def test_a_written_setting_is_honored(attnlab, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILES["visibility"], encoding="utf-8")
    shown = json.loads(attnlab("show", f"{path}:every_other(stride=3)", *SMALL).out)
    may = shown["maps"][0]["values"]
    assert all((value > 0) == (j <= i and (i - j) % 3 == 0) for i, row in enumerate(may) for j, value in enumerate(row))


def test_files_answer_several_questions_together(attnlab, tmp_path: Path) -> None:
    for question in ("score", "normalizer", "visibility"):
        (tmp_path / f"{question}.py").write_text(FILES[question], encoding="utf-8")
    words = [str(tmp_path / "score.py")]
    for question in ("normalizer", "visibility"):
        words += ["--set", f"{question}={tmp_path / question}.py"]
    shown = json.loads(attnlab("show", *words, *SMALL).out)
    assert [part["question"] for part in shown["parts"]] == ["score", "normalizer", "visibility"]
    assert shown["maps"][0]["values"][3] == [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]


def test_a_changed_file_is_read_again(attnlab, tmp_path: Path) -> None:
    import os

    path = tmp_path / "mine.py"
    for place, formula in enumerate(("first", "second")):
        path.write_text(f'def f(x):\n    """{formula}"""\n    return x\n')
        os.utime(path, (place, place))
        assert json.loads(attnlab("show", str(path), *SMALL).out)["parts"][0]["formula"] == formula
