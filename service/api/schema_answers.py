"""What is answered, for /openapi.json: errors, and what isn't generated.

Answers are plain objects, made by the modules of their routes; a model of each chunk would cost
more than the chunk. The tests hold answers to these.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """Has these fields and no others; those with a default may be missing."""

    model_config = ConfigDict(extra="forbid")


def told(description: str, example: Any, **bounds: Any) -> Any:
    return Field(description=description, examples=[example], **bounds)


def example_of(answer: type[Answer]) -> dict[str, Any]:
    """With the fields that are always there."""
    fields = answer.model_fields.items()
    return {
        name: field.examples[0] for name, field in fields if field.examples and field.is_required()
    }


class ErrorDetails(Answer):
    message: str = told("What is wrong, and what to do about it.", "prompt is required.")
    type: str = told(
        "The kind of error; of a 429, what there is too much of.", "invalid_request_error"
    )
    param: str | None = told("The parameter that is wrong, if it is one.", "prompt")
    code: str | None = told("For programs.", "context_length_exceeded")


class ErrorAnswer(Answer):
    error: ErrorDetails = told("All four keys are always there.", example_of(ErrorDetails))


class Model(Answer):
    id: str = told("The name to ask for.", "SmolLM2-135M-Instruct")
    object: Literal["model"] = told("Always this.", "model")
    created: int = told("When the server started, in seconds of Unix.", 1_790_000_000, ge=0)
    owned_by: Literal["octavo"] = told("Always this.", "octavo")
    max_model_len: int | None = told(
        "Most tokens of prompt and output together; null until it is loaded.", 8192, ge=1
    )


class ModelList(Answer):
    object: Literal["list"] = told("Always this.", "list")
    data: list[Model] = told("The one model, under each of its names.", [example_of(Model)])


class Tokenized(Answer):
    tokens: list[int] = told("Token ids.", [19556, 905])
    token_strs: list[str] | None = told(
        "The tokens as the vocabulary has them, where they were asked for.", ["Hello", "Ġworld"]
    )
    count: int = told("How many there are.", 2, ge=0)
    max_model_len: int = told("Most tokens of prompt and output together.", 8192, ge=1)


class Detokenized(Answer):
    prompt: str = told("The text of the tokens, special ones spelled.", "Hello world")


class Rendered(Answer):
    prompt: str = told("The whole text that the chat becomes.", "<|im_start|>user\nHello")
    prompt_token_ids: list[int] = told("Its token ids, or the last of them.", [1, 4093, 198])
    count: int = told("How many ids there are.", 3, ge=0)
    max_model_len: int = told("Most tokens of prompt and output together.", 8192, ge=1)


class TokenizerInfo(Answer):
    tokenizer_class: str = told("A class of transformers.", "PreTrainedTokenizerFast")
    bos_token: str | None = told("What begins a text.", "<|im_start|>")
    eos_token: str | None = told("What ends one.", "<|im_end|>")
    pad_token: None = told("There is none.", None)
    additional_special_tokens: list[str] = told("All special tokens.", ["<|im_start|>"])
    model_max_length: int = told("Most tokens of prompt and output together.", 8192, ge=1)
    vocab_size: int = told("One more than the highest token id.", 49152, ge=1)
    chat_template: str = told("The chat template, in Jinja.", "{% for m in messages %}…")


class Embedding(Answer):
    object: Literal["embedding"] = told("Always this.", "embedding")
    index: int = told("The place of its input.", 0, ge=0, le=127)
    embedding: list[float] | str = told(
        "A vector of length 1; or, in base64, its numbers as little-endian float32.", [0.6, -0.8]
    )


class EmbeddingUsage(Answer):
    prompt_tokens: int = told("Tokens of all inputs.", 4, ge=0)
    total_tokens: int = told("The same.", 4, ge=0)


class EmbeddingList(Answer):
    object: Literal["list"] = told("Always this.", "list")
    data: list[Embedding] = told("A vector for each input, in order.", [example_of(Embedding)])
    model: str = told("The name that was asked for.", "SmolLM2-135M-Instruct")
    usage: EmbeddingUsage = told("What was read.", example_of(EmbeddingUsage))


class Liveness(Answer):
    status: str = told("What the engine is doing.", "ready")


class Readiness(Answer):
    status: str = told("ready, or why requests aren't taken.", "loading")
    detail: str = told("What is being done about it.", "weights", default="")
    progress: float = told("How much of that is done.", 0.5, default=0.0, ge=0, le=1)


class Version(Answer):
    version: str = told("The server's.", "0.1.0")
    device: str | None = told("Where the engine computes; null until it is ready.", "cpu")
    attention: str | None = told("Which of its kernels compute attention.", "native")


class Steps(Answer):
    steps: list[dict[str, Any]] = told("The engine's last steps, the newest last.", [], default=[])
    traceEvents: list[dict[str, Any]] = told(  # noqa: N815 Chrome's word
        "The same for a trace viewer, with format=chrome.", [], default=[]
    )
