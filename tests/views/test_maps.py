"""Do maps hold what was measured, and nothing else?"""

import dataclasses
import json

import pytest
import torch

from attnlab.errors import Refused
from attnlab.mechanisms.visibility import PerHead, causal, window
from attnlab.subjects import attention
from attnlab.views import maps

N, WIDTH = 7, 16


def built(**variant):
    return attention(d_model=WIDTH, n_heads=4, length=N, **variant).double()


def tokens():
    return maps.random_tokens(N, d_model=WIDTH)


def test_a_map_is_plain_frozen_data() -> None:
    one = maps.influence(built(), tokens())
    back = json.loads(json.dumps(dataclasses.asdict(one)))
    assert back["values"] == [list(row) for row in one.values]
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.title = "another"  # type: ignore[misc]


def test_visibility_is_the_rule_itself() -> None:
    one = maps.visibility(built(visibility="window(last=3)"), N)
    assert one is not None
    assert one.values == tuple(tuple(float(0 <= i - j < 3) for j in range(N)) for i in range(N))


def test_heads_that_see_differently_are_shown_by_their_share() -> None:
    one = maps.visibility(built(visibility=PerHead((causal(), window(last=1), window(last=1), window(last=1)))), N)
    assert one is not None
    assert one.values[3] == (0.25, 0.25, 0.25, 1.0, 0.0, 0.0, 0.0)


def test_weights_are_those_of_the_head_that_was_asked_for() -> None:
    mixer = built()
    for head in (0, 2):
        one = maps.weights(mixer, tokens(), head=head)
        assert torch.equal(torch.tensor(one.values, dtype=torch.float64), mixer.weights(tokens())[0, head])


def test_what_has_no_weights_says_so() -> None:
    with pytest.raises(Refused, match="has no weights to draw"):
        maps.weights(built(mixer="gru"), tokens())
    assert maps.visibility(built(mixer="gru"), N) is None


def test_influence_is_the_length_of_a_gradient() -> None:
    mixer, x = built(), tokens()
    one = maps.influence(mixer, x)
    whole = torch.autograd.functional.jacobian(lambda t: mixer(t)[0], x)[:, :, 0]
    moved = torch.tensor(one.values) > 0
    assert torch.equal(moved, whole.square().sum(dim=(1, 3)) > 0)
    most = torch.linalg.matrix_norm(whole.transpose(1, 2), ord=2)
    assert bool((torch.tensor(one.values) <= most * (1 + 1e-6)).all())


def test_a_linear_mixer_moves_by_its_own_matrix() -> None:
    """y_i = x_i + 2 x_{i-1}: the one influence is twice the other."""

    class Twice(torch.nn.Module):
        def forward(self, x):
            return x + 2 * torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]

    values = torch.tensor(maps.influence(Twice(), tokens()).values)
    assert torch.allclose(values.diagonal(-1), 2 * values.diagonal()[1:], rtol=1e-12, atol=0)
    assert values.count_nonzero() == N + N - 1


def test_a_leak_is_what_the_rule_hides_and_nothing_else() -> None:
    sound, leaking = (maps.influence(built(normalizer=name), tokens()) for name in ("softmax", "zero-after-softmax"))
    assert sound.leaks == ()
    assert set(leaking.leaks) == {(i, j) for i in range(N) for j in range(i + 1, N)}
    assert maps.weights(built(normalizer="zero-after-softmax"), tokens()).leaks == ()


def test_a_token_may_always_move_itself() -> None:
    """Its query is its own, wherever it looks."""
    one = maps.influence(built(visibility=lambda at: at.steps() > 0, merge="gated"), tokens())
    assert one.leaks == ()
    assert one.values[3][3] > 0


def test_nobody_moves_what_has_no_gradient() -> None:
    class Deaf(torch.nn.Module):
        def forward(self, x):
            return torch.zeros_like(x)

    assert set(sum(maps.influence(Deaf(), tokens()).values, ())) == {0.0}


def test_the_same_seed_draws_the_same_map() -> None:
    assert maps.influence(built(), tokens()) == maps.influence(built(), tokens())
    assert not torch.equal(tokens(), maps.random_tokens(N, d_model=WIDTH, seed=1))
