// Pieces of sample that go over a whole row of logits.

inline float row_max(const float* x, int64_t count) {
  F a = set1(-INFINITY), b = a;
  int64_t i = 0;
  for (; i + 2 * W <= count; i += 2 * W) a = max(load(x + i), a), b = max(load(x + i + W), b);
  float best = top(max(a, b));
  for (; i < count; i++) best = x[i] > best ? x[i] : best;
  return best;
}

// a where condition(x, y) holds, else 0.
#if FTC_ISA >= 2
inline F where_at_least(F x, F y, F a) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, y, _CMP_GE_OQ), a); }
inline F where_above(F x, F y, F a) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, y, _CMP_GT_OQ), a); }
#elif FTC_ISA == 1
inline F where_at_least(F x, F y, F a) { return _mm256_and_ps(_mm256_cmp_ps(x, y, _CMP_GE_OQ), a); }
inline F where_above(F x, F y, F a) { return _mm256_and_ps(_mm256_cmp_ps(x, y, _CMP_GT_OQ), a); }
#else
inline F where_at_least(F x, F y, F a) { return x >= y ? a : set1(0); }
inline F where_above(F x, F y, F a) { return x > y ? a : set1(0); }
#endif

// Calls body(i, lanes) for each vector of a row and stores what it returns, summed by blocks.
template <class Body>
inline void sum_blocks(int64_t count, double* sums, Body body) {
  for (int64_t i = 0; i < count; i += kMassBlock) {
    F total = set1(0);
    for (int64_t j = i; j < i + kMassBlock && j < count; j += W)
      total = total + body(j, int(count - j < W ? count - j : W));
    sums[i / kMassBlock] = sum(total);
  }
}

inline void row_mass(const float* x, float* mass, int64_t count, float top, float inverse_temperature, double* sums) {
  F shift = set1(top), factor = set1(inverse_temperature), zero = set1(0);
  sum_blocks(count, sums, [&](int64_t i, int n) {
    F value = exp((load_n(x + i, n) - shift) * factor);
    value = where_above(value, zero, value);  // NaN has no mass
    store_n(mass + i, value, n);
    return n == W ? value : load_n(mass + i, n);
  });
}

inline void row_above(const float* x, const float* mass, int64_t count, float from, int64_t* number, double* total) {
  F level = set1(from), one = set1(1);
  *number = 0, *total = 0;
  // Counts stay exact and sums close as long as a run of 2^16 lanes is added up in float32.
  for (int64_t i = 0; i < count;) {
    int64_t end = count - i < 65536 ? count : i + 65536;
    F counts = set1(0), sums = set1(0);
    for (; i + W <= end; i += W) {
      F at = load(x + i);
      counts = counts + where_at_least(at, level, one), sums = sums + where_at_least(at, level, load(mass + i));
    }
    *number += int64_t(sum(counts)), *total += sum(sums);
    for (; i < end; i++)
      if (x[i] >= from) ++*number, *total += mass[i];
  }
}

inline void row_keep(const float* x, float* mass, int64_t count, float cut, float least, double* sums) {
  F level = set1(cut), floor = set1(least);
  sum_blocks(count, sums, [&](int64_t i, int n) {
    F value = load_n(mass + i, n);
    value = where_above(load_n(x + i, n), level, where_at_least(value, floor, value));
    store_n(mass + i, value, n);
    return n == W ? value : load_n(mass + i, n);
  });
}
