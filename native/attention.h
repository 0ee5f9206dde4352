// attention: writes new keys and values into the paged pool, then attends causally over each sequence.
// A sequence with up to kDecodeRows rows is split over key blocks; longer ones go tile by tile (attention_tiles.h).

constexpr int kDecodeRows = 8;
constexpr int64_t kKeyBlock = 256;  // keys of one decode task, at multiples of 256: the split never depends on threads

struct Paged {
  const Attention& a;
  int64_t token;       // elements of one token: keys of all heads, then values of all heads
  uint8_t* fault;      // per row: it needs a page that is not live
  int64_t faults = 0;

  int64_t first_key(int64_t position) const {
    return a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
  }
  bool live(int64_t s, int64_t index) const {
    if (index >= a.pages_per_sequence) return false;
    int32_t page = a.pages[s * a.pages_per_sequence + index];
    return page >= 0 && page < a.state[0];
  }
  // Offset in the pool of a token of a sequence; the page must be live.
  int64_t offset(int64_t s, int64_t position) const {
    int64_t page = a.pages[s * a.pages_per_sequence + position / a.page_tokens];
    return ((page * a.layers + a.layer) * a.page_tokens + position % a.page_tokens) * token;
  }

  explicit Paged(const Attention& args) : a(args), token(args.kv_heads * (args.head_dim + args.value_dim)) {
    fault = scratch_of<uint8_t>(kShared, a.offsets[a.sequences] + 1);
    for (int64_t s = 0; s < a.sequences; s++) {
      int64_t length = a.lengths[s], begin = a.offsets[s], end = a.offsets[s + 1];
      int64_t checked = 0, last_dead = -1;
      for (int64_t row = begin; row < end; row++) {
        int64_t position = length + row - begin;
        if (length < 0) {
          fault[row] = 1, faults++;
          continue;
        }
        int64_t low = first_key(position) / a.page_tokens, high = position / a.page_tokens;
        for (checked = checked < low ? low : checked; checked <= high; checked++)
          if (!live(s, checked)) last_dead = checked;
        fault[row] = last_dead >= low;
        faults += fault[row];
      }
    }
  }
};

template <class T, class TP>
inline void write_token(const Paged& pages, int64_t s, int64_t row) {
  const Attention& a = pages.a;
  TP* to = (TP*)a.pool + pages.offset(s, a.lengths[s] + row - a.offsets[s]);
  auto copy = [&](const T* from, int64_t count, TP* out) {
    for (int64_t i = 0; i < count; i += W) {
      int rest = int(count - i < W ? count - i : W);
      store_n(out + i, load_n(from + i, rest), rest);
    }
  };
  copy((const T*)a.k + row * a.k_stride, a.kv_heads * a.head_dim, to);
  copy((const T*)a.v + row * a.v_stride, a.kv_heads * a.value_dim, to + a.kv_heads * a.head_dim);
}

inline F cap(F x, float softcap) { return set1(softcap) * tanh(x / set1(softcap)); }

// p[first, last) = e^(cap(scale x) - largest), 0 elsewhere in [0, count); returns the sum. count is a multiple of W.
inline float soft_maximum(float* x, int64_t count, int64_t first, int64_t last, float scale, float softcap, float before,
                          float* largest) {
  F tops = set1(before), total = set1(0), factor = set1(scale);
  int64_t from = first / W * W, to = (last + W - 1) / W * W;
  for (int64_t i = from; i < to; i += W) {
    F value = load(x + i) * factor;
    if (softcap > 0) value = cap(value, softcap);
    store(x + i, value);
    if (i < first || i + W > last) {
      for (int64_t j = i; j < i + W; j++)
        if (j < first || j >= last) x[j] = -INFINITY;
      value = load(x + i);
    }
    tops = max(value, tops);
  }
  float best = top(tops);
  F shift = set1(best);
  for (int64_t i = from; i < to; i += W) {
    F value = exp(load(x + i) - shift);
    store(x + i, value);
    total = total + value;
  }
  for (int64_t i = 0; i < from; i++) x[i] = 0;
  for (int64_t i = to; i < count; i++) x[i] = 0;
  *largest = best;
  return sum(total);
}

