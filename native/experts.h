// experts: routed feed-forward over a bank of records, one float32 row per (token, k), combined in k order.
// Up to 8 rows the hidden activations stay float32; above that the bfloat16 dot product rounds them to bfloat16.

inline F activate(F gate, F up, bool gated, const Experts& a) {
  if (a.limit > 0) {
    F limit = set1(a.limit);
    gate = min(limit, gate);
    up = min(limit, max(set1(-a.limit), up));
  }
  F value;
  if (a.alpha > 0) {
    value = gate * sigmoid(set1(a.alpha) * gate);
    up = up + set1(1);
  } else if (a.activation == kSilu) {
    value = gate * sigmoid(gate);
  } else if (a.activation == kGeluTanh) {
    F cubic = fma(set1(0.044715f) * gate, gate * gate, gate);
    value = set1(0.5f) * gate * (set1(1) + tanh(set1(0.7978845608028654f) * cubic));
  } else {
    F positive = max(set1(0), gate);
    value = positive * positive;
  }
  return gated ? value * up : value;
}

// The (token, k) pairs of a call, sorted by expert; a group is the run of pairs of one expert.
struct Group {
  int64_t expert;  // bank row
  int first, count, first_tile;
};
struct Grouping {
  int32_t *order, *place;  // pair at a sorted place; sorted place of a pair, -1 if its id is outside [0, experts)
  Group* groups;
  int group_count = 0, pairs = 0, tiles = 0;

  explicit Grouping(const Experts& a) {
    int64_t all = a.rows * a.top_k;
    int32_t* memory = scratch_of<int32_t>(kShared, 2 * all + a.experts);
    order = memory, place = memory + all;
    int32_t* counts = memory + 2 * all;
    memset(counts, 0, a.experts * sizeof(int32_t));
    auto known = [&](int64_t pair) { return a.ids[pair] >= 0 && a.ids[pair] < a.experts; };
    for (int64_t pair = 0; pair < all; pair++)
      if (known(pair)) counts[a.ids[pair]]++;
    groups = scratch_of<Group>(kShared2, all < a.experts ? all + 1 : a.experts);
    for (int64_t e = 0; e < a.experts; e++) {
      int count = counts[e];
      counts[e] = pairs;
      if (!count) continue;
      groups[group_count++] = {a.base + e, pairs, count, tiles};
      pairs += count, tiles += (count + kTileRows - 1) / kTileRows;
    }
    for (int64_t pair = 0; pair < all; pair++) {
      place[pair] = known(pair) ? counts[a.ids[pair]]++ : -1;
      if (place[pair] >= 0) order[place[pair]] = int32_t(pair);
    }
  }
};

template <class TX, class TW>
struct Bank {
  const TX* x;
  const TW *gate, *up, *down, *gate_bias, *up_bias, *down_bias;
  explicit Bank(const Experts& a)
      : x((const TX*)a.x), gate((const TW*)a.gate), up((const TW*)a.up), down((const TW*)a.down),
        gate_bias((const TW*)a.gate_bias), up_bias((const TW*)a.up_bias), down_bias((const TW*)a.down_bias) {}
};

// What `activate` gets of the first products of `n` columns from `i` on: biases are added, and without a gate `up` comes first.
template <class TX, class TW>
inline F hidden_of(const Experts& a, const Bank<TX, TW>& bank, int64_t expert, int64_t i, int n, F gate, F up) {
  int64_t at = (expert - a.base) * a.width + i;
  if (bank.gate && bank.gate_bias) gate = gate + load_n(bank.gate_bias + at, n);
  if (bank.up_bias) (bank.gate ? up : gate) = (bank.gate ? up : gate) + load_n(bank.up_bias + at, n);
  return activate(gate, up, bank.gate, a);
}

constexpr int kBatch = 8, kWidest = 128;  // rows and intermediate columns that one small product covers

// h[kBatch][kWidest] of `n` rows for the columns [i, i + wide) of an expert, from the weights as they lie.
template <class TX, class TW>
inline void hidden_few(const Experts& a, const Bank<TX, TW>& bank, int64_t expert, const Operand<TX, TW>* const* x,
                       int n, int64_t i, int wide, float* h) {
  float up[kBatch * kWidest];
  if (bank.gate)
    dots(x, n, bank.gate + expert * a.gate_stride + i * a.hidden, a.hidden, wide, a.hidden, h, kWidest);
  dots(x, n, bank.up + expert * a.up_stride + i * a.hidden, a.hidden, wide, a.hidden, bank.gate ? up : h, kWidest);
  for (int m = 0; m < n; m++)
    for (int j = 0; j < wide; j += W) {
      float* at = h + m * kWidest + j;
      int rest = wide - j < W ? wide - j : W;
      F other = load_n(up + (bank.gate ? m * kWidest + j : 0), rest);
      store_n(at, hidden_of(a, bank, expert, i + j, rest, load_n(at, rest), other), rest);
    }
}

// Sum over k of weight * (sum of the row's parts, and the expert's bias) into out[row, column ...].
template <class TX, class TW, class Part>
inline void combine(const Experts& a, const TW* bias, const int32_t* place, int parts, int64_t row, int64_t column,
                    int64_t count, Part part) {
  TX* out = (TX*)a.out + row * a.hidden + column;
  for (int64_t j = 0; j < count; j += W) {
    int rest = int(count - j < W ? count - j : W);
    F total = set1(0);
    for (int64_t pair = row * a.top_k; pair < (row + 1) * a.top_k; pair++) {
      if (place[pair] < 0) continue;
      F value = load_n(part(place[pair], 0) + j, rest);
      for (int p = 1; p < parts; p++) value = value + load_n(part(place[pair], p) + j, rest);
      if (bias) value = value + load_n(bias + a.ids[pair] * a.hidden + column + j, rest);
      total = fma(set1(a.weights[pair]), value, total);
    }
    store_n(out + j, total, rest);
  }
}

template <class TX, class TW>
inline void experts_decode(const Experts& a) {
  Bank<TX, TW> bank(a);
  Grouping pairs(a);
  // Chunks of the width depend on the width alone, so the order of every sum is the same for any threads and rows.
  int64_t chunk = (a.width / 8 + 3) / 4 * 4;
  chunk = chunk < 32 ? 32 : chunk > kWidest ? kWidest : chunk;
  int chunks = int((a.width + chunk - 1) / chunk);
  float* parts = scratch_of<float>(kShared3, pairs.pairs * chunks * a.hidden + 1);
  auto part = [&](int64_t place, int p) { return parts + (place * chunks + p) * a.hidden; };
  constexpr int64_t block = 256;
  int64_t blocks = (a.hidden + block - 1) / block;
  using O = Operand<TX, TW>;
  const O* rows[kBatch];
  float* memory = std::is_same<O, TX>::value ? nullptr : scratch_of<float>(kShared4, a.rows * a.hidden);
  operands<O, TX>([&](int m) { return bank.x + m * a.x_stride; }, int(a.rows), a.hidden, memory, rows);
  Tasks products, sums;
  parallel(pairs.group_count * a.width * a.hidden * int64_t(sizeof(TW)) * 3 > kWorthBytes, [&] {
    products.run(pairs.group_count * chunks, [&](int64_t task) {
      const Group& group = pairs.groups[task / chunks];
      int p = int(task % chunks);
      int64_t i = p * chunk;
      int wide = int(a.width - i < chunk ? a.width - i : chunk);
      for (int first = 0; first < group.count; first += kBatch) {
        int n = group.count - first < kBatch ? group.count - first : kBatch;
        const O* x[kBatch];
        float *y[kBatch], h[kBatch * kWidest];
        for (int m = 0; m < n; m++) {
          int at = group.first + first + m;
          x[m] = rows[pairs.order[at] / a.top_k];
          y[m] = part(at, p);
          memset(y[m], 0, a.hidden * sizeof(float));
        }
        hidden_few(a, bank, group.expert, x, n, i, wide, h);
        add_scaled_rows(y, n, h, kWidest, bank.down + group.expert * a.down_stride + i * a.hidden, a.hidden, wide,
                        a.hidden);
      }
    });
    barrier();
    sums.run(a.rows * blocks, [&](int64_t task) {
      int64_t column = task % blocks * block;
      combine<TX>(a, bank.down_bias, pairs.place, chunks, task / blocks, column,
                  a.hidden - column < block ? a.hidden - column : block,
                  [&](int64_t place, int p) { return part(place, p) + column; });
    });
  });
}

// Groups with at most this many rows multiply the weights as they lie: packing a panel would cost more than it saves.
constexpr int kFew = 4;
// Columns of the second product that a task takes: 256 bytes of bfloat16 a weight row, whose rows lie far apart.
constexpr int64_t kRun = 128;

template <class TX, class TW>
inline void experts_prefill(const Experts& a) {
  using C = Cell<TX, TW>;
  using TH = std::conditional_t<std::is_same<C, Pair>::value, bf16, float>;
  Bank<TX, TW> bank(a);
  Grouping pairs(a);
  int64_t x_steps = cells<C>(a.hidden), h_steps = cells<C>(a.width);
  int64_t x_tile = x_steps * kTileRows, h_tile = h_steps * kTileRows;
  // Columns of the second product go in slabs whose float32 rows stay within 16 MiB, instead of all rows whole.
  int64_t slab = (int64_t(4) << 20) / (pairs.pairs + 1) / 128 * 128;
  slab = slab < 128 ? 128 : slab > a.hidden ? a.hidden : slab;
  C* x_panels = scratch_of<C>(kShared3, pairs.tiles * (x_tile + h_tile) + 1);
  C* h_panels = x_panels + pairs.tiles * x_tile;
  float* y = scratch_of<float>(kShared4, pairs.pairs * (slab + a.width) + 1);
  float* h_few = y + pairs.pairs * slab;
  int64_t slabs = (a.hidden + slab - 1) / slab, h_count = (a.width + kTileOuts - 1) / kTileOuts;
  Tasks packing, first;
  Tasks* second = new Tasks[2 * slabs];
  parallel(true, [&] {
    using O = Operand<TX, TW>;
    auto row_of = [&](int at) { return bank.x + pairs.order[at] / a.top_k * a.x_stride; };
    packing.run(pairs.group_count, [&](int64_t g) {
      const Group& group = pairs.groups[g];
      if (group.count <= kFew) return;
      for (int m = 0; m < group.count; m += kTileRows)
        pack_rows<C, TX>([&](int r) { return row_of(group.first + m + r); },
                         group.count - m < kTileRows ? group.count - m : kTileRows, kTileRows, a.hidden,
                         x_panels + (group.first_tile + m / kTileRows) * x_tile);
    });
    barrier();
    // The weights that this thread will most likely pack next, spread over the steps of the tiles before.
    auto soon = [&](const TW* w, int64_t i, int64_t tile) -> const char* {
      int64_t at = tile * x_steps * 64;
      if (at >= kTileOuts * a.hidden * int64_t(sizeof(TW))) return nullptr;
      return (const char*)(w + (i + threads() * kTileOuts) * a.hidden) + at;
    };
    int64_t steps = x_steps > h_steps ? x_steps : h_steps;
    C* gate_panel = scratch_of<C>(kOwn, (kRun > 2 * kTileOuts ? kRun : 2 * kTileOuts) * steps);
    C* up_panel = gate_panel + kTileOuts * steps;
    first.run(pairs.group_count * h_count, [&](int64_t task) {
      const Group& group = pairs.groups[task / h_count];
      int64_t i = task % h_count * kTileOuts;
      int wide = int(a.width - i < kTileOuts ? a.width - i : kTileOuts);
      if (group.count <= kFew) {
        const O* x[kFew];
        float h[kBatch * kWidest], *memory = scratch_of<float>(kOwn2, kFew * a.hidden);
        operands<O, TX>([&](int m) { return row_of(group.first + m); }, group.count, a.hidden, memory, x);
        hidden_few(a, bank, group.expert, x, group.count, i, wide, h);
        for (int m = 0; m < group.count; m++)
          memcpy(h_few + (group.first + m) * a.width + i, h + m * kWidest, wide * sizeof(float));
        return;
      }
      const TW *gate = bank.gate + group.expert * a.gate_stride, *up = bank.up + group.expert * a.up_stride;
      if (bank.gate)
        pack_rows<C, TW>([&](int r) { return gate + (i + r) * a.hidden; }, wide, kTileOuts, a.hidden, gate_panel);
      pack_rows<C, TW>([&](int r) { return up + (i + r) * a.hidden; }, wide, kTileOuts, a.hidden, up_panel);
      for (int m = 0; m < group.count; m += kTileRows) {
        int rows = group.count - m < kTileRows ? group.count - m : kTileRows;
        int64_t tile = group.first_tile + m / kTileRows;
        float c[kTileRows * kTileOuts], d[kTileRows * kTileOuts];
        TH h[kTileRows * kTileOuts];
        multiply(x_panels + tile * x_tile, up_panel, x_steps, rows, d, soon(up, i, m / kTileRows));
        if (bank.gate) multiply(x_panels + tile * x_tile, gate_panel, x_steps, rows, c, soon(gate, i, m / kTileRows));
        const float* gates = bank.gate ? c : d;
        for (int j = 0; j < rows * kTileOuts; j += W) {
          int own = j % kTileOuts, rest = wide - own < W ? wide - own : W;
          if (rest > 0) store(h + j, hidden_of(a, bank, group.expert, i + own, rest, load(gates + j), load(d + j)));
        }
        pack_rows<C, TH>([&](int r) { return h + r * kTileOuts; }, rows, kTileRows, wide,
                         h_panels + tile * h_tile + cells<C>(i) * kTileRows);
      }
    });
    barrier();
    for (int64_t s = 0; s < slabs; s++) {
      int64_t column = s * slab, columns = a.hidden - column < slab ? a.hidden - column : slab;
      int64_t runs = (columns + kRun - 1) / kRun;
      second[2 * s].run(pairs.group_count * runs, [&](int64_t task) {
        const Group& group = pairs.groups[task / runs];
        int64_t out = task % runs * kRun;
        int outs = int(columns - out < kRun ? columns - out : kRun);
        const TW* down = bank.down + group.expert * a.down_stride + column + out;
        if (group.count <= kFew) {
          float* to[kFew];
          for (int m = 0; m < group.count; m++) {
            to[m] = y + (group.first + m) * slab + out;
            memset(to[m], 0, outs * sizeof(float));
          }
          add_scaled_rows(to, group.count, h_few + group.first * a.width, a.width, down, a.hidden, a.width, outs);
          return;
        }
        pack_columns<C>(down, a.hidden, outs, a.width, gate_panel);
        for (int j = 0; j < outs; j += kTileOuts)
          for (int m = 0; m < group.count; m += kTileRows) {
            int rows = group.count - m < kTileRows ? group.count - m : kTileRows;
            float c[kTileRows * kTileOuts];
            multiply(h_panels + (group.first_tile + m / kTileRows) * h_tile, gate_panel + j * h_steps, h_steps, rows, c);
            int wide = outs - j < kTileOuts ? outs - j : kTileOuts;
            for (int r = 0; r < rows; r++)
              memcpy(y + (group.first + m + r) * slab + out + j, c + r * kTileOuts, wide * sizeof(float));
          }
      });
      barrier();
      second[2 * s + 1].run(a.rows, [&](int64_t row) {
        combine<TX>(a, bank.down_bias, pairs.place, 1, row, column, columns,
                    [&](int64_t place, int) { return y + place * slab; });
      });
      barrier();
    }
  });
  delete[] second;
}

inline void experts(const Experts& a) {
  if (a.rows <= 0) return;
  with_type(a.x_dtype, [&](auto* tx) {
    with_type(a.w_dtype, [&](auto* tw) {
      using TX = std::remove_pointer_t<decltype(tx)>;
      using TW = std::remove_pointer_t<decltype(tw)>;
      if (a.rows <= 8) experts_decode<TX, TW>(a);
      else experts_prefill<TX, TW>(a);
    });
  });
}
