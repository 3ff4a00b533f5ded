"""Histograms say in Prometheus's text what they were told."""

import pytest
from hypothesis import given, strategies as st
from prometheus_client import CollectorRegistry, Histogram as Reference, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from service.histogram import Histogram

BOUNDS = (0.001, 1, 2.5, 1e6)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> tuple[str, str, Samples]:
    family = next(iter(text_string_to_metric_families(text)))
    found = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in family.samples}
    return family.documentation, family.type, found


def with_plain_bounds(text: str) -> tuple[str, str, Samples]:
    """Bounds are compared as numbers, as Prometheus does."""
    documentation, kind, found = samples(text)
    spelled = {
        (name, tuple((label, str(float(value))) for label, value in labels)): count
        for (name, labels), count in found.items()
    }
    return documentation, kind, spelled


@given(st.lists(st.one_of(st.sampled_from(BOUNDS), st.floats(0, 1e7)), max_size=30))
def test_it_counts_as_the_client_library_does(values: list[float]) -> None:
    registry = CollectorRegistry()
    reference = Reference("sizes", "Some sizes.", buckets=BOUNDS, registry=registry)
    ours = Histogram("sizes", "Some sizes.", BOUNDS)
    for value in values:
        reference.observe(value)
        ours.observe(value)
    assert with_plain_bounds(ours.render()) == with_plain_bounds(generate_latest(registry).decode())


def test_series_are_there_from_the_start_and_count_apart() -> None:
    ours = Histogram("sizes", "Some sizes.", [1], label="of", values=["cats", "dogs"])
    ours.series["dogs"].observe(0.5)
    _, _, found = samples(ours.render())
    assert found["sizes_count", (("of", "cats"),)] == 0
    assert found["sizes_bucket", (("le", "1.0"), ("of", "dogs"))] == 1
    assert found["sizes_sum", (("of", "dogs"),)] == pytest.approx(0.5)