// acc[m][0, count) += sum over keys of p[m][key] * v[key], in key order; M rows of p at a distance of p_stride.
template <int M, class TP>
inline void add_values(const float* p, int64_t p_stride, const TP* v, int64_t v_stride, int64_t keys, int64_t count,
                       float* acc, int64_t acc_stride) {
  int64_t j = 0;
  for (; j + 2 * W <= count; j += 2 * W) {
    F sums[M][2];
    for (int m = 0; m < M; m++) sums[m][0] = load(acc + m * acc_stride + j), sums[m][1] = load(acc + m * acc_stride + j + W);
    for (int64_t key = 0; key < keys; key++) {
      F v0 = load(v + key * v_stride + j), v1 = load(v + key * v_stride + j + W);
      for (int m = 0; m < M; m++) {
        F weight = set1(p[m * p_stride + key]);
        sums[m][0] = fma(weight, v0, sums[m][0]);
        sums[m][1] = fma(weight, v1, sums[m][1]);
      }
    }
    for (int m = 0; m < M; m++) store(acc + m * acc_stride + j, sums[m][0]), store(acc + m * acc_stride + j + W, sums[m][1]);
  }
  for (; j < count; j += W) {
    int rest = int(count - j < W ? count - j : W);
    F sums[M];
    for (int m = 0; m < M; m++) sums[m] = load_n(acc + m * acc_stride + j, rest);
    for (int64_t key = 0; key < keys; key++) {
      F value = load_n(v + key * v_stride + j, rest);
      for (int m = 0; m < M; m++) sums[m] = fma(set1(p[m * p_stride + key]), value, sums[m]);
    }
    for (int m = 0; m < M; m++) store_n(acc + m * acc_stride + j, sums[m], rest);
  }
}

// The decode work of one sequence: `blocks` key blocks from `first_block` on, for rows x heads-of-a-group queries.
struct Split {
  int64_t s, begin, rows, first_block, blocks, first_task, first_part;
};

constexpr int kValueRows = FTC_ISA >= 2 ? 8 : 4;

// Pool addresses of the keys [start, start + count) that lie in [low, high) and in live pages, null for the others.
template <class TP>
inline void key_addresses(const Paged& pages, int64_t s, int64_t start, int64_t count, int64_t low, int64_t high,
                          const TP** at) {
  for (int64_t j = 0; j < count; j++) at[j] = nullptr;
  for (int64_t key = start < low ? low : start; key < high && key < start + count;) {
    int64_t end = (key / pages.a.page_tokens + 1) * pages.a.page_tokens;
    end = end < high ? end : high, end = end < start + count ? end : start + count;
    const TP* from = pages.live(s, key / pages.a.page_tokens) ? (const TP*)pages.a.pool + pages.offset(s, key) : nullptr;
    for (; key < end; key++, from = from ? from + pages.token : nullptr) at[key - start] = from;
  }
}

// scores[query][kKeyBlock] by packed tiles: from four queries a kv head on, adding up lanes costs more than packing.
template <class T, class TP, class Query>
inline void panel_scores(const Paged& pages, int64_t s, int64_t kv_head, int64_t start, int64_t low, int64_t high,
                         Query query, int64_t queries, float* scores) {
  using C = Cell<T, TP>;
  int64_t d = pages.a.head_dim, steps = cells<C>(d), tiles = (queries + kTileRows - 1) / kTileRows;
  C* q = scratch_of<C>(kOwn3, (tiles * kTileRows + kTileOuts) * steps + d + W);
  C *panel = q + tiles * kTileRows * steps, *nothing = panel + kTileOuts * steps;
  memset(nothing, 0, (d + W) * sizeof(C));
  for (int64_t first = 0; first < queries; first += kTileRows)
    pack_rows<C, T>([&](int m) { return query(first + m); },
                    int(queries - first < kTileRows ? queries - first : kTileRows), kTileRows, d, q + first * steps);
  const TP* at[kKeyBlock];
  key_addresses(pages, s, start, kKeyBlock, low, high, at);
  for (int64_t j = (low - start) / kTileOuts * kTileOuts; j < high - start; j += kTileOuts) {
    pack_rows<C, TP>([&](int r) { return at[j + r] ? at[j + r] + kv_head * d : (const TP*)nothing; }, kTileOuts,
                     kTileOuts, d, panel);
    for (int64_t first = 0; first < queries; first += kTileRows) {
      float c[kTileRows * kTileOuts];
      int count = int(queries - first < kTileRows ? queries - first : kTileRows);
      multiply(q + first * steps, panel, steps, count, c);
      for (int m = 0; m < count; m++)
        memcpy(scores + (first + m) * kKeyBlock + j, c + m * kTileOuts, kTileOuts * sizeof(float));
    }
  }
}

