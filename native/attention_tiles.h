// The prefill form of attention: strips of query rows against blocks of keys, with a running maximum and sum.

constexpr int kStripKeys = 128;
constexpr int kStripQueries = 8 * kTileRows;  // queries (rows x heads of a group) of a strip, at least one row

// The prefill work of one sequence.
struct Strip {
  int64_t s, begin, rows, first_task;
};
inline int64_t strip_rows(const Attention& a) {
  int64_t group = a.heads / a.kv_heads;
  return group >= kStripQueries ? 1 : kStripQueries / group;
}
inline int64_t strips_of(const Attention& a, int64_t rows) {
  return (rows + strip_rows(a) - 1) / strip_rows(a) * a.kv_heads;
}

// Values of the keys of a strip, by column panels; absent keys (null) are zeros.
template <class C, class TP>
inline void pack_values(const TP* const* at, int64_t dv, int64_t panels, C* out) {
  constexpr int per_cell = std::is_same<C, Pair>::value ? 2 : 1;
  for (int j = 0; j < kStripKeys; j += per_cell)
    for (int64_t column = 0; column < panels * kTileOuts; column += W) {
      int rest = int(dv - column < 0 ? 0 : dv - column < W ? dv - column : W);
      C* to = out + (column / kTileOuts * kStripKeys + j) / per_cell * kTileOuts + column % kTileOuts;
#if FTC_ISA == 3
      if constexpr (per_cell == 2) {
        __mmask16 mask = (__mmask16)((1u << rest) - 1), low = at[j] ? mask : 0, high = at[j + 1] ? mask : 0;
        __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(low, at[j] + column));
        __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(high, at[j + 1] + column));
        _mm512_storeu_si512(to, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
      }
#endif
      if constexpr (per_cell == 1) store(to, at[j] ? load_n(at[j] + column, rest) : set1(0));
    }
}

