#include "tests/bench/peaks.h"

#include <immintrin.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace baton::bench {
namespace {

constexpr int kAttempts = 5;
constexpr int64_t kLoops = 1'000'000;  // a few milliseconds
constexpr size_t kHugePage = size_t{2} << 20;

std::atomic<int64_t> g_sink;  // keeps results alive

// `work(thread)` in all threads at once; seconds on `clock`. Threads on the cpu clock add up, hence the division.
template <typename Fn>
double TimeThreads(int threads, ClockKind clock, const Fn& work) {
  const double start = Seconds(clock);
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back([&work, i] { work(i); });
  work(0);
  for (std::thread& thread : others) thread.join();
  const double seconds = Seconds(clock) - start;
  return clock == ClockKind::kCpu ? seconds / threads : seconds;
}

// Twelve independent chains hide the latency; the empty assembly keeps the compiler from folding them.
#define BATON_PEAK_LOOP(type, statement)           \
  type acc[12];                                    \
  for (type& a : acc) a = type{};                  \
  for (int64_t i = 0; i < kLoops; ++i) {           \
    _Pragma("GCC unroll 12") for (int j = 0; j < 12; ++j) { \
      type a = acc[j];                             \
      statement;                                   \
      __asm__ volatile("" : "+v"(a));              \
      acc[j] = a;                                  \
    }                                              \
  }

__attribute__((target("avx512f"))) void F32Loop512() {
  const __m512 x = _mm512_set1_ps(1.0f + static_cast<float>(g_sink & 1)), y = _mm512_set1_ps(0.5f);
  BATON_PEAK_LOOP(__m512, a = _mm512_fmadd_ps(a, y, x))
  g_sink += static_cast<int64_t>(_mm512_cvtss_f32(acc[3]));
}

__attribute__((target("avx2,fma"))) void F32Loop256() {
  const __m256 x = _mm256_set1_ps(1.0f + static_cast<float>(g_sink & 1)), y = _mm256_set1_ps(0.5f);
  BATON_PEAK_LOOP(__m256, a = _mm256_fmadd_ps(a, y, x))
  g_sink += static_cast<int64_t>(_mm256_cvtss_f32(acc[3]));
}

__attribute__((target("avx512f,avx512vnni"))) void Int8Loop() {
  const __m512i x = _mm512_set1_epi8(static_cast<char>(g_sink & 3)), y = _mm512_set1_epi8(1);
  BATON_PEAK_LOOP(__m512i, a = _mm512_dpbusd_epi32(a, x, y))
  g_sink += _mm512_reduce_add_epi32(acc[3]);
}

__attribute__((target("avx512f,avx512bf16,avx512bw,avx512vl"))) void Bf16Loop() {
  const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_set1_ps(static_cast<float>(g_sink & 3)), _mm512_set1_ps(0.5f));
  BATON_PEAK_LOOP(__m512, a = _mm512_dpbf16_ps(a, x, x))
  g_sink += static_cast<int64_t>(_mm512_cvtss_f32(acc[3]));
}

struct __attribute__((packed)) TileConfig {
  uint8_t palette, start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// The kernel grants the tiles' large state to a process that asks.
bool MayUseTiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

template <bool kInt8>
__attribute__((target("amx-tile,amx-int8,amx-bf16"))) void TileLoop() {
  alignas(64) TileConfig config;
  std::memset(&config, 0, sizeof config);
  config.palette = 1;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = 16;
  }
  // gcc 12's intrinsic says that it reads eight bytes, and the other stores would be dropped.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t i = 0; i < kLoops / 16; ++i) {
    if constexpr (kInt8) {
      _tile_dpbusd(0, 4, 5);
      _tile_dpbusd(1, 4, 5);
      _tile_dpbusd(2, 4, 5);
      _tile_dpbusd(3, 4, 5);
    } else {
      _tile_dpbf16ps(0, 4, 5);
      _tile_dpbf16ps(1, 4, 5);
      _tile_dpbf16ps(2, 4, 5);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  _tile_release();
}

__attribute__((target("avx512f"))) int64_t Sum512(const uint8_t* p, size_t n) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (size_t i = 0; i < n; i += 256) {
    _mm_prefetch(reinterpret_cast<const char*>(p + i + 8192), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + i + 8192 + 64), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + i + 8192 + 128), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + i + 8192 + 192), _MM_HINT_T0);
    a = _mm512_add_epi64(a, _mm512_load_si512(p + i));
    b = _mm512_add_epi64(b, _mm512_load_si512(p + i + 64));
    c = _mm512_add_epi64(c, _mm512_load_si512(p + i + 128));
    d = _mm512_add_epi64(d, _mm512_load_si512(p + i + 192));
  }
  return _mm512_reduce_add_epi64(_mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d)));
}

