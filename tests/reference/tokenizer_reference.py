#!/usr/bin/env python3
"""Writes tests/model/tokenizer/testdata/{smollm2,gemma3}.golden: token ids of 2,000 varied strings.

References, each built from the vocabulary inside the GGUF file itself:
  SmolLM2  Hugging Face `tokenizers`: BPE(vocab, merges) after Digits(individual_digits) and
           ByteLevel(add_prefix_space=False, use_regex=True), the file's control tokens as special tokens.
  Gemma 3  Google `sentencepiece`: a BPE model with byte fallback, no dummy prefix and identity normalization. It knows no
           control tokens in text, so the text is first cut at them (leftmost, then longest), as Hugging Face does.

Format of a golden file: zlib of little-endian records: u32 text bytes, text, u32 count, u32 ids (special tokens in text
parsed, no bos), u32 count, u32 ids (special tokens in text as plain text), u32 bytes, decoded text of the first ids.

Usage: tokenizer_reference.py [MODEL_DIR]    (needs: gguf, tokenizers, sentencepiece)
"""

import os
import random
import re
import struct
import sys
import zlib

import gguf

SEED = 20261129
COUNT = 2000
ROOT = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(ROOT, "..", "model", "tokenizer", "testdata")

WORDS = (
    "the of cache token prefill decode worker router block attention transformer naïve café Straße Zürich smörgåsbord "
    "don't we'll I'm they've it's HTTP GPU kernel 42nd i18n snake_case camelCase PascalCase kebab-case résumé 2026 "
    "привет мир Ελληνικά שלום مرحبا بالعالم नमस्ते สวัสดีครับ こんにちは カタカナ 안녕하세요 ไทย Tiếng Việt ﬁligature İstanbul ŉ ǅ"
).split()
HAN = "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日军者意无力它与长把机十民第公此已工使情明性知全三又关点正业外将两高间由问很最重并物手应战向头文体政美相见被利什二等产或新己制身果加西斯月话合回特代内信表化老给世位次度门任常先海通教儿原东声提立及比员解水名真论处走义各入几口认条平系气题活尔更别打女变四神总何电数安少报才结反受目太量再感建务做接必场件计管期市直德资命山金指克许统区保至队形社便空决治展马科司五基眼书非则听白却界达光放强即像难且权思王象完设式色路记南品住告类求据程北边死张该交规万取拉格望觉术领共确传师观清今切院让识候带导争运"
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🤖", "❤️", "✨", "1️⃣", "☃", "🧑🏿‍🚀", "𝔘𝔫𝔦", "𝟙𝟚", "🀄", "𠜎", "🫠"]
CODE = [
    "for (int i = 0; i < n; ++i) {\n    sum += a[i] * b[i];\n}\n",
    "def f(x):\n\treturn x ** 2  # square\n\n\nprint(f(3.14e-10))\n",
    "SELECT * FROM t WHERE id IN (1, 2, 3) AND name LIKE '%foo%';",
    "<html>\n  <body class=\"a b\">&nbsp;<br/></body>\n</html>\n",
    "{\"key\": [1, 2.5, null, true], \"nested\": {\"a\\nb\": \"\\u00e9\"}}",
    "fn main() -> Result<(), Box<dyn Error>> { let v: Vec<_> = (0..10).map(|x| x * x).collect(); Ok(()) }",
    "#include <vector>\r\ntemplate <typename T>\r\nstruct S { T t; };\r\n",
    "$ grep -rn 'foo' . | awk '{print $1}' > /tmp/out.txt 2>&1 && echo \"done\"",
    "\\frac{\\partial f}{\\partial x} = \\sum_{i=0}^{\\infty} \\alpha_i x^{i-1}",
    "https://example.com/a/b?c=d&e=%20f#g  user@example.org  C:\\Windows\\System32",
]
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "\u2003", "\u2028", "\u200b", "\u202f", "\u0085", "\u180e",
          "\u1680", "\x0b", "\x0c", "\x1c"]
