"""GET /docs: what /openapi.json says, as a page to read.

Plain HTML: it has no script, and needs nothing from anywhere else.
"""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse

router = APIRouter(include_in_schema=False)

HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "{} characters or more",
    "maxLength": "{} characters at most",
    "minItems": "{} or more",
    "maxItems": "{} at most",
    "maxProperties": "{} keys at most",
    "pattern": "matches {}",
}
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{ info.title }}</title>
<meta name="viewport" content="width=device-width">
<style>
body { font: 1em/1.4 sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em }
table { border-collapse: collapse } td, th { border: 1px solid #aaa; padding: .2em .6em;
text-align: left; vertical-align: top } code { font-size: .9em; overflow-wrap: anywhere }
</style>
<h1>{{ info.title }} {{ info.version }}</h1>
<p>For programs: <a href="openapi.json">openapi.json</a>.
{% for path, route in paths.items() %}{% for method, operation in route.items() %}
<h2><code>{{ method | upper }} {{ path }}</code></h2>
{% if operation.description %}<p>{{ operation.description }}{% endif %}
{% for parameter in operation.parameters or [] %}
<p><code>{{ parameter.name }}</code> ({{ parameter.in }}): {{ parameter.description }}
{{ values(parameter.schema) }}
{% endfor %}
{% if operation.requestBody %}<p>Takes {{ content(operation.requestBody) }}.{% endif %}
<table>{% for status, response in operation.responses.items() %}
<tr><td>{{ status }}<td>{{ response.description }}<td>{{ content(response) }}
{% endfor %}</table>
{% endfor %}{% endfor %}
{% for name, schema in components.schemas.items() if schema.properties %}
<h3 id="{{ name }}">{{ name }}</h3>
<table><tr><th>field<th>values<th>default<th>meaning<th>example
{% for field, about in schema.properties.items() %}
<tr><td><code>{{ field }}</code><td>{{ values(about) }}
<td>{% if "default" in about %}<code>{{ json(about.default) }}</code>{% endif %}
<td>{{ about.description }}
<td>{% for example in about.examples %}<code>{{ json(example) }}</code> {% endfor %}
{% endfor %}</table>
{% endfor %}
"""


@router.get("/docs")
async def get_docs(request: Request) -> HTMLResponse:
    return HTMLResponse(page(request.app.openapi()), headers=HEADERS)


def page(description: Mapping[str, Any]) -> str:
    environment = Environment(autoescape=True, trim_blocks=True)
    environment.globals |= {"values": values, "content": content, "json": _json}
    return environment.from_string(PAGE).render(description)


def values(schema: Mapping[str, Any]) -> str:
    """Which values a schema takes."""
    if "anyOf" in schema:
        return " or ".join(map(values, schema["anyOf"]))
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema or "const" in schema:
        return ", ".join(map(_json, schema.get("enum") or [schema["const"]]))
    kind = schema.get("type", "anything")
    if "items" in schema:
        kind = f"array of ({values(schema['items'])})"
    bounds = [said.format(schema[key]) for key, said in BOUNDS.items() if key in schema]
    return ", ".join([kind, *bounds])


def content(message: Mapping[str, Any]) -> str:
    """Which schemas a body or a response has."""
    return ", ".join(
        f"{values(body['schema'])} ({media_type})"
        for media_type, body in message.get("content", {}).items()
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
