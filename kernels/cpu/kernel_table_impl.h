// The table of one instruction set; included last, see matmul_impl.h.

static KernelTable MakeTable(const char* name) {
  KernelTable t;
  t.name = name;
  t.quantize_row = QuantizeRow;
  t.matmul[0] = FloatMatMul<FloatKind::kF32>;
  t.matmul[1] = FloatMatMul<FloatKind::kF16>;
  t.matmul[2] = FloatMatMul<FloatKind::kBF16>;
  t.matmul[3] = IntegerMatMul<4, ScaleKind::kHalf>;
  t.matmul[4] = IntegerMatMul<4, ScaleKind::kHalfMin>;
  t.matmul[5] = IntegerMatMul<4, ScaleKind::kFloatMin>;
  t.matmul[6] = IntegerMatMul<8, ScaleKind::kHalf>;
  t.matmul[7] = IntegerMatMul<8, ScaleKind::kHalfMin>;
  t.matmul[8] = IntegerMatMul<8, ScaleKind::kFloatMin>;
  t.matmul[9] = IntegerMatMul<8, ScaleKind::kPair>;
  t.round_row = RoundRow;
  t.rounded_pair_bytes = kPairBytes;
  t.activation_cache_bytes = kActivationCacheBytes;
  t.matmul[kBf16DotLayout] = Bf16MatMul;
  t.attention = AttentionHead;
  t.merge_attention = MergeRecords;
  t.rms_norm = RmsNormRow;
  t.rope = RopeRow;
  t.gated = Gated;
  t.add = AddArray;
  t.store_kv = StoreKv;
  t.exp = ExpArray;
  return t;
}
