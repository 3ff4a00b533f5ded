"""Schemathesis, which knows octavo by /openapi.json alone: no request gets a 5xx, and every answer
is as it is described, whatever the method, the headers and the body."""

from http import HTTPStatus
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.fakes import Client, FakeEngine, say

CLIENT = Client(FakeEngine(say("Yes.")), tokenizer_info=True, debug_endpoints=True)
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", CLIENT.app)


@SCHEMA.parametrize()
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_request_is_answered_as_described(case: schemathesis.Case[Any]) -> None:
    """A body that is right by its schema may still be more than the vocabulary or the context."""
    answer = case.call()
    if answer.status_code != HTTPStatus.GATEWAY_TIMEOUT:  # by a deadline in its headers
        case.validate_response(answer, excluded_checks=[positive_data_acceptance])