PUNCT = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»“”‘’…—–·•§¶©®™°±×÷√∞≠≤≥→←↑↓★☆■□▁¿¡"
MARKS = ["e\u0301", "a\u0308\u0323", "\u0627\u064b", "क्षि", "\ufeff", "\u200d", "\u202e", "\ufe0f", "\u0301"]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<unk>",
           "<pad>", "<0x0A>", "<unused7>", "<table>", "</code>", "<|im_start", "|im_end|>", "<repo_name>", "<file_sep>",
           "[multimodal]", "<start_of_image>", "<|IM_END|>", "<b", "<s>", "</s>", "<mask>"]


def any_char(rng):
    """A code point of any kind that UTF-8 can carry. Unassigned ones are left out: what class they have depends on the
    Unicode version that a library was built with."""
    import unicodedata

    while True:
        c = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x10000), rng.randrange(0x20000),
                        rng.randrange(0x110000)])
        if 0xD800 <= c < 0xE000 or unicodedata.category(chr(c)) == "Cn":
            continue
        # Python 3.11 has Unicode 14, as does the PCRE2 that Baton is built with.
        return chr(c)


def make_text(rng, i):
    if i == 0:
        return "\n"
    kind = i % 16
    n = rng.randrange(1, 24)
    pick = rng.choice
    if kind == 0:
        return " ".join(pick(WORDS) for _ in range(n))
    if kind == 1:
        return pick(CODE) + pick(CODE)[: rng.randrange(1, 60)]
    if kind == 2:
        return "".join(pick(HAN) for _ in range(n * 2)) + pick(["。", "，", "", "！"]) + pick(WORDS)
    if kind == 3:
        return "".join(pick(EMOJI) + pick(["", " ", "x"]) for _ in range(n))
    if kind == 4:
        return "".join(chr(rng.randrange(0, 32)) if rng.random() < 0.6 else pick("ab \x7f\x80\x9f") for _ in range(n))
    if kind == 5:
        return "".join(pick(SPACES) * rng.randrange(1, 40 if rng.random() < 0.2 else 5) + pick(["", "a", "1", "é", "中"])
                       for _ in range(n))
    if kind == 6:
        return "".join(pick(SPECIAL) + pick(["", " ", "user\n", "x", "\n"]) for _ in range(rng.randrange(1, 8)))
    if kind == 7:
        size = rng.choice([50, 200, 800]) + n
        alphabet = pick(["a", "ab", "abcdefghijklmnopqrstuvwxyz", "0123456789", "=", "-_", "ACGT", "щё", "字词"])
        return "".join(pick(alphabet) for _ in range(size))
    if kind == 8:
        return "".join(pick(PUNCT) * rng.randrange(1, 5) + pick(["", " ", "a"]) for _ in range(n))
    if kind == 9:
        return "".join(pick(["1", "23", "456", "7890", "12345678", "1,000", "3.14", "½", "²", "٣", "४", "Ⅷ", "一", "0x1F",
                             " ", "a"]) for _ in range(n))
    if kind == 10:
        return "".join(any_char(rng) for _ in range(n))
    if kind == 11:
        return "".join(pick(MARKS) + pick(["", "x", " "]) for _ in range(n))
    if kind == 12:
        return "".join(pick(["'s", "'S", "'t", "'re", "'ve", "'m", "'ll", "'d", "’s", "''", "I", "you", " ", "Don", "x'", "'"])
                       for _ in range(n))
    if kind == 13:
        return pick([" ", "", "\n", "  "]) + pick(WORDS).upper() + pick(SPACES) + pick(WORDS).title() + pick(["", " ", "\n", "\n\n", " \n "])
    if kind == 14:
        return "".join(pick([pick(WORDS), pick(HAN), pick(EMOJI), pick(PUNCT), pick(SPACES), pick(SPECIAL), pick(MARKS),
                             str(rng.randrange(10**6)), any_char(rng)]) for _ in range(n * 2))
    return "\n".join("\t" * rng.randrange(4) + " " * rng.randrange(9) + pick(CODE).split("\n")[0] for _ in range(rng.randrange(1, 5)))


