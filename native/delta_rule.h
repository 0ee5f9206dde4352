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

// Tokens that go through the state in one pass; their sums fill half of the registers.
constexpr int kDeltaTokens = FTC_ISA >= 2 ? 4 : 2;

// What C tokens do to a state, all relative to the state S before them, whatever the column:
// k^T S and q^T S with the decay up to each token (seen, read), what each adds at the end (add), and the products between
// tokens, keys[t][s] and queries[t][s], decayed from s to t.
template <int C>
struct DeltaChunk {
  float *seen, *read, *add, *decay;
  float keys[C][C], queries[C][C];
};

// Floats of C tokens in a DeltaChunk, and beside it while it is prepared, in units of the padded key dim.
constexpr int chunk_rows(int tokens) { return 3 * tokens + 1; }
constexpr int kPrepareRows = 3 * kDeltaTokens;

template <class T, int C>
inline void prepare_chunk(const DeltaRule& a, int64_t t, int64_t head, float* memory, float* own, DeltaChunk<C>& out) {
  int64_t dk = a.key_dim, padded = (dk + W - 1) / W * W, key = head / (a.value_heads / a.key_heads) * dk;
  out.seen = memory, out.read = out.seen + C * padded, out.add = out.read + C * padded;
  out.decay = out.add + C * padded;
  float *k = own, *q = k + C * padded, *sums = q + C * padded;
  for (int c = 0; c < C; c++) {
    load_head((const T*)a.k + (t + c) * a.k_stride + key, dk, a.normalize, 1.f, k + c * padded);
    load_head((const T*)a.q + (t + c) * a.q_stride + key, dk, a.normalize, a.scale, q + c * padded);
  }
  if (a.per_key) {
    for (int64_t i = 0; i < padded; i += W) {
      int rest = int(dk - i < W ? dk - i : W);
      F total = set1(0);
      for (int c = 0; c < C; c++) {
        total = total + load_n(a.g + ((t + c) * a.value_heads + head) * dk + i, rest);
        store(sums + c * padded + i, total);
      }
      store(out.decay + i, exp(total));
      for (int c = 0; c < C; c++) {
        F until = exp(load(sums + c * padded + i)), after = exp(total - load(sums + c * padded + i));
        store(out.seen + c * padded + i, until * load(k + c * padded + i));
        store(out.read + c * padded + i, until * load(q + c * padded + i));
        store(out.add + c * padded + i, after * load(k + c * padded + i));
      }
    }
    for (int c = 0; c < C; c++)
      for (int s = 0; s <= c; s++) {
        F keys = set1(0), queries = set1(0);
        for (int64_t i = 0; i < padded; i += W) {
          F from = load(k + s * padded + i) * exp(load(sums + c * padded + i) - load(sums + s * padded + i));
          keys = fma(load(k + c * padded + i), from, keys);
          queries = fma(load(q + c * padded + i), from, queries);
        }
        out.keys[c][s] = sum(keys), out.queries[c][s] = sum(queries);
      }
    return;
  }
  // The decay of all keys is one number: e^ of all differences at once, [c][s] and in the last row from the start.
  constexpr int count = (C * (C + 1) + W - 1) / W * W;
  float total[C + 1] = {0}, decays[count] = {};
  for (int c = 0; c < C; c++) total[c + 1] = total[c] + a.g[(t + c) * a.value_heads + head];
  for (int c = 0; c < C; c++) {
    for (int s = 0; s <= c; s++) decays[c * C + s] = total[c + 1] - total[s + 1];
    decays[C * C + c] = total[c + 1];
  }
  for (int i = 0; i < count; i += W) store(decays + i, exp(load(decays + i)));
  for (int c = 0; c < C; c++) {
    F until = set1(decays[C * C + c]), after = set1(decays[(C - 1) * C + c]);
    for (int64_t i = 0; i < padded; i += W) {
      store(out.seen + c * padded + i, until * load(k + c * padded + i));
      store(out.read + c * padded + i, until * load(q + c * padded + i));
      store(out.add + c * padded + i, after * load(k + c * padded + i));
    }
    for (int s = 0; s <= c; s++) {
      F keys = set1(0), queries = set1(0);
      for (int64_t i = 0; i < padded; i += W) {
        F from = load(k + s * padded + i);
        keys = fma(load(k + c * padded + i), from, keys);
        queries = fma(load(q + c * padded + i), from, queries);
      }
      out.keys[c][s] = sum(keys) * decays[c * C + s], out.queries[c][s] = sum(queries) * decays[c * C + s];
    }
  }
  for (int64_t i = 0; i < padded; i += W) store(out.decay + i, set1(decays[C * C + C - 1]));
}

