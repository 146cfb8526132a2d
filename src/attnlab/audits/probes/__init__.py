"""The probes, in the order of the card; a new one is one file and one name here."""

from functools import cache
from importlib import import_module

from attnlab.audits.probe import Probe

NAMES = (
    # what it may see
    "future_by_value",
    "future_by_gradient",
    "future_by_length",
    "future_with_weights",
    # independence
    "batch_neighbors",
    "batch_order",
    "batch_size",
    "padding_right",
    "padding_left",
    # order
    "order_equivariant",
    "order_aware",
    "favors_near",
    "hears_last",
    # weights
    "rows_sum_to_one",
    "nonnegative_weights",
    "hidden_keys",
    "blind_rows",
    "weights_used",
    # agreement
    "slow_twin",
    "other_module",
    "standard_attention",
    "fast_path",
    "cached_step",
    "compiled",
    # numbers
    "loud_scores",
    "half_precision",
    "rounding",
    # learning
    "connected",
    "gradients",
    "deterministic",
    "input_untouched",
    "scale",
    # cost
    "size",
    "growth",
    "cache",
    "longest",
)


@cache
def probes() -> tuple[Probe, ...]:
    """Every probe."""
    found = (import_module(f"attnlab.audits.probes.{name}").PROBE for name in NAMES)
    return tuple(found)
