// Element-wise kernels over the abstract vector machine; see matmul_impl.h for how it is included.

// e^x = power * 2^n, of x that is in range; the low bits of `shifted` hold n.
// x = n ln 2 + r, with ln 2 in two parts so that r is exact enough; a polynomial for e^r on |r| <= ln 2 / 2.
struct ExpParts {
  VF power, shifted;
};
BATON_INLINE ExpParts SplitExp(VF x) {
  const VF magic = Set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, which the low bits then hold
  const VF shifted = Fma(x, Set1(1.44269504f), magic);
  const VF n = Sub(shifted, magic);
  VF r = Fma(n, Set1(-0.693145752f), x);
  r = Fma(n, Set1(-1.42860677e-6f), r);
  VF p = Set1(1.0f / 5040);
  p = Fma(p, r, Set1(1.0f / 720));
  p = Fma(p, r, Set1(1.0f / 120));
  p = Fma(p, r, Set1(1.0f / 24));
  p = Fma(p, r, Set1(1.0f / 6));
  p = Fma(p, r, Set1(0.5f));
  p = Fma(p, r, Set1(1.0f));
  p = Fma(p, r, Set1(1.0f));
  return {p, shifted};
}
// 2^(n + bias - 127); the magic number's own bits fall out at the top.
BATON_INLINE VF PowerOfTwo(VF shifted, int bias) { return FromBits(ShiftLeft23(AddI(Bits(shifted), Set1I(bias)))); }

// e^x with a relative error of about 2^-23; 0 below -86.5, infinity above 88.72, NaN for NaN.
BATON_INLINE VF Exp(VF x) {
  const VF low = Set1(-86.5f), high = Set1(88.72f);
  // Lanes out of range compute with a harmless value and are replaced below. NaN passes both selections.
  const ExpParts e = SplitExp(SelectLess(x, low, low, SelectLess(high, x, high, x)));
  // n in [-125, 128]: 2^128 itself is out of range, so in two steps.
  const VF result = Mul(Mul(e.power, PowerOfTwo(e.shifted, 126)), Set1(2.0f));
  return SelectLess(x, low, Zero(), SelectLess(high, x, Set1(__builtin_inff()), result));
}

// The same bits for x that is not above 0 (or NaN), with fewer steps.
BATON_INLINE VF ExpNotPositive(VF x) {
  const VF low = Set1(-86.5f);
  const ExpParts e = SplitExp(Max(low, x));  // NaN stays
  return SelectLess(x, low, Zero(), Mul(e.power, PowerOfTwo(e.shifted, 127)));  // n in [-125, 0]
}

// 1 / (1 + e^-x)
BATON_INLINE VF Sigmoid(VF x) {
  const VF one = Set1(1.0f);
  return Div(one, Add(one, Exp(Sub(Zero(), x))));
}

// tanh(x) = 2 sigmoid(2x) - 1: absolute error of a few 2^-24.
BATON_INLINE VF Tanh(VF x) { return Sub(Mul(Set1(2.0f), Sigmoid(Add(x, x))), Set1(1.0f)); }

BATON_INLINE VF ApplyActivation(Activation act, VF x) {
  if (act == Activation::kSilu) return Mul(x, Sigmoid(x));
  // 0.5 (1 + tanh(u)) = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
  const VF cubic = Fma(Mul(Mul(x, x), x), Set1(0.044715f), x);
  return Mul(x, Sigmoid(Mul(cubic, Set1(1.59576912f))));
}

static void Gated(Activation act, float* gate, const float* up, int dim) {
  int i = 0;
  for (; i + 16 <= dim; i += 16) Store(gate + i, Mul(ApplyActivation(act, Load(gate + i)), Load(up + i)));
  if (i < dim) StoreN(gate + i, Mul(ApplyActivation(act, LoadN(gate + i, dim - i)), LoadN(up + i, dim - i)), dim - i);
}

static void ExpArray(const float* x, float* y, int n) {
  int i = 0;
  for (; i + 16 <= n; i += 16) Store(y + i, Exp(Load(x + i)));
  if (i < n) StoreN(y + i, Exp(LoadN(x + i, n - i)), n - i);
}

static void AddArray(float* x, const float* y, int dim) {
  for (int i = 0; i < dim; ++i) x[i] += y[i];
}

// The squares add up in 16 lanes, element i in lane i % 16, then in the fixed tree of ReduceAdd.
static void RmsNormRow(const float* x, int dim, const float* weight, float epsilon, float* y) {
  VF squares = Zero();
  int i = 0;
  for (; i + 16 <= dim; i += 16) {
    const VF v = Load(x + i);
    squares = Fma(v, v, squares);
  }
  if (i < dim) {
    const VF v = LoadN(x + i, dim - i);
    squares = Fma(v, v, squares);
  }
  const float mean = ReduceAdd(squares) / static_cast<float>(dim);
  const VF inverse = Set1(1.0f / __builtin_sqrtf(mean + epsilon));
  for (i = 0; i + 16 <= dim; i += 16) Store(y + i, Mul(Mul(Load(x + i), inverse), Load(weight + i)));
  if (i < dim) StoreN(y + i, Mul(Mul(LoadN(x + i, dim - i), inverse), LoadN(weight + i, dim - i)), dim - i);
}

// Products and differences are rounded one by one (no FMA), so any vectorization gives the same bits.
static void RopeRow(float* x, int num_heads, int head_dim, const float* cos, const float* sin, int rope_dim,
                    RopeStyle style) {
  const int half = rope_dim / 2;
  for (int head = 0; head < num_heads; ++head, x += head_dim) {
    if (style == RopeStyle::kHalves) {
      float* const high = x + half;
      for (int i = 0; i < half; ++i) {
        const float a = x[i], b = high[i];
        x[i] = a * cos[i] - b * sin[i];
        high[i] = a * sin[i] + b * cos[i];
      }
    } else {
      for (int i = 0; i < half; ++i) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cos[i] - b * sin[i];
        x[2 * i + 1] = a * sin[i] + b * cos[i];
      }
    }
  }
}

static void StoreKv(DType dtype, const float* src, int n, std::byte* dst) {
  if (dtype == DType::kF32) {
    memcpy(dst, src, n * sizeof(float));
    return;
  }
  int i = 0;
  if (dtype == DType::kF16) {
    for (; i + 16 <= n; i += 16) StoreHalf(dst + 2 * i, Load(src + i));
  }
  for (; i < n; ++i) {
    const uint16_t h = dtype == DType::kF16 ? FloatToHalf(src[i]) : FloatToBf16(src[i]);
    memcpy(dst + 2 * i, &h, sizeof h);
  }
}
