// One vector of float32, F, with W lanes, and what the kernels do with it. Included once per ISA, inside its namespace.
// FTC_ISA: 0 any CPU (compiler vectors of 16 bytes), 1 AVX2 + FMA, 2 AVX-512, 3 AVX-512 with bfloat16 dot products.

inline float to_float(float a) { return a; }
inline float to_float(bf16 a) {
  uint32_t bits = uint32_t(a.bits) << 16;
  float out;
  __builtin_memcpy(&out, &bits, 4);
  return out;
}
inline void put(float* p, float a) { *p = a; }
inline void put(bf16* p, float a) {
  uint32_t bits;
  __builtin_memcpy(&bits, &a, 4);
  p->bits = a != a ? uint16_t(bits >> 16 | 64) : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#if FTC_ISA >= 2
typedef __m512 F;
typedef __m512i I;
constexpr int W = 16;
inline F set1(float a) { return _mm512_set1_ps(a); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline F widen(__m256i a) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a), 16)); }
inline F load(const bf16* p) { return widen(_mm256_loadu_si256((const __m256i*)p)); }
inline F load_n(const float* p, int n) { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
inline F load_n(const bf16* p, int n) { return widen(_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p)); }
inline __m256i narrow(F a) {
#if FTC_ISA == 3
  return (__m256i)_mm512_cvtneps_pbh(a);
#else
  I bits = _mm512_castps_si512(a);
  I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  I rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  I quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
}
inline void store(float* p, F a) { _mm512_storeu_ps(p, a); }
inline void store(bf16* p, F a) { _mm256_storeu_si256((__m256i*)p, narrow(a)); }
inline void store_n(float* p, F a, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a); }
inline void store_n(bf16* p, F a, int n) { _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), narrow(a)); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline __m128 quarter(F a) {
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
#elif FTC_ISA == 1
typedef __m256 F;
typedef __m256i I;
constexpr int W = 8;
inline F set1(float a) { return _mm256_set1_ps(a); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline F load(const bf16* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
inline __m128i narrow(F a) {
  I bits = _mm256_castps_si256(a);
  I odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  I rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  I quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  I nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  rounded = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  I packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
  return _mm256_castsi256_si128(packed);
}
inline void store(float* p, F a) { _mm256_storeu_ps(p, a); }
inline void store(bf16* p, F a) { _mm_storeu_si128((__m128i*)p, narrow(a)); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
inline F min(F a, F b) { return _mm256_min_ps(a, b); }
inline __m128 quarter(F a) { return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)); }
#else
typedef float F __attribute__((vector_size(16)));
typedef int32_t I __attribute__((vector_size(16)));
constexpr int W = 4;
inline F set1(float a) { return F{a, a, a, a}; }
inline F load(const float* p) {
  F a;
  __builtin_memcpy(&a, p, sizeof a);
  return a;
}
inline F load(const bf16* p) {
  typedef uint16_t H __attribute__((vector_size(16)));
  H a = {}, zero = {};
  __builtin_memcpy(&a, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  return (F)__builtin_shufflevector(a, zero, 0, 8, 1, 9, 2, 10, 3, 11);
#else
  return (F)__builtin_shufflevector(zero, a, 0, 8, 1, 9, 2, 10, 3, 11);
#endif
}
inline void store(float* p, F a) { __builtin_memcpy(p, &a, sizeof a); }
inline void store(bf16* p, F a) {
  for (int i = 0; i < W; i++) put(p + i, a[i]);
}
inline F fma(F a, F b, F c) { return a * b + c; }
inline F max(F a, F b) { return a > b ? a : b; }
inline F min(F a, F b) { return a < b ? a : b; }
inline F quarter(F a) { return a; }
#endif

#if FTC_ISA < 2
template <class T>
inline F load_n(const T* p, int n) {
  if (n >= W) return load(p);
  float part[W] = {};
  for (int i = 0; i < n; i++) part[i] = to_float(p[i]);
  return load(part);
}
template <class T>
inline void store_n(T* p, F a, int n) {
  if (n >= W) return store(p, a);
  for (int i = 0; i < n; i++) put(p + i, ((const float*)&a)[i]);
}
#endif

// Sums of the lanes of four vectors. Every lane takes the same order of additions, so a row's bits do not depend on
// which of the four it is.
inline void sum4(F a, F b, F c, F d, float* out) {
  auto qa = quarter(a), qb = quarter(b), qc = quarter(c), qd = quarter(d);
#if FTC_ISA >= 1
  _mm_storeu_ps(out, _mm_hadd_ps(_mm_hadd_ps(qa, qb), _mm_hadd_ps(qc, qd)));
#else
  out[0] = (qa[0] + qa[1]) + (qa[2] + qa[3]);
  out[1] = (qb[0] + qb[1]) + (qb[2] + qb[3]);
  out[2] = (qc[0] + qc[1]) + (qc[2] + qc[3]);
  out[3] = (qd[0] + qd[1]) + (qd[2] + qd[3]);
#endif
}
inline float sum(F a) {
  float out[4];
  sum4(a, set1(0), set1(0), set1(0), out);
  return out[0];
}
inline float top(F a) {
#if FTC_ISA >= 2
  return _mm512_reduce_max_ps(a);
#elif FTC_ISA == 1
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
#else
  float low = a[0] > a[1] ? a[0] : a[1], high = a[2] > a[3] ? a[2] : a[3];
  return low > high ? low : high;
#endif
}

// e^x with a relative error below 2e-7; exactly 0 below -87.3, NaN stays NaN.
inline F exp(F x) {
  F low = set1(-87.33f);
  F clamped = min(set1(88.72f), max(low, x));
  F magic = set1(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  F shifted = fma(clamped, set1(1.44269504088896341f), magic);
  F n = shifted - magic;
  F r = fma(n, set1(-0.693145751953125f), clamped);
  r = fma(n, set1(-1.42860682030941723e-6f), r);
  F p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r) + set1(1.f);
#if FTC_ISA >= 2
  I bits = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(shifted), 23));
  return _mm512_mask_mov_ps(_mm512_castsi512_ps(bits), _mm512_cmp_ps_mask(x, low, _CMP_LT_OQ), set1(0));
#elif FTC_ISA == 1
  I bits = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(shifted), 23));
  return _mm256_blendv_ps(_mm256_castsi256_ps(bits), set1(0), _mm256_cmp_ps(x, low, _CMP_LT_OQ));
