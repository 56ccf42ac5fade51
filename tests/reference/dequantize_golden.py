"""Writes dequantize_golden.txt: random blocks of each format and the values that the Python `gguf` package gives them.

Usage: python tests/reference/dequantize_golden.py > tests/reference/dequantize_golden.txt   (needs gguf, numpy)
Each line: format, hex of the raw blocks, hex of the float32 values (big-endian digits, comma separated).
"""

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

# Byte offsets of the half-precision fields of a block, which must be finite.
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.F16: [0], T.BF16: [],
}


def random_half(rng):
    while True:
        bits = rng.integers(0, 1 << 16, dtype=np.uint16)
        if (bits >> 10) & 0x1F != 0x1F:
            return np.frombuffer(bits.tobytes(), dtype=np.uint8)


def main():
    rng = np.random.default_rng(20260101)
    for fmt, halves in HALVES.items():
        elements, size = GGML_QUANT_SIZES[fmt]
        count = {1: 64, 32: 4, 256: 2}[elements]
        raw = rng.integers(0, 256, size=(count, size), dtype=np.uint8)
        for block in raw:
            for offset in halves:
                block[offset : offset + 2] = random_half(rng)
            if fmt == T.BF16:
                block[1] &= 0xBF  # keeps the exponent away from infinity and NaN
        values = dequantize(raw.reshape(1, -1), fmt).reshape(-1).astype(np.float32)
        assert np.isfinite(values).all(), fmt
        bits = ",".join(f"{b:08x}" for b in values.view(np.uint32))
        print(fmt.name.lower(), raw.tobytes().hex(), bits)


if __name__ == "__main__":
    main()
