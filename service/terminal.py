"""Answers in the terminal, from an engine of its own: no server, one conversation at a time.

An event loop in a thread drives the engine, so that the main thread may wait for the keyboard:
Ctrl-C there cancels the answer as a client who goes away does.
"""

import asyncio
import contextlib
import secrets
import sys
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from model.batch import SamplingParams
from model.errors import ModelError
from service.config import SamplingConfig
from service.engine.messages import Request
from service.engine.protocol import Engine, EngineStatus, EngineUnavailableError
from service.errors import CommandError
from service.text.chat_template import ChatTemplateError
from service.text.model import TextModel

with contextlib.suppress(ImportError):  # gives input() history and editing, where Python has it
    import readline  # noqa: F401

BAR_CHARS = 20
POLL_SECONDS = 0.05
CLEAR_LINE = "\r\x1b[K"
NOT_UTF8 = "the text holds bytes that are no UTF-8: write it anew, in a terminal that speaks UTF-8"
CHAT_HELP = "Ctrl-C stops an answer, /reset forgets the conversation, /exit or Ctrl-D leaves."


class AnswerError(CommandError):
    """There is no answer to give."""


class Session:
    """A loaded model that answers one prompt after the other. Its methods block."""

    def __init__(
        self,
        engine: Engine,
        text: TextModel,
        config: SamplingConfig,
        run: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._engine = engine
        self._text = text
        self._config = config
        self._run = run

    def complete(self, prompt: str) -> None:
        """Print how the prompt goes on."""
        self._print_answer(self._encode(prompt, add_special_tokens=True), print_piece)

    def reply(self, messages: list[dict[str, str]]) -> None:
        """Print the answer to a conversation, and append as much of it as was printed."""
        pieces: list[str] = []

        def keep(piece: str) -> None:
            pieces.append(piece)
            print_piece(piece)

        try:
            self._print_answer(self._encode_chat(messages), keep)
        finally:
            messages.append({"role": "assistant", "content": "".join(pieces)})

    def _encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        try:
            prompt = self._text.chat_template.render(messages)
        except ChatTemplateError as error:
            raise AnswerError(str(error)) from None
        return self._encode(prompt, add_special_tokens=False)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            return self._text.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except ValueError:  # Python makes lone surrogates of a command line's invalid bytes
            raise AnswerError(NOT_UTF8) from None

    def _print_answer(self, prompt_ids: list[int], write: Callable[[str], None]) -> None:
        try:
            self._run(self._stream(prompt_ids, write))
        except EngineUnavailableError as error:
            raise AnswerError(f"{error}: try again") from None
        finally:
            print()

    async def _stream(self, prompt_ids: list[int], write: Callable[[str], None]) -> None:
        request = self._request(prompt_ids)
        detokenizer = self._text.tokenizer.detokenizer()
        async with self._engine.submit(request) as events:
            async for event in events:
                write("".join(map(detokenizer.push, event.token_ids)))
                if event.finish_reason in ("error", "unavailable"):
                    raise AnswerError(event.message)
        write(detokenizer.flush())

    def _request(self, prompt_ids: list[int]) -> Request:
        assert self._engine.info is not None, "the engine is ready"
        room = self._engine.info.max_model_len - len(prompt_ids)
        if not prompt_ids or room < 1:
            raise AnswerError(
                f"the prompt has {len(prompt_ids)} tokens: this model takes 1 to "
                f"{self._engine.info.max_model_len - 1}, the answer included"
            )
        return Request(
            id=uuid.uuid4().hex,
            prompt_ids=prompt_ids,
            max_tokens=min(self._config.max_tokens, room),
            sampling=sampling_params(self._config),
            stop_token_ids=self._text.tokenizer.eos_ids,
        )


def sampling_params(config: SamplingConfig) -> SamplingParams:
    seed = secrets.randbits(63) if config.seed is None else config.seed
    return SamplingParams(temperature=config.temperature, top_p=config.top_p, seed=seed)


@contextlib.contextmanager
def open_session(
    engine: Engine, model_path: Path, load_text: Callable[[Path], TextModel], config: SamplingConfig
) -> Iterator[Session]:
    """Load the model, and end the engine when the session is left."""
    with background_loop() as run:
        run(engine.start(model_path))
        try:
            text = load_text(model_path)
            run(until_ready(engine))
            yield Session(engine, text, config, run)
        finally:
            run(engine.stop())


@contextlib.contextmanager
def background_loop() -> Iterator[Callable[[Coroutine[Any, Any, None]], None]]:
    """Gives a function that runs a coroutine in the loop's thread and waits for its end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="engine loop")

    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    thread.start()
    try:
        yield run
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def until_ready(engine: Engine) -> None:
    """Show what is being loaded, on a terminal. Raises ModelError if the engine can't start."""
    while (status := engine.status).phase != "ready":
        if status.phase == "failed":
            raise ModelError(status.detail)
        show(describe(status))
        await asyncio.sleep(POLL_SECONDS)
    show("")


def describe(status: EngineStatus) -> str:
    """With a bar, where it is known how much is done."""
    text = f"{status.phase} {status.detail}"
    if not status.fraction:
        return text
    return f"[{'#' * int(status.fraction * BAR_CHARS):{BAR_CHARS}}] {status.fraction:.0%} {text}"


def show(line: str) -> None:
    if sys.stderr.isatty():
        print(f"{CLEAR_LINE}{line}", end="", file=sys.stderr, flush=True)


def print_piece(piece: str) -> None:
    print(piece, end="", flush=True)


def chat(session: Session) -> None:
    """Take turns until the user leaves."""
    print(CHAT_HELP)
    messages: list[dict[str, str]] = []
    while (line := read_line()) not in (None, "/exit"):
        if line == "/reset":
            messages.clear()
        elif line:
            take_turn(session, messages, line)


def read_line() -> str | None:
    """What the user typed; None at the end of input."""
    print()
    try:
        return input("> ").strip()
    except EOFError:
        print()
        return None
    except KeyboardInterrupt:
        print(f"\n{CHAT_HELP}")
        return ""
    except UnicodeDecodeError:
        print(f"octavo: {NOT_UTF8}", file=sys.stderr)
        return ""


def take_turn(session: Session, messages: list[dict[str, str]], line: str) -> None:
    messages.append({"role": "user", "content": line})
    try:
        session.reply(messages)
    except KeyboardInterrupt:
        pass  # what was printed of the answer stays in the conversation
    except AnswerError as error:
        del messages[-2:]  # the turn can be tried again
        print(f"octavo: {error}", file=sys.stderr)
