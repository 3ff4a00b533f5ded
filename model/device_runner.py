"""A runner for a device of its own: steps are launched, and collected while the next is computed.

    launch    on the host: pack; then, queued: upload, forward, draw, score
    collect   wait for the ids; logprobs and vectors, where they are asked for

A step of decodes alone is model.decoding's, by graphs where the kernels allow it; any other one is
packed as on a CPU. What is drawn stays on the device as well, for the next step to go on with.

Shapes: T packed tokens, S rows or draws.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from model.batch import Batch, Collect, Row, SampledToken, StepOutput
from model.decoding import Decoding, HostRows, Sizes, begun_pages, host_rows, is_decode
from model.device import Device, Wait
from model.graphs import Graphs
from model.kernels import PLAIN, Kernels
from model.kv_cache import CPU
from model.logits import adjusted
from model.sampling import Columns
from model.step import Computed, Step
from model.torch_runner import Cache, Model, TorchRunner


class DeviceRunner(TorchRunner):
    """Fulfils model.batch.OverlappingRunner."""

    def __init__(
        self,
        model: Model,
        cache: Cache,
        device: Device,
        *,
        max_model_len: int,
        max_sequences: int,
        captures: bool,
        kernels: Kernels = PLAIN,
        num_tokens: int | None = None,
    ) -> None:
        """cache: its last page is no sequence's, but padding's."""
        super().__init__(
            model,
            cache,
            max_model_len=max_model_len,
            kernels=kernels,
            num_tokens=num_tokens,
            place=device.place,
        )
        self.num_pages = cache.num_pages - 1
        self._device, self._captures = device, captures
        num_rows = max(max_sequences, 2)  # warm_up's
        self._sizes = Sizes(
            num_rows=num_rows,
            max_model_len=max_model_len,
            page_size=cache.page_size,
            spare_page=self.num_pages,
            vocab_size=self.vocab_size,
        )
        self._decoding = Decoding(self._sizes, device.place)
        self._graphs = Graphs(self._decode_first, device, most=num_rows)
        self._num_decoding = 0
        """How many rows the device can go on with as they are."""

    def run(self, batch: Batch) -> StepOutput:
        return self.launch(batch)()

    def launch(self, batch: Batch) -> Collect:
        is_plain = not batch.copies and all(map(is_decode, batch.rows))
        collect = self._launch_decodes(batch.rows) if is_plain else self._launch_any(batch)
        if self._captures and (size := self._graphs.take_missing()):
            self._device.submit(partial(self._capture, size))  # behind what clients wait for
            self._num_decoding = 0
        return collect

    def _upload(self, values: Tensor) -> Tensor:
        return self._device.upload(values)

    def _launch_decodes(self, rows: Sequence[Row]) -> Collect:
        size = self._graphs.size_for(len(rows))
        if self._goes_on_with(rows):
            begun = begun_pages(rows, self.page_size)
            news: HostRows | Tensor | None = torch.tensor(begun) if begun else None
        else:
            news = host_rows(rows, size, self._sizes)
        self._num_decoding = len(rows)
        wait = self._device.submit(partial(self._decode, news, size))

        def collect() -> StepOutput:
            ids_S, phases = _awaited(wait)
            sampled = [SampledToken(i) for i in ids_S[: len(rows)].tolist()]
            return StepOutput(sampled, phase_seconds=phases)

        return collect

    def _goes_on_with(self, rows: Sequence[Row]) -> bool:
        return len(rows) == self._num_decoding and all(
            row.drawn_by == index for index, row in enumerate(rows)
        )

    @torch.inference_mode()
    def _decode(self, news: HostRows | Tensor | None, size: int) -> Tensor:
        if isinstance(news, HostRows):
            self._decoding.write(news, self._upload)
        elif news is not None:
            self._decoding.write_pages(self._upload(news))
        self._graphs.run(size)
        return self._decoding.tokens_S[:size]

    @torch.inference_mode()
    def _decode_first(self, num_rows: int) -> None:
        """All of a step that a graph holds."""
        x_SW = self._model.hidden(self._decoding.batch(num_rows), self._cache)
        logits_SV = self._logits(x_SW).float()
        self._decoding.advance(self._sampler.draw_by(logits_SV, self._decoding.columns(num_rows)))

    @torch.inference_mode()
    def _capture(self, size: int) -> Tensor:
        """A step of padding alone, and what was drawn is kept."""
        tokens_S = self._decoding.tokens_S.clone()
        padding = host_rows([], self._sizes.num_rows, self._sizes)
        self._decoding.write(padding, self._upload)
        self._graphs.capture(size)
        return self._decoding.tokens_S.copy_(tokens_S)

    def _launch_any(self, batch: Batch) -> Collect:
        step = Step(batch, page_size=self.page_size)
        assert step.ragged.token_ids_T.max() < self.vocab_size
        self._num_decoding = 0
        computed: list[Computed] = []
        wait = self._device.submit(partial(self._compute, batch, step, computed))

        @torch.inference_mode()
        def collect() -> StepOutput:
            _, phases = _awaited(wait)
            return replace(self._output(step, computed[0]), phase_seconds=phases)

        return collect

    @torch.inference_mode()
    def _compute(self, batch: Batch, step: Step, computed: list[Computed]) -> Tensor:
        upload, tokens_S = self._upload, self._decoding.tokens_S
        if batch.copies:
            self._cache.copy(upload(torch.tensor(batch.copies)))
        ragged = step.ragged.moved(upload)
        places, drawn_by = step.unknown
        if places:
            known_S = tokens_S[upload(torch.tensor(drawn_by))]
            ragged.token_ids_T[upload(torch.tensor(places))] = known_S
        x_TW = self._model.hidden(ragged, self._cache)
        logits_SV = self._logits(x_TW[upload(step.drawn_at_S)])
        ids_S = self._draw(logits_SV, step)
        rows, draws = step.first_draws
        if rows:
            tokens_S[upload(torch.tensor(rows))] = ids_S[upload(torch.tensor(draws))]
        computed.append(Computed(x_TW, logits_SV, ids_S, self._scores(x_TW, step)))
        return ids_S

    def _draw(self, logits_SV: Tensor, step: Step) -> Tensor:
        """Ways to draw go there as all else does, since a copy of another kind waits."""
        positions, params, contexts = step.draws
        if not params:
            return torch.empty(0, dtype=torch.int64, device=self._place)
        draws = list(zip(positions, params, strict=True))
        columns = Columns.of(draws, vocab_size=self.vocab_size, device=CPU)
        adjusted_SV = adjusted(logits_SV.float(), params, contexts)
        return self._sampler.draw_by(adjusted_SV, Columns(*map(self._upload, columns)))


def _awaited(wait: Wait) -> tuple[Tensor, dict[str, float]]:
    """What was drawn, and the seconds that the host had nothing to do but wait for it."""
    started = time.perf_counter()
    ids_S = wait()
    return ids_S, {"wait": time.perf_counter() - started}
