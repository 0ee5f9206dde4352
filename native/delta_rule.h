// delta_rule: the gated delta rule, S = exp(g) S; S += k (x) beta (v - k^T S); o = (scale q)^T S, over each sequence.

constexpr int kDeltaBlock = 2 * W;  // value columns of a task: with a key dim of 128 their state fills half of L1

template <class T>
inline void load_head(const T* from, int64_t count, bool normalize, float factor, float* to) {
  F squares = set1(0);
  for (int64_t i = 0; i < count; i += W) {
    int rest = int(count - i < W ? count - i : W);
    F x = load_n(from + i, rest);
    squares = fma(x, x, squares);
    store(to + i, x);
  }
  if (normalize) factor *= 1.f / sqrtf(sum(squares) + 1e-6f);
  for (int64_t i = 0; i < count; i += W) store(to + i, load(to + i) * set1(factor));
}

// One block of value columns of one head of one sequence. state: [key_dim][kDeltaBlock] in L1.
template <class T>
inline void delta_block(const DeltaRule& a, int64_t s, int64_t head, int64_t column, int columns) {
  int64_t begin = a.offsets[s], end = a.offsets[s + 1], dk = a.key_dim, padded = (dk + W - 1) / W * W;
  int32_t in = a.state_in[s], out = a.state_out[s];
  int64_t value = head * a.value_dim + column, key = head / (a.value_heads / a.key_heads) * dk;
  T* to = (T*)a.out + value;
  int64_t to_stride = a.value_heads * a.value_dim;
  if (!slot_ok(in, a.state) || !slot_ok(out, a.state)) {
    for (int64_t t = begin; t < end; t++)
      for (int c = 0; c < columns; c++) put(to + t * to_stride + c, NAN);
    return;
  }
  float* state = scratch_of<float>(kOwn, dk * kDeltaBlock + 3 * padded);
  float *k = state + dk * kDeltaBlock, *q = k + padded, *decay = q + padded;
  auto slot = [&](int32_t number) {
    return a.pool + ((number * a.layers + a.layer) * a.value_heads + head) * dk * a.value_dim + column;
  };
  int first = columns < W ? columns : W, second = columns - first;
  for (int64_t i = 0; i < dk; i++) {
    const float* from = in < 0 ? nullptr : slot(in) + i * a.value_dim;
    store(state + i * kDeltaBlock, from ? load_n(from, first) : set1(0));
    store(state + i * kDeltaBlock + W, from && second > 0 ? load_n(from + W, second) : set1(0));
  }
  for (int64_t t = begin; t < end; t++) {
    load_head((const T*)a.k + t * a.k_stride + key, dk, a.normalize, 1.f, k);
    load_head((const T*)a.q + t * a.q_stride + key, dk, a.normalize, a.scale, q);
    int64_t at = t * a.value_heads + head;
    for (int64_t i = 0; i < dk; i += W) {
      int rest = int(dk - i < W ? dk - i : W);
      store(decay + i, exp(a.per_key ? load_n(a.g + at * dk + i, rest) : set1(a.g[at])));
    }
    // o = q^T (D S) + (q . k) delta, so one pass reads both k^T D S and q^T D S before the update.
    F seen[2] = {set1(0), set1(0)}, read[2] = {set1(0), set1(0)}, both = set1(0);
    for (int64_t i = 0; i < padded; i += W) both = fma(load(k + i), load(q + i), both);
    for (int64_t i = 0; i < dk; i++) {
      F ki = set1(k[i]), qi = set1(q[i]), di = set1(decay[i]);
      for (int b = 0; b < 2; b++) {
        F row = load(state + i * kDeltaBlock + b * W) * di;
        store(state + i * kDeltaBlock + b * W, row);
        seen[b] = fma(ki, row, seen[b]);
        read[b] = fma(qi, row, read[b]);
      }
    }
    F beta = set1(a.beta[at]), dot = set1(sum(both));
    const T* v = (const T*)a.v + t * a.v_stride + value;
    F delta[2] = {beta * (load_n(v, first) - seen[0]), set1(0)};
    if (second > 0) delta[1] = beta * (load_n(v + W, second) - seen[1]);
    store_n(to + t * to_stride, fma(dot, delta[0], read[0]), first);
    if (second > 0) store_n(to + t * to_stride + W, fma(dot, delta[1], read[1]), second);
    for (int64_t i = 0; i < dk; i++) {
      F ki = set1(k[i]);
      for (int b = 0; b < 2; b++) {
        float* p = state + i * kDeltaBlock + b * W;
        store(p, fma(ki, delta[b], load(p)));
      }
    }
  }
  if (out < 0) return;
  for (int64_t i = 0; i < dk; i++) {
    float* p = slot(out) + i * a.value_dim;
    store_n(p, load(state + i * kDeltaBlock), first);
    if (second > 0) store_n(p + W, load(state + i * kDeltaBlock + W), second);
  }
}

inline void delta_rule(const DeltaRule& a) {
  count_slot_faults(a.state, a.state_in, a.state_out, a.offsets, a.sequences);
  int64_t blocks = (a.value_dim + kDeltaBlock - 1) / kDeltaBlock, tasks_per = a.value_heads * blocks;
  Tasks tasks;
  parallel(a.offsets[a.sequences] * a.value_heads * a.key_dim * a.value_dim > 32768, [&] {
    tasks.run(a.sequences * tasks_per, [&](int64_t task) {
      int64_t s = task / tasks_per, head = task % tasks_per / blocks, column = task % blocks * kDeltaBlock;
      if (a.offsets[s] == a.offsets[s + 1]) return;
      int columns = int(a.value_dim - column < kDeltaBlock ? a.value_dim - column : kDeltaBlock);
      with_type(a.dtype, [&](auto* t) { delta_block<std::remove_pointer_t<decltype(t)>>(a, s, head, column, columns); });
    });
  });
}