// C tokens from t on for one block of columns. state: [key_dim][kDeltaBlock] in L1, read once and updated once.
template <class T, int C>
inline void delta_tokens(const DeltaRule& a, const DeltaChunk<C>& chunk, int64_t t, int64_t head, int64_t column,
                         int columns, float* state) {
  int64_t dk = a.key_dim, padded = (dk + W - 1) / W * W, value = head * a.value_dim + column;
  int part[2] = {columns < W ? columns : W, columns < W ? 0 : columns - W};
  F seen[C][2], read[C][2], delta[C][2];
  for (int c = 0; c < C; c++) seen[c][0] = seen[c][1] = read[c][0] = read[c][1] = set1(0);
  for (int64_t i = 0; i < dk; i++) {
    F low = load(state + i * kDeltaBlock), high = load(state + i * kDeltaBlock + W);
    for (int c = 0; c < C; c++) {
      F k = set1(chunk.seen[c * padded + i]), q = set1(chunk.read[c * padded + i]);
      seen[c][0] = fma(k, low, seen[c][0]), seen[c][1] = fma(k, high, seen[c][1]);
      read[c][0] = fma(q, low, read[c][0]), read[c][1] = fma(q, high, read[c][1]);
    }
  }
  for (int c = 0; c < C; c++) {
    F beta = set1(a.beta[(t + c) * a.value_heads + head]);
    const T* v = (const T*)a.v + (t + c) * a.v_stride + value;
    T* out = (T*)a.out + (t + c) * a.value_heads * a.value_dim + value;
    for (int b = 0; b < 2 && part[b]; b++) {
      for (int s = 0; s < c; s++) seen[c][b] = fma(set1(chunk.keys[c][s]), delta[s][b], seen[c][b]);
      delta[c][b] = beta * (load_n(v + b * W, part[b]) - seen[c][b]);
      for (int s = 0; s <= c; s++) read[c][b] = fma(set1(chunk.queries[c][s]), delta[s][b], read[c][b]);
      store_n(out + b * W, read[c][b], part[b]);
    }
    if (!part[1]) delta[c][1] = set1(0);
  }
  for (int64_t i = 0; i < dk; i++) {
    float* row = state + i * kDeltaBlock;
    F decay = set1(chunk.decay[i]), low = load(row) * decay, high = load(row + W) * decay;
    for (int c = 0; c < C; c++) {
      F k = set1(chunk.add[c * padded + i]);
      low = fma(k, delta[c][0], low), high = fma(k, delta[c][1], high);
    }
    store(row, low), store(row + W, high);
  }
}

// Chunks that are prepared together: then each block of columns goes through all of them with its state in L1.
constexpr int kDeltaChunks = 8;