// One key block of one kv head: per query a part {largest, sum, value sums[value_dim]}.
template <class T, class TP>
inline void attend_block(const Paged& pages, const Split& split, int64_t kv_head, int64_t block, float* parts) {
  const Attention& a = pages.a;
  int64_t group = a.heads / a.kv_heads, queries = split.rows * group, d = a.head_dim, part = a.value_dim + 2;
  int64_t start = block * kKeyBlock, s = split.s, position = a.lengths[s];
  using O = Operand<T, TP>;
  float* memory = scratch_of<float>(kOwn, queries * (d + kKeyBlock));
  const O** x = scratch_of<const O*>(kOwn2, queries);
  float* scores = memory + queries * d;
  int64_t low = start + kKeyBlock, high = start;  // keys of the block that any query needs
  for (int64_t r = 0; r < split.rows; r++) {
    if (pages.fault[split.begin + r]) continue;
    int64_t first = pages.first_key(position + r), last = position + r + 1;
    first = first < start ? start : first, last = last > start + kKeyBlock ? start + kKeyBlock : last;
    low = first < low ? first : low, high = last > high ? last : high;
  }
  auto query = [&](int64_t i) {
    return (const T*)a.q + (split.begin + i / group) * a.q_stride + (kv_head * group + i % group) * d;
  };
  if (group < 4) operands<O, T>(query, int(queries), d, memory, x);
  for (int64_t i = 0; i < queries; i++) {
    float* out = parts + i * part;
    out[0] = -INFINITY;
    for (int64_t j = 1; j < part; j++) out[j] = 0;
  }
  auto runs = [&](auto body) {
    for (int64_t key = low; key < high;) {
      int64_t end = (key / a.page_tokens + 1) * a.page_tokens;
      end = end < high ? end : high;
      if (pages.live(s, key / a.page_tokens)) body(key, end, (const TP*)a.pool + pages.offset(s, key));
      key = end;
    }
  };
  if (group >= 4)
    panel_scores<T, TP>(pages, s, kv_head, start, low, high, query, queries, scores);
  else
    runs([&](int64_t key, int64_t end, const TP* at) {
      dots(x, int(queries), at + kv_head * d, pages.token, end - key, d, scores + key - start, kKeyBlock);
    });
  for (int64_t i = 0; i < queries; i++) {
    int64_t at = position + i / group, first = pages.first_key(at) - start, last = at + 1 - start;
    first = first < 0 ? 0 : first, last = last > kKeyBlock ? kKeyBlock : last;
    float* p = scores + i * kKeyBlock;
    if (first >= last || pages.fault[split.begin + i / group]) {
      memset(p, 0, kKeyBlock * sizeof(float));
      continue;
    }
    float* out = parts + i * part;
    out[1] = soft_maximum(p, kKeyBlock, first, last, a.scale, a.softcap, -INFINITY, out);
  }
  runs([&](int64_t key, int64_t end, const TP* at) {
    const TP* v = at + a.kv_heads * d + kv_head * a.value_dim;
    int64_t i = 0;
    auto some = [&](auto size) {
      for (; i + size.value <= queries; i += size.value)
        add_values<size.value>(scores + i * kKeyBlock + key - start, kKeyBlock, v, pages.token, end - key, a.value_dim,
                               parts + i * part + 2, part);
    };
    some(std::integral_constant<int, kValueRows>());
    some(std::integral_constant<int, 1>());
  });
}

// Sink logit of a head, -infinity without sinks.
inline float sink_of(const Attention& a, int64_t head) {
  if (!a.sinks) return -INFINITY;
  return a.sinks_dtype == kBfloat ? to_float(((const bf16*)a.sinks)[head]) : ((const float*)a.sinks)[head];
}

template <class T>
inline void fill_nan(const Attention& a, int64_t row, int64_t head) {
  T* out = (T*)a.out + (row * a.heads + head) * a.value_dim;
  for (int64_t j = 0; j < a.value_dim; j++) put(out + j, NAN);
}

