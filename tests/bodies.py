"""Bodies of requests at random, in which every parameter occurs, and which are all answered."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.fakes import VOCAB_SIZE
from tests.schemas import SCHEMAS

Body = dict[str, Any]

IDS = st.integers(0, VOCAB_SIZE - 1)
FLAG = st.booleans()
COMMON: dict[str, SearchStrategy[Any]] = {
    "model": st.just("tiny-too"),
    "max_tokens": st.integers(1, 12),
    "min_tokens": st.integers(0, 1),
    "n": st.integers(1, 3),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.01, 1),
    "top_k": st.integers(-1, 300),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0, allow_infinity=False, exclude_min=True),
    "frequency_penalty": st.floats(-2, 2),
    "presence_penalty": st.floats(-2, 2),
    "logit_bias": st.dictionaries(IDS.map(str), st.floats(-100, 100), max_size=3),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "stop": st.sampled_from(["é", [], ["b c", "!"], ["🚀", "x", "\n"]]),
    "stop_token_ids": st.lists(IDS, max_size=2),
    "bad_words": st.lists(st.sampled_from(["zz", "🚀"]), max_size=2),
    "allowed_token_ids": st.just([*range(128)]),
    "ignore_eos": FLAG,
    "include_stop_str_in_output": FLAG,
    "skip_special_tokens": FLAG,
    "spaces_between_special_tokens": FLAG,
    "truncate_prompt_tokens": st.just(-1) | st.integers(1, 9),
    "return_token_ids": FLAG,
    "return_tokens_as_token_ids": FLAG,
    "priority": st.integers(-9, 9),
    "include_timings": FLAG,
    "cache_salt": st.just("pepper"),
    "add_special_tokens": FLAG,
    "user": st.just("me"),
    "stop_reason": st.just("unknown keys are ignored"),
}
TEXTS = st.text(alphabet="a é🚀<\n", min_size=1, max_size=8)
PROMPTS = st.one_of(
    TEXTS,
    st.lists(TEXTS, min_size=1, max_size=3),
    st.lists(IDS, min_size=1, max_size=5),
    st.lists(st.lists(IDS, min_size=1, max_size=3), min_size=1, max_size=2),
)
PARTS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), max_size=2)
CALLED = st.fixed_dictionaries(
    {
        "function": st.fixed_dictionaries(
            {"name": st.just("f")}, optional={"arguments": st.sampled_from(["{}", '{"a": 1}', "{"])}
        )
    },
    optional={"id": st.just("call_1"), "type": st.just("function")},
)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "system", "developer", "tool"]),
        "content": TEXTS | PARTS,
    },
    optional={"name": st.just("Ann"), "tool_call_id": st.just("call_1")},
)
ANSWER = st.fixed_dictionaries(
    {"role": st.just("assistant")},
    optional={
        "content": TEXTS | st.none(),
        "tool_calls": st.lists(CALLED, max_size=2),
        "reasoning_content": TEXTS,
        "reasoning": TEXTS,
        "refusal": st.none(),
    },
)
MESSAGES = st.lists(MESSAGE | ANSWER, min_size=1, max_size=3)
SHOWN: SearchStrategy[Body] = st.sampled_from(
    [{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 2}]
)


def both(first: SearchStrategy[Body], second: SearchStrategy[Body]) -> SearchStrategy[Body]:
    return st.builds(lambda a, b: a | b, first, second)


PROMPT_ENDS: SearchStrategy[Body] = st.sampled_from(
    [
        *({}, {"add_generation_prompt": True}, {"add_generation_prompt": False}),
        *({"continue_final_message": False}, {"continue_final_message": True}),
    ]
)
OF_CHATS: dict[str, SearchStrategy[Any]] = {
    "max_completion_tokens": st.integers(1, 9),
    "chat_template_kwargs": st.sampled_from([{}, {"mood": "calm"}]),
    "include_reasoning": FLAG,
    "functions": st.just([]),
    "function_call": st.sampled_from(["none", "auto"]),
}
FREE_CHATS = both(
    both(st.fixed_dictionaries({"messages": MESSAGES}, optional=COMMON | OF_CHATS), SHOWN),
    PROMPT_ENDS,
)
FREE_COMPLETIONS = st.fixed_dictionaries(
    {"prompt": PROMPTS}, optional=COMMON | {"logprobs": st.integers(0, 3), "echo": FLAG}
)
SCORED = st.fixed_dictionaries(
    {"prompt": PROMPTS, "echo": st.just(True), "max_tokens": st.just(0)},
    optional={
        name: COMMON[name] for name in ("n", "return_token_ids", "truncate_prompt_tokens", "stop")
    }
    | {"logprobs": st.integers(0, 3)},
)

# What is held to a form: nothing goes with it that could end it early.
FORMAT = st.one_of(
    st.just({"type": "text"}),
    st.just({"type": "json_object"}),
    st.fixed_dictionaries(
        {
            "type": st.just("json_schema"),
            "json_schema": st.fixed_dictionaries(
                {"name": st.just("s"), "schema": SCHEMAS},
                optional={"strict": FLAG, "description": TEXTS},
            ),
        }
    ),
)
STRUCTURED = st.sampled_from(
    [
        {"json": {"type": "array"}},
        {"json_object": True},
        {"regex": "[a-f]{2,9}"},
        {"choice": ["yes", "no"]},
        {"grammar": 'start: "a"+'},
    ]
)
GUIDED: dict[str, Any] = {
    "guided_json": '{"type": "object"}',
    "guided_regex": "x*",
    "guided_choice": ["🚀", "é"],
    "guided_grammar": 'start: "(" start ")" | "x"',
}
FORMS: SearchStrategy[Body] = st.one_of(
    st.fixed_dictionaries({"response_format": FORMAT}),
    st.fixed_dictionaries({"structured_outputs": STRUCTURED}),
    *(st.just({name: value}) for name, value in GUIDED.items()),
)
ENDING = ("bad_words", "allowed_token_ids", "ignore_eos", "min_tokens", "stop_token_ids")
BESIDE_FORMS = {
    name: values
    for name, values in COMMON.items()
    if name not in (*ENDING, "stop", "include_stop_str_in_output", "seed", "max_tokens")
}
DRAWN = st.fixed_dictionaries(
    {"seed": st.integers(0, 999), "max_tokens": st.sampled_from([3, 60])}, optional=BESIDE_FORMS
)
TOOLS: SearchStrategy[list[Any]] = st.lists(
    st.sampled_from(["f", "now"]).flatmap(
        lambda name: st.fixed_dictionaries(
            {
                "type": st.just("function"),
                "function": st.fixed_dictionaries(
                    {"name": st.just(name)},
                    optional={"parameters": SCHEMAS, "description": TEXTS, "strict": FLAG},
                ),
            }
        )
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda tool: tool["function"]["name"],
)
CALLING: SearchStrategy[Body] = TOOLS.flatmap(
    lambda tools: st.fixed_dictionaries(
        {"tools": st.just(tools)},
        optional={
            "tool_choice": st.sampled_from(["none", "auto", "required"])
            | st.just({"type": "function", "function": {"name": tools[0]["function"]["name"]}}),
            "parallel_tool_calls": FLAG,
        },
    )
)
FORMED_CHATS = both(
    both(st.fixed_dictionaries({"messages": MESSAGES}), SHOWN),
    both(DRAWN, st.one_of(FORMS, CALLING, both(FORMS, CALLING))),
)
FORMED_COMPLETIONS = both(st.fixed_dictionaries({"prompt": PROMPTS}), both(DRAWN, FORMS))

CHATS = FREE_CHATS | FORMED_CHATS
COMPLETIONS = FREE_COMPLETIONS | SCORED | FORMED_COMPLETIONS
OF_WHOLE_ANSWERS: dict[str, SearchStrategy[Any]] = {"prompt_logprobs": st.integers(0, 3)}
WHOLE_CHATS = both(CHATS, st.fixed_dictionaries({}, optional=OF_WHOLE_ANSWERS))
WHOLE_COMPLETIONS = both(
    COMPLETIONS, st.fixed_dictionaries({}, optional=OF_WHOLE_ANSWERS | {"best_of": st.just(3)})
)
