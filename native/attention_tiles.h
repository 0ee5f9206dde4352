// The prefill form of attention: strips of query rows against blocks of keys, with a running maximum and sum.

constexpr int kStripKeys = 64;
constexpr int kStripQueries = 4 * kTileRows;  // queries (rows x heads of a group) of a strip, at least one row

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

template <class T, class TP>
inline void attend_strip(const Paged& pages, const Strip& strip, int64_t task) {
  const Attention& a = pages.a;
  int64_t group = a.heads / a.kv_heads, d = a.head_dim, dv = a.value_dim, s = strip.s;
  // Late rows see the most keys: they go first, so that the threads end together.
  int64_t kv_head = task % a.kv_heads, row = (strips_of(a, strip.rows) / a.kv_heads - 1 - task / a.kv_heads) * strip_rows(a);
  int64_t rows = strip.rows - row < strip_rows(a) ? strip.rows - row : strip_rows(a), queries = rows * group;
  int64_t tiles = (queries + kTileRows - 1) / kTileRows, position = a.lengths[s] + row;
  int64_t panels = (dv + kTileOuts - 1) / kTileOuts, acc_stride = panels * kTileOuts;
  float* q = scratch_of<float>(kOwn, tiles * kTileRows * (d + kStripKeys + acc_stride + 2));
  float *p = q + tiles * kTileRows * d, *acc = p + tiles * kTileRows * kStripKeys;
  float *largest = acc + tiles * kTileRows * acc_stride, *total = largest + tiles * kTileRows;
  float* keys = scratch_of<float>(kOwn2, kStripKeys * (d + acc_stride) + d + W);
  float *values = keys + kStripKeys * d, *nothing = values + kStripKeys * acc_stride;
  for (int64_t i = 0; i < d + W; i++) nothing[i] = 0;
  auto query = [&](int64_t i) {
    return (const T*)a.q + (strip.begin + row + i / group) * a.q_stride + (kv_head * group + i % group) * d;
  };
  for (int64_t t = 0; t < tiles; t++) {
    int64_t first = t * kTileRows, count = queries - first < kTileRows ? queries - first : kTileRows;
    pack_rows<float, T>([&](int m) { return query(first + m); }, int(count), kTileRows, d, q + first * d);
  }
  for (int64_t i = 0; i < tiles * kTileRows * d; i++) q[i] *= a.scale;
  for (int64_t i = 0; i < tiles * kTileRows; i++) largest[i] = -INFINITY, total[i] = 0;
  memset(acc, 0, tiles * kTileRows * acc_stride * sizeof(float));
  memset(p, 0, tiles * kTileRows * kStripKeys * sizeof(float));
  int64_t low = pages.first_key(position), high = position + rows;
  for (int64_t start = low / kStripKeys * kStripKeys; start < high; start += kStripKeys) {
    auto there = [&](int64_t key) {
      return key >= low && key < high && pages.live(s, key / a.page_tokens);
    };
    static_assert(kStripKeys % kTileOuts == 0, "whole panels of keys");
    const TP* at[kStripKeys];
    for (int j = 0; j < kStripKeys; j++) at[j] = there(start + j) ? (const TP*)a.pool + pages.offset(s, start + j) : nullptr;
    for (int j = 0; j < kStripKeys; j += kTileOuts)
      pack_rows<float, TP>([&](int r) { return at[j + r] ? at[j + r] + kv_head * d : (const TP*)nothing; }, kTileOuts,
                           kTileOuts, d, keys + j * d);
    for (int j = 0; j < kStripKeys; j++)
      for (int64_t column = 0; column < acc_stride; column += W) {
        int64_t rest = dv - column < W ? dv - column : W;
        F value = set1(0);
        if (at[j] && rest > 0) value = load_n(at[j] + a.kv_heads * d + kv_head * dv + column, int(rest));
        store(values + (column / kTileOuts * kStripKeys + j) * kTileOuts + column % kTileOuts, value);
      }
    for (int64_t t = 0; t < tiles; t++) {
      int64_t first = t * kTileRows;
      int count = int(queries - first < kTileRows ? queries - first : kTileRows);
      float c[kTileRows * kTileOuts];
      for (int j = 0; j < kStripKeys; j += kTileOuts) {
        multiply(q + first * d, keys + j * d, d, count, c);
        for (int m = 0; m < count; m++)
          memcpy(p + (first + m) * kStripKeys + j, c + m * kTileOuts, kTileOuts * sizeof(float));
      }
      for (int64_t i = first; i < first + count; i++) {
        int64_t mine = position + i / group, from = pages.first_key(mine) - start, to = mine + 1 - start;
        from = from < 0 ? 0 : from, to = to > kStripKeys ? kStripKeys : to;
        if (from >= to) {
          memset(p + i * kStripKeys, 0, kStripKeys * sizeof(float));
          continue;
        }
        float best;
        float part = soft_maximum(p + i * kStripKeys, kStripKeys, from, to, a.softcap, largest[i], &best);
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
        multiply<1, kStripKeys>(p + first * kStripKeys, values + panel * kStripKeys * kTileOuts, kStripKeys, count, c);
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
