#!/usr/bin/env python3
"""Does what `baton tokenizer export` writes load in Hugging Face's libraries, and give the ids that Baton gives?

    tokenizer_export_check.py BATON MODEL.gguf

Needs tokenizers, transformers and jinja2. Exits with 1 and the first differences when something differs.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

FIXED = [
    "Hello world", " leading", "trailing ", "a  b   c    d", "tabs\tand\nnew\n\nlines\r\n", "1234567890 3.14 1,000",
    "don't WE'LL I'm they'd", "naïve café Ünïcödé", "日本語のテキスト。中文字符", "Привет, мир! Γειά σου", "🙂👩‍👩‍👧‍👦🏳️‍🌈", "ﷺ ß ẞ İ ı",
    "e\u0301 vs \u00e9", "<|im_start|>user\nHi<|im_end|>\n", "<start_of_turn>user\nHi<end_of_turn>\n", "<b>bold</b>",
    "def f(x):\n    return x ** 2  # comment\n", "\u200b\u00a0\u3000", "x" * 300, "0" * 50, "=" * 40 + "\n" + "-" * 40,
]


def random_text(rng):
    pools = ["abc XYZ", "0123 ", " \n\t", "éüñ", "あい漢", "🙂", ".,;:!?'\"()[]{}<>", "\u0301\u200d"]
    return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randrange(1, 200)))


def main():
    baton, model = sys.argv[1:]
    import transformers
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([baton, "tokenizer", "export", folder, "--model", model], check=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rng = random.Random(1)
    prose = (pathlib.Path(__file__).parent / "perplexity_text.txt").read_text()
    texts = FIXED + [prose] + [random_text(rng) for _ in range(60)]

    def ours(text, *flags):
        out = subprocess.run([baton, "tokenize", "--local", "--model", model, "--json", *flags, "-"],
                             input=(text + "\n").encode(), stdout=subprocess.PIPE, check=True)
        return json.loads(out.stdout)["token_ids"]

    wrong = 0
    for text in texts:
        for flags, theirs in (((), tokenizer.encode(text)), (("--no-special",), tokenizer.encode(text, add_special_tokens=False))):
            if ours(text, *flags) != theirs:
                wrong += 1
                print("differs:", repr(text[:80]), ours(text, *flags)[:12], theirs[:12])
    messages = [{"role": "user", "content": "Why is the sky blue?"}]
    if tokenizer.chat_template:
        chat = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        if ours(messages[0]["content"], "--chat") != tokenizer.encode(chat, add_special_tokens=False):
            wrong += 1
            print("differs: chat template", repr(chat))
    print(f"{2 * len(texts)} comparisons and the chat template, if there is one: {wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
