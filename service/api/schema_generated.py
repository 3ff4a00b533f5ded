"""What is generated, for /openapi.json: completions and chat completions, whole and in chunks.

As in `service.api.schema_answers`, fields with a default may be missing: they are there where a
call asks for them, or where there is something to tell.
"""

from typing import Annotated, Literal

from pydantic import Field

from service.api.schema_answers import Answer, example_of, told

LOGPROB = "Natural logarithm of the token's probability; -9999 stands for none."
FINISH_REASON = "stop: by itself or a stop string; length: the budget, context or time was used up"

Logprob = Annotated[float, Field(le=0)]
Place = Annotated[int, Field(ge=0)]
Byte = Annotated[int, Field(ge=0, le=255)]


class CachedTokens(Answer):
    cached_tokens: int = told("Tokens that needn't be computed, being cached.", 16, ge=0)


class Usage(Answer):
    prompt_tokens: int = told("Tokens of the prompts, each counted once.", 20, ge=0)
    completion_tokens: int = told("Tokens generated, of all choices.", 9, ge=0)
    total_tokens: int = told("The sum of both.", 29, ge=0)
    prompt_tokens_details: CachedTokens = told("Of the prompts' tokens.", {"cached_tokens": 16})


class Timings(Answer):
    prompt_n: int = told("Tokens of the prompt that were computed.", 4, ge=0)
    cached_tokens: int = told("Those that weren't, being cached.", 16, ge=0)
    predicted_n: int = told("Tokens generated.", 9, ge=0)
    queue_ms: float | None = told("Until the first step, in milliseconds.", 0.2, ge=0)
    prefill_ms: float | None = told("From there to the first token.", 31.5, ge=0)
    decode_ms: float | None = told("From the first token to the last.", 84.0, ge=0)
    preemptions: int | None = told("How often it gave its pages back.", 0, ge=0)


class PromptLogprob(Answer):
    logprob: float = told(LOGPROB, -0.25, le=0)
    rank: int = told("One more than the number of likelier tokens.", 1, ge=1)
    decoded_token: str = told("The token's text.", " is")


PromptLogprobs = list[dict[str, PromptLogprob] | None]
TIMINGS = told(
    "Where the choice's time went, where the call asks for it.", example_of(Timings), default=None
)
TOKEN_IDS = told("The ids generated, where the call asks for them.", [260, 2], default=None)
PROMPT_IDS = told("The prompt's ids, where the call asks for them.", [504, 3575], default=None)
PROMPT_LOGPROBS = told(
    "By token id, for each place of the prompt but the first; null if it wasn't scored in time.",
    [None, {"3575": {"logprob": -0.25, "rank": 1, "decoded_token": " is"}}],
    default=None,
)


class CompletionLogprobs(Answer):
    tokens: list[str] = told("The tokens; one that is no text is spelled bytes:\\xf0.", [" a"])
    token_logprobs: list[Logprob | None] = told(LOGPROB, [-0.5])
    top_logprobs: list[dict[str, Logprob] | None] = told("The likeliest tokens.", [{" a": -0.5}])
    text_offset: list[Place] = told("Where in the text each begins, in characters.", [0])


class ChunkOfCompletionChoice(Answer):
    text: str = told("What it says; in a stream, what is new.", " made of fibres")
    index: int = told("Its place: those of the first prompt come first.", 0, ge=0, le=255)
    logprobs: CompletionLogprobs | None = told(
        "Four lists of one length.", example_of(CompletionLogprobs)
    )
    finish_reason: Literal["stop", "length"] | None = told(f"{FINISH_REASON}.", "stop")
    token_ids: list[Place] | None = TOKEN_IDS
    prompt_token_ids: list[Place] | None = PROMPT_IDS
    prompt_logprobs: PromptLogprobs | None = PROMPT_LOGPROBS
    timings: Timings | None = TIMINGS


class CompletionChoice(ChunkOfCompletionChoice):
    finish_reason: Literal["stop", "length"] = told(f"{FINISH_REASON}.", "stop")


class Generated(Answer):
    id: str = told("The call's.", "cmpl-5f1d0c")
    created: int = told("When it was taken, in seconds of Unix.", 1_790_000_000, ge=0)
    model: str = told("The name that was asked for.", "SmolLM2-135M-Instruct")


class Completion(Generated):
    object: Literal["text_completion"] = told("Always this.", "text_completion")
    choices: list[CompletionChoice] = told("n of each prompt.", [example_of(CompletionChoice)])
    usage: Usage = told("What was read and written.", example_of(Usage))