// Adds up the parts of one query in block order.
template <class T>
inline void join_parts(const Paged& pages, const Split& split, int64_t r, int64_t head, const float* parts) {
  const Attention& a = pages.a;
  int64_t group = a.heads / a.kv_heads, queries = split.rows * group, part = a.value_dim + 2;
  if (pages.fault[split.begin + r]) return fill_nan<T>(a, split.begin + r, head);
  auto at = [&](int64_t b) {
    return parts + ((head / group * split.blocks + b) * queries + r * group + head % group) * part;
  };
  float sink = sink_of(a, head), best = sink, total = 0;
  for (int64_t b = 0; b < split.blocks; b++) best = at(b)[0] > best ? at(b)[0] : best;
  if (sink > -INFINITY) total = expf(sink - best);
  for (int64_t b = 0; b < split.blocks; b++) total += at(b)[1] * expf(at(b)[0] - best);
  T* out = (T*)a.out + ((split.begin + r) * a.heads + head) * a.value_dim;
  for (int64_t j = 0; j < a.value_dim; j += W) {
    int rest = int(a.value_dim - j < W ? a.value_dim - j : W);
    F value = set1(0);
    for (int64_t b = 0; b < split.blocks; b++)
      value = fma(set1(expf(at(b)[0] - best)), load_n(at(b) + 2 + j, rest), value);
    store_n(out + j, value * set1(1.f / total), rest);
  }
}

#include "attention_tiles.h"

template <class T, class TP>
inline void attend(const Attention& a) {
  Paged pages(a);
  a.state[1] += int32_t(pages.faults);
  int64_t group = a.heads / a.kv_heads, part = a.value_dim + 2, longest = 0;
  Split* splits = scratch_of<Split>(kShared2, a.sequences);
  Strip* strips = scratch_of<Strip>(kShared3, a.sequences);
  int64_t split_count = 0, strip_count = 0, tasks = 0, strip_tasks = 0, floats = 0, keys = 0;
  for (int64_t s = 0; s < a.sequences; s++) {
    int64_t begin = a.offsets[s], count = a.offsets[s + 1] - begin, position = a.lengths[s];
    if (count <= 0) continue;
    if (position < 0) position = 0;  // every row is a fault: one harmless block
    keys += count * (position + count), longest = count > longest ? count : longest;
    if (count > kDecodeRows) {
      strips[strip_count++] = {s, begin, count, strip_tasks};
      strip_tasks += strips_of(a, count);
      continue;
    }
    int64_t first = pages.first_key(position) / kKeyBlock, blocks = (position + count - 1) / kKeyBlock + 1 - first;
    splits[split_count++] = {s, begin, count, first, blocks, tasks, floats};
    tasks += blocks * a.kv_heads, floats += blocks * count * a.heads * part;
  }
  float* parts = scratch_of<float>(kShared4, floats + 1);
  Tasks writes, blocks, joins, tiles;
  parallel(keys * a.heads * a.head_dim > 131072, [&] {
    int64_t pieces = (longest + 63) / 64;
    writes.run(a.sequences * pieces, [&](int64_t task) {
      int64_t s = task / pieces, row = a.offsets[s] + task % pieces * 64, end = a.offsets[s + 1];
      for (end = end < row + 64 ? end : row + 64; row < end; row++)
        if (!pages.fault[row]) write_token<T, TP>(pages, s, row);
    });
    barrier();
    tiles.run(strip_tasks, [&](int64_t task) {
      int64_t n = strip_count - 1;
      while (task < strips[n].first_task) n--;
      attend_strip<T, TP>(pages, strips[n], task - strips[n].first_task);
    });
    blocks.run(tasks, [&](int64_t task) {
      int64_t n = split_count - 1;
      while (task < splits[n].first_task) n--;
      const Split& split = splits[n];
      int64_t index = task - split.first_task, queries = split.rows * group;
      attend_block<T, TP>(pages, split, index / split.blocks, split.first_block + index % split.blocks,
                          parts + split.first_part + index * queries * part);
    });
    barrier();
    joins.run(split_count * a.heads, [&](int64_t task) {
      const Split& split = splits[task / a.heads];
      for (int64_t r = 0; r < split.rows; r++)
        join_parts<T>(pages, split, r, task % a.heads, parts + split.first_part);
    });
  });
}

inline void attention(const Attention& a) {
  with_type(a.dtype, [&](auto* t) {
    with_type(a.pool_dtype, [&](auto* tp) {
      attend<std::remove_pointer_t<decltype(t)>, std::remove_pointer_t<decltype(tp)>>(a);
    });
  });
}