#else
  typedef uint32_t U __attribute__((vector_size(16)));
  F power = (F)((U)p + ((U)shifted << 23));
  return x < low ? set1(0) : power;
#endif
}
inline F sigmoid(F x) { return set1(1.f) / (set1(1.f) + exp(set1(0) - x)); }
inline F tanh(F x) { return set1(1.f) - set1(2.f) / (exp(x + x) + set1(1.f)); }

// Into the second-level cache: on a Zen 4 core a bfloat16 row product streams 41 GB/s this way, 29 GB/s into the first.
inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

// Weights in cache from which two threads are faster than one: 256 KiB take 4.5 us on one, starting the other takes 2.
constexpr int64_t kWorthBytes = 262144;

// Runs body() once per thread of the shared pool; barrier() inside it waits for all of them.
template <class Body>
inline void parallel(bool worth, Body body) {
  int count = worth ? threads() : 1;
  if (count == 1) {
    body();
    return;
  }
#pragma omp parallel num_threads(count)
  body();
}
inline void barrier() {
#pragma omp barrier
}

// Hands out 0..count-1 to the threads, each number once. Who takes which number never changes a result.
struct Tasks {
  std::atomic<int64_t> next{0};
  template <class Body>
  void run(int64_t count, Body body) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
  }
};

template <class Body>
inline void with_type(int dtype, Body body) {
  if (dtype == kBfloat) body((bf16*)nullptr);
  else body((float*)nullptr);
}