class CompletionChunk(Generated):
    object: Literal["text_completion"] = told("Always this.", "text_completion")
    choices: list[ChunkOfCompletionChoice] = told(
        "One; none where usage ends the stream.", [example_of(ChunkOfCompletionChoice)]
    )
    usage: Usage | None = told("Where stream_options ask for it.", example_of(Usage), default=None)


class ChatToken(Answer):
    token: str = told("The token.", " a")
    logprob: float = told(LOGPROB, -0.5, le=0)
    bytes: list[Byte] = told("What of the text it is; joined, they are all of it.", [32, 97])


class ChatTokenLogprob(ChatToken):
    top_logprobs: list[ChatToken] = told(
        "The likeliest tokens at its place.", [example_of(ChatToken)]
    )


class ChatLogprobs(Answer):
    content: list[ChatTokenLogprob] = told(
        "Of each token generated.", [example_of(ChatTokenLogprob)]
    )
    refusal: None = told("There is none.", None)


class FunctionArguments(Answer):
    arguments: str = told("What is new of the arguments' JSON.", '{"lit": true}')


class FunctionCall(FunctionArguments):
    name: str = told("Of the function to call.", "set_lamp")


class FunctionToCall(Answer):
    id: str = told("To answer it by.", "call_5f1d0c")
    type: Literal["function"] = told("Always this.", "function")
    function: FunctionCall = told("What to call.", example_of(FunctionCall))


class ChunkOfCallBegun(FunctionToCall):
    index: int = told("Its place among the message's calls.", 0, ge=0, le=15)


class ChunkOfCall(Answer):
    index: int = told("Its place among the message's calls.", 0, ge=0, le=15)
    function: FunctionArguments = told("More of its arguments.", example_of(FunctionArguments))


class AssistantMessage(Answer):
    role: Literal["assistant"] = told("Always this.", "assistant")
    content: str | None = told("What it says; null where it only calls or thinks.", "Books.")
    refusal: None = told("There is none.", None)
    tool_calls: list[FunctionToCall] = told(
        "What it calls.", [example_of(FunctionToCall)], default=[]
    )
    reasoning_content: str = told("What it thought first.", "Hm.", default="")
    reasoning: str = told("The same, by another name.", "Hm.", default="")


class Delta(Answer):
    role: Literal["assistant"] | None = told("In a choice's first.", "assistant", default=None)
    content: str = told("What is new of what it says.", "Bo", default="")
    tool_calls: list[ChunkOfCallBegun | ChunkOfCall] = told(
        "What is new of what it calls.", [example_of(ChunkOfCall)], default=[]
    )
    reasoning_content: str = told("What is new of what it thinks.", "Hm", default="")
    reasoning: str = told("The same, by another name.", "Hm", default="")


class ChatEnd(Answer):
    index: int = told("Its place.", 0, ge=0, le=127)
    logprobs: ChatLogprobs | None = told("Where the call asks for them.", example_of(ChatLogprobs))
    finish_reason: Literal["stop", "length", "tool_calls"] | None = told(
        f"{FINISH_REASON}; tool_calls: it called, and its calls are whole.", "stop"
    )
    token_ids: list[Place] | None = TOKEN_IDS
    timings: Timings | None = TIMINGS


class ChunkOfChatChoice(ChatEnd):
    delta: Delta = told("What is new of the message.", {"content": "Bo"})


class ChatChoice(ChatEnd):
    message: AssistantMessage = told(
        "What it says, thinks and calls.", example_of(AssistantMessage)
    )
    finish_reason: Literal["stop", "length", "tool_calls"] = told(
        f"{FINISH_REASON}; tool_calls: it called, and its calls are whole.", "stop"
    )


class ChatCompletion(Generated):
    object: Literal["chat.completion"] = told("Always this.", "chat.completion")
    choices: list[ChatChoice] = told("n of them.", [example_of(ChatChoice)])
    usage: Usage = told("What was read and written.", example_of(Usage))
    prompt_token_ids: list[Place] | None = PROMPT_IDS
    prompt_logprobs: PromptLogprobs | None = PROMPT_LOGPROBS


class ChatCompletionChunk(Generated):
    object: Literal["chat.completion.chunk"] = told("Always this.", "chat.completion.chunk")
    choices: list[ChunkOfChatChoice] = told(
        "One; none where usage ends the stream.", [example_of(ChunkOfChatChoice)]
    )
    usage: Usage | None = told("Where stream_options ask for it.", example_of(Usage), default=None)
    prompt_token_ids: list[Place] | None = PROMPT_IDS