// Blocks [first, last) of the value columns of one head of one sequence.
template <class T>
inline void delta_blocks(const DeltaRule& a, int64_t s, int64_t head, int64_t first, int64_t last) {
  int64_t begin = a.offsets[s], end = a.offsets[s + 1], dk = a.key_dim, padded = (dk + W - 1) / W * W;
  int32_t in = a.state_in[s], out = a.state_out[s];
  auto columns = [&](int64_t block) {
    int64_t rest = a.value_dim - block * kDeltaBlock;
    return int(rest < kDeltaBlock ? rest : kDeltaBlock);
  };
  if (!slot_ok(in, a.state) || !slot_ok(out, a.state)) {
    T* to = (T*)a.out + head * a.value_dim;
    for (int64_t t = begin; t < end; t++)
      for (int64_t c = first * kDeltaBlock; c < last * kDeltaBlock && c < a.value_dim; c++)
        put(to + t * a.value_heads * a.value_dim + c, NAN);
    return;
  }
  int64_t block_size = dk * kDeltaBlock, chunk_size = chunk_rows(kDeltaTokens) * padded;
  float* state = scratch_of<float>(kOwn, (last - first) * block_size);
  float* memory = scratch_of<float>(kOwn2, (kDeltaChunks + kDeltaTokens) * chunk_size + kPrepareRows * padded);
  float* own = memory + (kDeltaChunks + kDeltaTokens) * chunk_size;
  auto slot = [&](int32_t number) {
    return a.pool + ((number * a.layers + a.layer) * a.value_heads + head) * dk * a.value_dim;
  };
  auto move = [&](int64_t block, float* at, auto body) {
    for (int64_t i = 0; i < dk; i++)
      for (int b = 0; b < 2; b++) {
        int rest = columns(block) - b * W;
        body(at + i * kDeltaBlock + b * W, i * a.value_dim + block * kDeltaBlock + b * W,
             rest < 0 ? 0 : rest < W ? rest : W);
      }
  };
  auto fetch = [&](int64_t block, float* at) {
    const float* from = in < 0 ? nullptr : slot(in);
    move(block, at, [&](float* to, int64_t i, int count) { store(to, from && count ? load_n(from + i, count) : set1(0)); });
  };
  auto keep = [&](int64_t block, float* at) {
    if (out < 0) return;
    float* to = slot(out);
    move(block, at, [&](float* from, int64_t i, int count) {
      if (count) store_n(to + i, load(from), count);
    });
  };
  DeltaChunk<kDeltaTokens> whole[kDeltaChunks];
  DeltaChunk<1> rest[kDeltaTokens];
  int64_t wholes = 0, rests = 0, start = begin;
  auto prepare = [&] {
    int64_t count = end - start < kDeltaChunks * kDeltaTokens ? end - start : kDeltaChunks * kDeltaTokens;
    wholes = count / kDeltaTokens, rests = count % kDeltaTokens;
    for (int64_t n = 0; n < wholes; n++)
      prepare_chunk<T>(a, start + n * kDeltaTokens, head, memory + n * chunk_size, own, whole[n]);
    for (int64_t n = 0; n < rests; n++)
      prepare_chunk<T>(a, start + wholes * kDeltaTokens + n, head, memory + (kDeltaChunks + n) * chunk_size, own, rest[n]);
  };
  auto advance = [&](int64_t block, float* at) {
    for (int64_t n = 0; n < wholes; n++)
      delta_tokens<T>(a, whole[n], start + n * kDeltaTokens, head, block * kDeltaBlock, columns(block), at);
    for (int64_t n = 0; n < rests; n++)
      delta_tokens<T>(a, rest[n], start + wholes * kDeltaTokens + n, head, block * kDeltaBlock, columns(block), at);
  };
  if (end - begin <= kDeltaChunks * kDeltaTokens) {
    prepare();
    for (int64_t block = first; block < last; block++) fetch(block, state), advance(block, state), keep(block, state);
    return;
  }
  for (int64_t block = first; block < last; block++) fetch(block, state + (block - first) * block_size);
  for (; start < end; start += kDeltaChunks * kDeltaTokens) {
    prepare();
    for (int64_t block = first; block < last; block++) advance(block, state + (block - first) * block_size);
  }
  for (int64_t block = first; block < last; block++) keep(block, state + (block - first) * block_size);
}

inline void delta_rule(const DeltaRule& a) {
  count_slot_faults(a.state, a.state_in, a.state_out, a.offsets, a.sequences);
  int64_t blocks = (a.value_dim + kDeltaBlock - 1) / kDeltaBlock;
  // A head is one task, so that its chunks are prepared once, unless that leaves threads without work.
  int64_t pieces = a.sequences * a.value_heads < 2 * threads() ? blocks : 1;
  Tasks tasks;
  parallel(a.offsets[a.sequences] * a.value_heads * a.key_dim * a.value_dim > 32768, [&] {
    tasks.run(a.sequences * a.value_heads * pieces, [&](int64_t task) {
      int64_t s = task / pieces / a.value_heads, head = task / pieces % a.value_heads, piece = task % pieces;
      if (a.offsets[s] == a.offsets[s + 1]) return;
      int64_t first = pieces > 1 ? piece : 0, last = pieces > 1 ? piece + 1 : blocks;
      with_type(a.dtype, [&](auto* t) { delta_blocks<std::remove_pointer_t<decltype(t)>>(a, s, head, first, last); });
    });
  });
}