// Scores and sums are float32; where there is a bfloat16 dot product and all is bfloat16, the weights of the values are
// rounded to bfloat16 for their product.
template <class T, class TP>
inline void attend_strip(const Paged& pages, const Strip& strip, int64_t task) {
  const Attention& a = pages.a;
  int64_t group = a.heads / a.kv_heads, d = a.head_dim, dv = a.value_dim, s = strip.s;
  // Late rows see the most keys: they go first, so that the threads end together.
  int64_t kv_head = task % a.kv_heads, row = (strips_of(a, strip.rows) / a.kv_heads - 1 - task / a.kv_heads) * strip_rows(a);
  int64_t rows = strip.rows - row < strip_rows(a) ? strip.rows - row : strip_rows(a), queries = rows * group;
  int64_t tiles = (queries + kTileRows - 1) / kTileRows, position = a.lengths[s] + row;
  int64_t panels = (dv + kTileOuts - 1) / kTileOuts, acc_stride = panels * kTileOuts;
  using C = Cell<T, TP>;
  using TW = std::conditional_t<std::is_same<C, Pair>::value, bf16, float>;  // of the weights of the values
  constexpr int64_t key_cells = std::is_same<C, Pair>::value ? kStripKeys / 2 : kStripKeys;
  int64_t d_cells = cells<C>(d), lanes = tiles * kTileRows;
  float* p = scratch_of<float>(kOwn, lanes * (kStripKeys + acc_stride + 2));
  float *acc = p + lanes * kStripKeys, *largest = acc + lanes * acc_stride, *total = largest + lanes;
  C* q = scratch_of<C>(kOwn2, lanes * d_cells + kStripKeys * (d_cells + acc_stride));
  C *keys = q + lanes * d_cells, *values = keys + kStripKeys * d_cells;
  TP* nothing = scratch_of<TP>(kOwn3, d + W);
  TW* weights = scratch_of<TW>(kOwn4, lanes * kStripKeys);
  memset(nothing, 0, (d + W) * sizeof(TP));
  memset(weights, 0, lanes * kStripKeys * sizeof(TW));
  auto query = [&](int64_t i) {
    return (const T*)a.q + (strip.begin + row + i / group) * a.q_stride + (kv_head * group + i % group) * d;
  };
  for (int64_t t = 0; t < tiles; t++) {
    int64_t first = t * kTileRows, count = queries - first < kTileRows ? queries - first : kTileRows;
    pack_rows<C, T>([&](int m) { return query(first + m); }, int(count), kTileRows, d, q + first * d_cells);
  }
  for (int64_t i = 0; i < lanes; i++) largest[i] = -INFINITY, total[i] = 0;
  memset(acc, 0, lanes * acc_stride * sizeof(float));
  int64_t low = pages.first_key(position), high = position + rows;
  for (int64_t start = low / kStripKeys * kStripKeys; start < high; start += kStripKeys) {
    static_assert(kStripKeys % kTileOuts == 0, "whole panels of keys");
    const TP* at[kStripKeys];
    key_addresses(pages, s, start, kStripKeys, low, high, at);
    for (int j = 0; j < kStripKeys; j += kTileOuts)
      pack_rows<C, TP>([&](int r) { return at[j + r] ? at[j + r] + kv_head * d : nothing; }, kTileOuts, kTileOuts, d,
                       keys + j * d_cells);
    for (int j = 0; j < kStripKeys; j++)
      if (at[j]) at[j] += a.kv_heads * d + kv_head * dv;
    pack_values(at, dv, panels, values);
    for (int64_t t = 0; t < tiles; t++) {
      int64_t first = t * kTileRows;
      int count = int(queries - first < kTileRows ? queries - first : kTileRows);
      float c[kTileRows * kTileOuts];
      for (int j = 0; j < kStripKeys; j += kTileOuts) {
        multiply(q + first * d_cells, keys + j * d_cells, d_cells, count, c);
        for (int m = 0; m < count; m++)
          memcpy(p + (first + m) * kStripKeys + j, c + m * kTileOuts, kTileOuts * sizeof(float));
      }
      for (int64_t i = first; i < first + count; i++) {
        int64_t mine = position + i / group, from = pages.first_key(mine) - start, to = mine + 1 - start;
        from = from < 0 ? 0 : from, to = to > kStripKeys ? kStripKeys : to;
        if (from >= to) {
          memset(weights + i * kStripKeys, 0, kStripKeys * sizeof(TW));
          continue;
        }
        float best;
        float part = soft_maximum(p + i * kStripKeys, kStripKeys, from, to, a.scale, a.softcap, largest[i], &best);
        for (int j = 0; j < kStripKeys; j += W) store(weights + i * kStripKeys + j, load(p + i * kStripKeys + j));
        if (best != largest[i]) {
          float shrink = largest[i] == -INFINITY ? 0 : expf(largest[i] - best);
          total[i] *= shrink;
          for (int64_t j = 0; j < acc_stride; j += W)
            store(acc + i * acc_stride + j, load(acc + i * acc_stride + j) * set1(shrink));
          largest[i] = best;
        }
        total[i] += part;
      }
      for (int64_t panel = 0; panel < panels; panel++) {
        multiply<1, key_cells>((const C*)(weights + first * kStripKeys), values + panel * key_cells * kTileOuts, key_cells,
                               count, c);
        for (int m = 0; m < count; m++)
          for (int j = 0; j < kTileOuts; j += W) {
            float* to = acc + (first + m) * acc_stride + panel * kTileOuts + j;
            store(to, load(to) + load(c + m * kTileOuts + j));
          }
      }
    }
  }
  for (int64_t i = 0; i < queries; i++) {
    int64_t to = strip.begin + row + i / group, head = kv_head * group + i % group;
    if (pages.fault[to]) {
      fill_nan<T>(a, to, head);
      continue;
    }
    float sink = sink_of(a, head), factor = 1.f / total[i];
    if (sink > largest[i]) factor = expf(largest[i] - sink) / (total[i] * expf(largest[i] - sink) + 1.f);
    else if (sink > -INFINITY) factor = 1.f / (total[i] + expf(sink - largest[i]));
    T* out = (T*)a.out + (to * a.heads + head) * dv;
    for (int64_t j = 0; j < dv; j += W) {
      int rest = int(dv - j < W ? dv - j : W);
      store_n(out + j, load_n(acc + i * acc_stride + j, rest) * set1(factor), rest);
    }
  }
}
