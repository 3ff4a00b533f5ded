"""What the values of `tokenizer.ggml.pre` in GGUF files stand for: how byte-level BPE cuts a text.

GGUF stores but the name; the rules are in the tokenizer.json of the model that it was coined for,
and in `llm_tokenizer_bpe` of llama.cpp's src/llama-vocab.cpp. Knows no vocabulary.
"""

from dataclasses import dataclass, replace

from tokenizers import Regex
from tokenizers.normalizers import NFC, Normalizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    pre_tokenizer: PreTokenizer
    normalizer: Normalizer | None = None
    ignore_merges: bool = False
    """A word that is a token stays whole, even where no sequence of merges makes it."""
    add_bos: bool = False
    """What holds where the file doesn't say."""


def _split(*patterns: str) -> PreTokenizer:
    """Cut the text by each pattern in turn, every match and every gap a piece of its own."""
    cuts: list[PreTokenizer] = [Split(Regex(pattern), "isolated") for pattern in patterns]
    return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])


GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K_WORDS = (
    r"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{suffix}"
    r"|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{suffix}|{numbers}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Words begin anew at a capital."""
DEEPSEEK_LETTERS = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-"
    "\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-"
    "\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-"
    "\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f"
    "\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-"
    "\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-"
    "\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""The letters with case of an old Unicode."""
DEEPSEEK_SIGNS = r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+"
EAST_ASIAN = r"[\x{0800}-\x{9FA5}\x{AC00}-\x{D7FF}]+"

_GPT2 = Rules(pre_tokenizer=ByteLevel(add_prefix_space=False))
_DIGIT_BY_DIGIT = Rules(
    pre_tokenizer=Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
)
_CL100K = Rules(pre_tokenizer=_split(CL100K_WORDS.format(numbers=r"\p{N}{1,3}")))
_LLAMA3 = replace(_CL100K, ignore_merges=True, add_bos=True)
_QWEN2 = Rules(pre_tokenizer=_split(CL100K_WORDS.format(numbers=r"\p{N}")), normalizer=NFC())
_TEKKEN = O200K_WORDS.format(upper=UPPER, lower=LOWER, suffix="", numbers=r"\p{N}")
_O200K = O200K_WORDS.format(
    upper=UPPER, lower=LOWER, suffix="(?i:'s|'t|'re|'ve|'m|'ll|'d)?", numbers=r"\p{N}{1,3}"
)

RULES = {
    # What llama.cpp does with files that name no rules of their own, made before `pre` existed.
    "default": Rules(
        pre_tokenizer=_split(r"[\p{P}$+<=>^~|]+", GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]")
    ),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt"), _GPT2),
    "olmo": replace(_GPT2, normalizer=NFC()),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _CL100K),
    **dict.fromkeys(("qwen2", "stablelm2"), _QWEN2),
    "deepseek-r1-qwen": replace(_QWEN2, normalizer=None),
    **dict.fromkeys(("smollm", "starcoder", "refact"), _DIGIT_BY_DIGIT),
    "command-r": replace(_DIGIT_BY_DIGIT, normalizer=NFC()),
    "tekken": Rules(pre_tokenizer=_split(_TEKKEN), ignore_merges=True, add_bos=True),
    "gpt-4o": Rules(pre_tokenizer=_split(_O200K)),
    "falcon": Rules(pre_tokenizer=_split(r"[\p{P}$+<=>^~|`]+", GPT2_WORDS, "[0-9][0-9][0-9]")),
    "deepseek-llm": Rules(
        pre_tokenizer=_split(
            *("[\r\n]", rf"\s?[{DEEPSEEK_LETTERS}]+", DEEPSEEK_SIGNS),
            *(r"\s+$", EAST_ASIAN, r"\p{N}+"),
        )
    ),
    "deepseek-coder": Rules(
        pre_tokenizer=_split("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN, r"\p{N}")
    ),
}
