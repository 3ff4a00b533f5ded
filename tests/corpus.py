"""Texts that tokenizers get wrong first, for every test that compares two of them."""

CORPUS = [
    "",
    " ",
    "\n",
    "The capital of France is",
    "Hello world",
    "I'll say it's fine, they'VE said WE'RE done; don't.",
    "naïve café, Ünïcödé, ŁÓDŹ, İstanbul, ß, ﬁ",
    "cafe\u0301 n\u0303 a\u0308\u0323\u0304 Z\u0351\u036b\u0343\u036a\u0302\u036ba\u0322lgo",
    "北京欢迎你。東京へようこそ！ 서울에 오신 것을 환영합니다",  # noqa: RUF001
    "مرحبا بالعالم، كيف حالك؟ שלום עולם नमस्ते दुनिया สวัสดีชาวโลก",
    "👋🏽 👩‍👩‍👧‍👦 🏴‍☠️ 🏳️‍🌈 🇫🇷🇩🇪🇯🇵 ❤️‍🔥 🤷🏻‍♀️ 🧑‍💻",
    "x² + y³ = ½ · ¾ ≤ ∞ ∑∏∫ ℝ→ℂ",  # noqa: RUF001
    "0 1 12 123 1234 12345 3.14159 1,000,000 0xDEADBEEF 1e-9 v2.0",
    "٠١٢٣ ১২৩ Ⅷ ⑤ 五百",
    "two  1 three   2 tab\t3 newline\n4",
    "def f(x):\n    if x > 0:\n\t\treturn {'a': [1, 2]}  # comment\n\n\n\nclass A: ...\n",
    "#include <stdio.h>\r\nint main(void) { return a->b && !c; }\r\n",
    "https://example.org/a/b?c=d&e=%20#f user@example.org",
    "a\tb\t\tc\n\n\nd \n e\r\r\nf\u00a0g\u2003h\u200bi\u3000j",
    " leading, trailing ",
    "x" + " " * 1000 + "y",
    "\n" * 300 + "\t" * 300 + " \n" * 300,
    "a" * 2000,
    "".join(map(chr, range(32))) + "\x7f\x80\x9f\xad\ufeff\ufffd\U0010ffff",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|>b <|endoftext|> c<|im_start|><|im_end|>",
    "<|im_start <|im_ end|> <|unknown|> <s> </s> <0x0A> ▁ Ġ Ċ",
    '`$+<=>^~|` "quoted" (parens) [brackets] — dash… “curly” ‘single’',  # noqa: RUF001
]