int64_t SumPlain(const uint8_t* p, size_t n) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n; i += 8) {
    uint64_t word;
    std::memcpy(&word, p + i, sizeof word);
    sum += word;
  }
  return static_cast<int64_t>(sum);
}

bool HasAvx512() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"); }

// gcc 12 has no name for the tiles in __builtin_cpu_supports: leaf 7, EDX bits 22 (bf16), 24 (tile), 25 (int8).
bool HasTiles() {
  unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  constexpr unsigned kNeeded = 1u << 22 | 1u << 24 | 1u << 25;
  return (edx & kNeeded) == kNeeded && MayUseTiles();
}

// Giga-operations per second of `loop`, which does `per_loop` each.
double Rate(int threads, ClockKind clock, double per_loop, void (*loop)()) {
  double best = 0;
  for (int i = 0; i < kAttempts; ++i) {
    const double seconds = TimeThreads(threads, clock, [&](int) { loop(); });
    best = std::max(best, 1e-9 * threads * static_cast<double>(kLoops) * per_loop / seconds);
  }
  return best;
}

}  // namespace

PeakMeter::PeakMeter(int threads, size_t read_bytes) : threads_(threads), read_bytes_(read_bytes) {
  mapping_ = mmap(nullptr, read_bytes_ + 2 * kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    std::fprintf(stderr, "no memory to measure bandwidth in\n");
    std::abort();
  }
  memory_ = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(mapping_) + kHugePage - 1) / kHugePage * kHugePage);
  madvise(memory_, read_bytes_, MADV_HUGEPAGE);
  std::memset(memory_, 1, read_bytes_);
}

PeakMeter::~PeakMeter() { munmap(mapping_, read_bytes_ + 2 * kHugePage); }

// Each thread a contiguous share, as the kernels read weights.
double PeakMeter::Read(ClockKind clock) const {
  const bool wide = HasAvx512();
  const size_t share = read_bytes_ / static_cast<size_t>(threads_) / 256 * 256;
  const double seconds = TimeThreads(threads_, clock, [&](int thread) {
    const uint8_t* p = memory_ + static_cast<size_t>(thread) * share;
    g_sink += wide ? Sum512(p, share) : SumPlain(p, share);
  });
  return 1e-9 * static_cast<double>(share) * threads_ / seconds;
}

Peaks PeakMeter::Measure(ClockKind clock) {
  Peaks peaks;
  const auto rate = [&](double per_loop, void (*loop)()) { return Rate(threads_, clock, per_loop, loop); };
  if (HasAvx512()) {
    peaks.f32_gflops = rate(12 * 16 * 2, F32Loop512);
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    peaks.f32_gflops = rate(12 * 8 * 2, F32Loop256);
  }
  if (HasAvx512() && __builtin_cpu_supports("avx512vnni")) peaks.int8_gops = rate(12 * 64 * 2, Int8Loop);
  if (HasAvx512() && __builtin_cpu_supports("avx512bf16")) peaks.bf16_gflops = rate(12 * 32 * 2, Bf16Loop);
  if (HasTiles()) {
    // Four products of 16x64 by 64x16 bytes (16x32 by 32x16 in bf16) for each sixteen loops.
    peaks.amx_int8_gops = rate(4 * 16 * 16 * 64 * 2 / 16.0, TileLoop<true>);
    peaks.amx_bf16_gflops = rate(4 * 16 * 16 * 32 * 2 / 16.0, TileLoop<false>);
  }
  for (int i = 0; i < 3; ++i) peaks.read_gbps = std::max(peaks.read_gbps, Read(clock));
  return peaks;
}

}  // namespace baton::bench
