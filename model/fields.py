"""Typed reads from a JSON object or GGUF metadata, whose errors name the field and its value.

Knows the fields of no model; those are model.config's.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.errors import ModelError

MAX_LISTED_LAYERS = 10_000
"""Of a damaged description there may be more layers than any list holds."""


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path.name} can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path.name} isn't JSON ({error}): download it again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path.name} holds no JSON object: download it again")
    return content


class Fields:
    """An absent field, or a null, is as good as the default; without a default it is an error."""

    def __init__(
        self, values: Mapping[str, Any], *, prefix: str = "", runs: str = "no other models"
    ) -> None:
        """runs: what octavo does run, for the message about what it doesn't."""
        self._values = values
        self._prefix = prefix
        self._runs = runs

    def get(self, name: str) -> Any:
        return self._values.get(self._prefix + name)

    def integer(self, name: str, default: int | None = None) -> int:
        """At least 1: what is counted here, a model needs."""
        value = self._present(name, default)
        if not _is_number(value, int) or value < 1:
            raise self._wrong(name, value, "a positive whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._present(name, default)
        if not _is_number(value, int | float) or not 0 < value < float("inf"):
            raise self._wrong(name, value, "a positive number")
        return float(value)

    def optional_integer(self, name: str) -> int | None:
        return None if self.get(name) is None else self.integer(name)

    def optional_number(self, name: str) -> float | None:
        return None if self.get(name) is None else self.number(name)

    def numbers(self, name: str) -> tuple[float, ...]:
        values = self._present(name, None)
        if not isinstance(values, list) or not all(_is_number(v, int | float) for v in values):
            raise self._wrong(name, values, "a list of numbers")
        return tuple(map(float, values))

    def words(self, name: str) -> list[str] | None:
        values = self.get(name)
        if values is None or (isinstance(values, list) and all(isinstance(v, str) for v in values)):
            return values
        raise self._wrong(name, values, "a list of words")

    def integers(self, name: str) -> list[int] | None:
        values = self.get(name)
        if values is None or (isinstance(values, list) and all(_is_number(v, int) for v in values)):
            return values
        raise self._wrong(name, values, "a list of whole numbers")

    def layers(self, name: str) -> range:
        """All of them, of a number that may be damaged."""
        num_layers = self.integer(name)
        if num_layers > MAX_LISTED_LAYERS:
            prefixed = self._prefix + name
            raise ModelError(f"{prefixed} is {num_layers}, which is more than any model has")
        return range(num_layers)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._present(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def group(
        self, name: str, defaults: Mapping[str, Any] | None = None, *, runs: str | None = None
    ) -> "Fields":
        value = self._present(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return Fields({**(defaults or {}), **value}, runs=runs or self._runs)

    def groups(self, name: str) -> list["Fields"]:
        """An object of objects, whose names don't matter."""
        outer = self.group(name)
        return [outer.group(inner) for inner in outer._values]

    def require(self, name: str, *wanted: object) -> None:
        if self.get(name) not in wanted:
            raise self._unlike(name, *wanted)

    def allow(self, name: str, *wanted: object) -> None:
        """The field may also be absent."""
        if self.get(name) not in (None, *wanted):
            raise self._unlike(name, *wanted)

    def _present(self, name: str, default: Any) -> Any:
        value = self.get(name)
        if value is not None:
            return value
        if default is None:
            raise ModelError(f"{self._prefix}{name} is missing: the model's description is damaged")
        return default

    def _unlike(self, name: str, *wanted: object) -> ModelError:
        choices = " or ".join(repr(value) for value in wanted) or "absent"
        return self._wrong(name, self.get(name), f"{choices}. octavo runs {self._runs}")

    def _wrong(self, name: str, value: object, wanted: str) -> ModelError:
        return ModelError(f"{self._prefix}{name} is {value!r}, but must be {wanted}")


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
