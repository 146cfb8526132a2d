"""Chance comes from named streams, and the global generators are left alone."""

import random

import numpy as np
import torch
from torch import nn

from attnlab.randomness import initialize, seeded, stream
from attnlab.subjects import attention


def test_a_stream_depends_on_its_seed_and_its_name_alone():
    draw = torch.rand(3, generator=stream(1, "a"))
    assert torch.equal(draw, torch.rand(3, generator=stream(1, "a")))
    assert not torch.equal(draw, torch.rand(3, generator=stream(2, "a")))
    assert not torch.equal(draw, torch.rand(3, generator=stream(1, "b")))


def test_seeded_code_draws_alike_and_the_generators_go_on_as_if_nothing_had_been():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    draws = []
    for _ in range(2):
        with seeded(3, "reader"):
            draws.append((torch.rand(1).item(), np.random.rand(), random.random()))
    assert draws[0] == draws[1]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert random.getstate() == before[2]


def test_a_readers_own_part_keeps_what_it_drew():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(64, 64)

        def forward(self, x):
            return self.map(x)

    mine = Mine()
    before = mine.map.weight.clone()
    attention(mixer=mine, seed=7)
    assert torch.equal(mine.map.weight, before)


def test_every_parameter_of_ours_is_drawn_anew():
    module = attention(score="bilinear", normalizer="sink", merge="talking-heads")
    for parameter in module.parameters():
        nn.init.constant_(parameter, 77.0)
    initialize(module, 0)
    assert all((parameter != 77.0).all() for parameter in module.parameters())


def test_a_draw_is_saved_with_the_state():
    module, x = attention(d_model=8, n_heads=4, merge="shuffle"), torch.randn(1, 3, 8)
    module(x)
    state = module.state_dict()
    expected = [module(x) for _ in range(4)]
    other = attention(d_model=8, n_heads=4, merge="shuffle", seed=0)
    other.load_state_dict(state)
    assert all(torch.equal(other(x), y) for y in expected)
