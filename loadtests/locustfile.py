"""For Locust's own command and user interface, on any OpenAI-compatible server:

    locust -f loadtests/locustfile.py --host http://127.0.0.1:8000 --scenario mixed
    locust -f loadtests/locustfile.py --host … --headless -u 16 -t 2m --shape spike

`-u` is the peak of the shape, and `-t` how long it takes. `--processes 4` makes a load that is too
much for one core. The key in OPENAI_API_KEY, if there is one, is sent.
"""

import os
from typing import Any

from locust import events
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from loadtests import scenarios, server
from loadtests.prompts import TEXT, Text, Workload
from loadtests.shapes import SHAPES, Stage
from loadtests.stream import Target
from loadtests.users import StagedShape, StreamUser

PEAK, SECONDS, TIMEOUT = 16, 120, 300.0


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_options(parser: LocustArgumentParser) -> None:
    mixes = list(scenarios.load())
    parser.add_argument("--scenario", choices=mixes, default=mixes[0], help="what users ask")
    parser.add_argument("--shape", choices=list(SHAPES), default="soak", help="users over time")
    parser.add_argument("--model", default="", help="default: the first of /v1/models")
    parser.add_argument("--seed", type=int, default=1, help="the same prompts again, or others")


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def prepare(environment: Environment, **_: Any) -> None:
    """Before the first user asks: what they ask, and whom."""
    options = environment.parsed_options
    assert options is not None
    host = environment.host or "http://127.0.0.1:8000"
    target = Target(url=host, api_key=os.environ.get("OPENAI_API_KEY"), timeout=TIMEOUT)
    model = options.model or server.first_model(target)
    mix = scenarios.load()[options.scenario]
    text = Text(TEXT.read_text())
    worker = getattr(environment.runner, "worker_index", 0)  # the master has none, and no users
    seed = f"{options.seed}-{worker}"  # or they would all ask the same
    ChatUser.target = target
    ChatUser.works = iter(Workload(mix, text, model=model, seed=seed, temperature=0.0))


class ChatUser(StreamUser):
    """Asks without end."""


class Shape(StagedShape):
    """The one that `--shape` names."""

    use_common_options = True

    def stages(self) -> list[Stage]:
        assert self.runner is not None
        options = self.runner.environment.parsed_options
        assert options is not None
        peak = options.num_users or PEAK
        return SHAPES[options.shape](peak, float(options.run_time or SECONDS))
