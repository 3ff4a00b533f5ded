"""SentencePiece's two algorithms in plain Python to hold ours against, and the metadata of a small
vocabulary that was learnt from the corpus."""

from itertools import pairwise
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Metaspace
from tokenizers.trainers import BpeTrainer

from tests.corpus import CORPUS

Metadata = dict[str, Any]

SPECIAL = ["<s>", "</s>", "<unk>", "<|end|>"]
UNKNOWN_ID = 2
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
VOCAB_SIZE = 900


def learnt_pieces() -> list[str]:
    """The characters and then what they make, in the order in which it was learnt."""
    backend = Backend(BPE())
    backend.pre_tokenizer = Metaspace(prepend_scheme="never")
    texts = [text[:200] for text in CORPUS]
    trainer = BpeTrainer(vocab_size=VOCAB_SIZE, max_token_length=12, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    vocab = backend.get_vocab()
    return sorted(vocab, key=lambda piece: vocab[piece])


def small_metadata(**changes: Any) -> Metadata:
    """Shaped as Llama 2's; keys as after the last dot. Rare characters have no piece."""
    learnt = [p for p in learnt_pieces() if all(c < "\u0300" or c == "▁" for c in p)]
    tokens = [*SPECIAL, *BYTES, *learnt, "[user]"]
    first = len(SPECIAL) + len(BYTES)
    metadata: Metadata = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * first + [-float(rank) for rank in range(len(learnt))] + [0.0],
        "token_type": [3, 3, 2, 3] + [6] * 256 + [1] * len(learnt) + [4],
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    kept = {key: value for key, value in (metadata | changes).items() if value is not None}
    return {f"tokenizer.ggml.{key}": value for key, value in kept.items()}


class PlainSentencePiece:
    """Of texts without special tokens."""

    def __init__(self, metadata: Metadata) -> None:
        self.tokens = metadata["tokenizer.ggml.tokens"]
        types, scores = (metadata[f"tokenizer.ggml.{key}"] for key in ("token_type", "scores"))
        rows = zip(self.tokens, scores, types, strict=True)
        self.scores = {token: score for token, score, kind in rows if kind == 1}
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        self.prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
        self.squeezed = metadata.get("tokenizer.ggml.remove_extra_whitespaces", False)

    def normalized(self, text: str) -> str:
        if self.squeezed:
            text = " ".join(word for word in text.split(" ") if word)
        if self.prefix and text:
            text = " " + text
        return text.replace(" ", "▁")

    def bpe(self, text: str) -> list[int]:
        """The pair that makes the best piece is joined, the first one of equals."""
        parts = list(self.normalized(text))
        while known := ["".join(pair) for pair in pairwise(parts) if "".join(pair) in self.scores]:
            best = max(known, key=self.scores.__getitem__)
            pair = next(pair for pair in pairwise(parts) if "".join(pair) == best)
            at = next(i for i, found in enumerate(pairwise(parts)) if found == pair)
            parts[at : at + 2] = [best]
        return [token_id for part in parts for token_id in self.known(part)]

    def known(self, part: str) -> list[int]:
        if part in self.scores:
            return [self.ids[part]]
        return [self.ids[f"<0x{byte:02X}>"] for byte in part.encode()]

    def unigram(self, text: str) -> list[int]:
        """The best segmentation of each beginning of the text, from the shortest on."""
        text = self.normalized(text)
        lost = min(self.scores.values()) - 10
        best: list[tuple[float, list[str]]] = [(0.0, [])]
        for stop in range(1, len(text) + 1):
            candidates = []
            for start in range(max(0, stop - 16), stop):
                piece, (score, parts) = text[start:stop], best[start]
                if piece in self.scores:
                    candidates.append((score + self.scores[piece], [*parts, piece]))
                elif len(piece) == 1:
                    candidates.append((score + lost, [*parts, piece]))
            best.append(max(candidates, key=lambda candidate: candidate[0]))
        return self.fused(best[-1][1])

    def fused(self, parts: list[str]) -> list[int]:
        """Of several unknown characters in a row only one remains."""
        ids: list[int] = []
        for part in parts:
            token_id = self.ids[part] if part in self.scores else UNKNOWN_ID
            ids += [token_id] if token_id != UNKNOWN_ID or ids[-1:] != [token_id] else []
        return ids
