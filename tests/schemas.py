"""JSON schemas at random, of what octavo can follow."""

from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "long name", 'qu"ote', "é", "🚀"])
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -7, 1.5, "", "x", "é\n", [1, "a"], {"k": []}]
)
BOUNDS = st.integers(-1000, 1000)


def integers() -> st.SearchStrategy[Any]:
    def bounded(low: int, size: int) -> dict[str, Any]:
        return {"type": "integer", "minimum": low, "maximum": low + size}

    return st.one_of(
        st.just({"type": "integer"}),
        st.builds(bounded, BOUNDS, st.integers(0, 500)),
        st.builds(lambda n: {"type": "integer", "multipleOf": n}, st.integers(1, 12)),
    )


def numbers() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.just({"type": "number"}),
        st.builds(lambda n: {"type": "number", "minimum": n, "maximum": n + 3}, BOUNDS),
        st.builds(lambda n: {"type": "number", "exclusiveMinimum": n}, BOUNDS),
    )


def strings() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.just({"type": "string"}),
        st.builds(
            lambda n, more: {"type": "string", "minLength": n, "maxLength": n + more},
            st.integers(0, 5),
            st.integers(0, 5),
        ),
        st.sampled_from(["^[a-c]+$", "b", "^(x|yz){2,4}$", r"^\d{3}-\d{2}$"]).map(
            lambda pattern: {"type": "string", "pattern": pattern}
        ),
        st.sampled_from(["date", "ipv4", "uuid"]).map(lambda f: {"type": "string", "format": f}),
    )


def leaves() -> st.SearchStrategy[Any]:
    constants = st.one_of(
        st.lists(VALUES, min_size=1, max_size=4).map(lambda values: {"enum": values}),
        VALUES.map(lambda value: {"const": value}),
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"]}]),
    )
    return st.one_of(integers(), numbers(), strings(), constants)


def arrays(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def bounded(item: Any, least: int, more: int) -> dict[str, Any]:
        return {"type": "array", "items": item, "minItems": least, "maxItems": least + more}

    return st.one_of(
        items.map(lambda item: {"type": "array", "items": item}),
        st.builds(bounded, items, st.integers(0, 3), st.integers(0, 3)),
        st.lists(items, min_size=1, max_size=3).map(
            lambda first: {"type": "array", "prefixItems": first, "items": False}
        ),
    )


def objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    @st.composite
    def build(draw: st.DrawFn) -> dict[str, Any]:
        properties = draw(st.dictionaries(NAMES, values, max_size=4))
        required = [name for name in properties if draw(st.booleans())]
        extra = draw(st.one_of(st.none(), st.booleans(), values))
        schema = {"type": "object", "properties": properties, "required": required}
        return schema if extra is None else schema | {"additionalProperties": extra}

    return build()


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    either = st.lists(inner, min_size=1, max_size=3).map(lambda several: {"anyOf": several})
    return st.one_of(objects(inner), objects(inner), arrays(inner), either)


SCHEMAS = objects(st.recursive(leaves(), nested, max_leaves=8))

TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}},
    "required": ["root"],
    "additionalProperties": False,
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["name", "next"],
            "additionalProperties": False,
        }
    },
}
"""One that refers to itself."""
