"""How a model's rotary positions were stretched beyond the context that it was first trained on.

Numbers alone; what they do to the angles is model.rope's.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """All turns are slower by the factor (kaiokendev.github.io/til)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicScaling:
    """A greater theta, as the context served goes beyond the original one ("dynamic NTK")."""

    factor: float
    original_context_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """How Llama 3.1 slows the rotary frequencies whose wavelengths are long."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """Slow turns are slowed, fast ones kept, what is between blended (arXiv:2309.00071)."""

    factor: float
    original_context_len: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    """The pairs where blending begins and ends are whole ones."""
    attention_factor: float
    """Lengthens queries and keys alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRopeScaling:
    """A divisor for each pair, found by search; other ones for long contexts (arXiv:2402.13753)."""

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_context_len: int
    attention_factor: float


RopeScaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongRopeScaling
