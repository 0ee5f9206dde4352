// linear: x [rows, ins] times the transpose of w [outs, ins], float32 sums, one rounding at the end.

inline void finish_linear(const Linear& a, const float* c, int64_t c_stride, int64_t row, int rows, int64_t out,
                          int outs) {
  float bias[kTileOuts > 64 ? kTileOuts : 64];
  if (a.bias)
    with_type(a.bias_dtype, [&](auto* type) {
      for (int j = 0; j < outs; j++) bias[j] = to_float(((decltype(type))a.bias)[out + j]);
    });
  with_type(a.out_dtype, [&](auto* type) {
    auto* to = (decltype(type))a.out + row * a.outs + out;
    for (int m = 0; m < rows; m++, to += a.outs, c += c_stride)
      for (int j = 0; j < outs; j += W) {
        int rest = outs - j;
        if (rest >= W) {
          store(to + j, a.bias ? load(c + j) + load(bias + j) : load(c + j));
        } else {
          F value = load_n(c + j, rest);
          store_n(to + j, a.bias ? value + load_n(bias + j, rest) : value, rest);
        }
      }
  });
}

template <class TX, class TW>
inline void linear_decode(const Linear& a) {
  using O = Operand<TX, TW>;
  const O* x[8];
  float* memory = std::is_same<O, TX>::value ? nullptr : scratch_of<float>(kShared, a.rows * a.ins);
  operands<O, TX>([&](int m) { return (const TX*)a.x + m * a.x_stride; }, int(a.rows), a.ins, memory, x);
  const TW* w = (const TW*)a.w;
  // 32 KiB of weights a task: small enough to level two threads out, large enough for the hardware prefetcher.
  int64_t block = 32768 / (a.ins * int64_t(sizeof(TW))) & ~int64_t(3);
  block = block < 4 ? 4 : block > 64 ? 64 : block;
  int64_t count = (a.outs + block - 1) / block;
  Tasks tasks;
  parallel(a.outs * a.ins * int64_t(sizeof(TW)) > kWorthBytes, [&] {
    tasks.run(count, [&](int64_t task) {
      float c[8 * 64];
      int64_t out = task * block, outs = a.outs - out < block ? a.outs - out : block;
      dots(x, int(a.rows), w + out * a.w_stride, a.w_stride, outs, a.ins, c, 64);
      finish_linear(a, c, 64, 0, int(a.rows), out, int(outs));
    });
  });
}

template <class TX, class TW>
inline void linear_prefill(const Linear& a) {
  using C = Cell<TX, TW>;
  const TX* x = (const TX*)a.x;
  const TW* w = (const TW*)a.w;
  int64_t steps = cells<C>(a.ins), tiles = (a.rows + kTileRows - 1) / kTileRows;
  int64_t panels = (a.outs + kTileOuts - 1) / kTileOuts;
  C* x_panels = scratch_of<C>(kShared, tiles * kTileRows * steps);
  // Few panels: rows are split too, so that every thread has at least four tasks.
  int64_t slabs = (4 * threads() + panels - 1) / panels;
  slabs = slabs > tiles ? tiles : slabs;
  int64_t slab = (tiles + slabs - 1) / slabs;
  Tasks packing, products;
  parallel(a.rows * a.outs * a.ins > 262144, [&] {
    packing.run(tiles, [&](int64_t t) {
      int64_t first = t * kTileRows, rows = a.rows - first < kTileRows ? a.rows - first : kTileRows;
      pack_rows<C, TX>([&](int m) { return x + (first + m) * a.x_stride; }, int(rows), kTileRows, a.ins,
                       x_panels + first * steps);
    });
    barrier();
    C* w_panel = scratch_of<C>(kOwn, kTileOuts * steps);
    products.run(panels * slabs, [&](int64_t task) {
      int64_t out = task / slabs * kTileOuts, outs = a.outs - out < kTileOuts ? a.outs - out : kTileOuts;
      pack_rows<C, TW>([&](int r) { return w + (out + r) * a.w_stride; }, int(outs), kTileOuts, a.ins, w_panel);
      int64_t begin = task % slabs * slab, end = begin + slab < tiles ? begin + slab : tiles;
      for (int64_t t = begin; t < end; t++) {
        float c[kTileRows * kTileOuts];
        int64_t first = t * kTileRows, rows = a.rows - first < kTileRows ? a.rows - first : kTileRows;
        multiply(x_panels + first * steps, w_panel, steps, int(rows), c);
        finish_linear(a, c, kTileOuts, first, int(rows), out, int(outs));
      }
    });
  });
}

inline void linear(const Linear& a) {
  if (a.rows <= 0) return;
  with_type(a.x_dtype, [&](auto* tx) {
    with_type(a.w_dtype, [&](auto* tw) {
      using TX = std::remove_pointer_t<decltype(tx)>;
      using TW = std::remove_pointer_t<decltype(tw)>;
      if (a.rows <= 8) linear_decode<TX, TW>(a);
      else linear_prefill<TX, TW>(a);
    });
  });
}