def texts():
    rng = random.Random(SEED)
    return [make_text(rng, i) for i in range(COUNT)]


def field(reader, name):
    value = reader.fields.get("tokenizer.ggml." + name)
    return None if value is None else value.contents()


def smollm2(path):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    reader = gguf.GGUFReader(path)
    tokens, types = field(reader, "tokens"), field(reader, "token_type")
    merges = [tuple(m.split(" ")) for m in field(reader, "merges")]
    vocab = {t: i for i, t in enumerate(tokens)}

    def build(special):
        t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        t.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ])
        t.decoder = decoders.ByteLevel()
        if special:
            t.add_special_tokens([AddedToken(x, normalized=False) for x, y in zip(tokens, types) if y == 3])
        return t

    with_special, plain = build(True), build(False)
    return lambda text: (with_special.encode(text).ids, plain.encode(text).ids,
                         lambda ids: with_special.decode(ids, skip_special_tokens=False))


def gemma3(path):
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as pb

    reader = gguf.GGUFReader(path)
    tokens, types, scores = field(reader, "tokens"), field(reader, "token_type"), field(reader, "scores")
    model = pb.ModelProto()
    unk = field(reader, "unknown_token_id")
    for i, (token, kind, score) in enumerate(zip(tokens, types, scores)):
        piece = model.pieces.add()
        # The converter wrote the user-defined runs of U+2581 as spaces.
        piece.piece = token.replace(" ", "\u2581") if kind == 4 else token
        piece.score = score
        piece.type = 2 if i == unk else kind
    spec = model.trainer_spec
    spec.model_type = pb.TrainerSpec.BPE
    spec.byte_fallback = True
    spec.unk_id, spec.bos_id, spec.eos_id, spec.pad_id = unk, 2, 1, 0
    spec.vocab_size = len(tokens)
    norm = model.normalizer_spec
    norm.name = "identity"
    norm.add_dummy_prefix = False
    norm.remove_extra_whitespaces = False
    norm.escape_whitespaces = True
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    control = {t: i for i, (t, y) in enumerate(zip(tokens, types)) if y == 3}
    pattern = re.compile("|".join(re.escape(t) for t in sorted(control, key=len, reverse=True)))

    def encode(text):
        ids, at = [], 0
        for m in pattern.finditer(text):
            ids += sp.encode(text[at:m.start()])
            ids.append(control[m.group()])
            at = m.end()
        ids += sp.encode(text[at:])
        return ids

    def decode(ids):
        out, run = "", []
        for i in list(ids) + [None]:
            if i is not None and types[i] != 3:
                run.append(i)
                continue
            # sentencepiece decodes a control token to nothing; here its name is wanted.
            if run:
                out += sp.decode(run)
            run = []
            if i is not None:
                out += tokens[i]
        return out

    return lambda text: (encode(text), sp.encode(text), decode)


def write(name, tokenize, strings):
    blob = bytearray()
    for text in strings:
        ids, plain, decode = tokenize(text)
        data, back = text.encode(), decode(ids).encode()
        blob += struct.pack("<I", len(data)) + data
        for seq in (ids, plain):
            blob += struct.pack(f"<I{len(seq)}I", len(seq), *seq)
        blob += struct.pack("<I", len(back)) + back
    packed = zlib.compress(bytes(blob), 9)
    with open(os.path.join(OUT, name), "wb") as f:
        f.write(struct.pack("<I", len(blob)) + packed)
    print(name, len(strings), "strings", len(blob), "bytes,", len(packed), "packed")


def main():
    cache = os.environ.get("BATON_CACHE", os.path.expanduser("~/.cache/baton"))
    models = sys.argv[1] if len(sys.argv) > 1 else os.path.join(cache, "models")
    os.makedirs(OUT, exist_ok=True)
    strings = texts()
    write("smollm2.golden", smollm2(os.path.join(models, "SmolLM2-135M-Instruct.Q4_1.gguf")), strings)
    write("gemma3.golden", gemma3(os.path.join(models, "gemma-3-270m-q4_k_m.gguf")), strings)


if __name__ == "__main__":
    main()
