// Products of small blocks: dot products of weight rows as they lie in memory (few rows of x), and packed tiles (many).

// Rows of x that one pass over weight rows serves, weight rows read side by side where several rows of x share them, and
// accumulators of one product. Together they fill half of the registers; 8 lanes need 4 accumulators, since 2 would wait
// for each other at 26 GB/s.
constexpr int kDotRows = FTC_ISA >= 2 ? 4 : 2, kDotSide = FTC_ISA >= 2 ? 2 : 1, kDotChains = FTC_ISA >= 2 ? 2 : 4;

// What x must be for a product with w as it lies: bfloat16 where there is a bfloat16 dot product, else float32.
template <class TX, class TW>
using Operand = std::conditional_t<FTC_ISA == 3 && sizeof(TX) == 2 && sizeof(TW) == 2, bf16, float>;

// out[r][n] = lanes of x_n . w_r. kDotChains accumulators take turns over the whole length, whatever R and N are, so that a
// row's bits do not depend on the batch.
template <int R, int N, class TX, class TW>
inline void dot_block(const TX* const* x, const TW* w, int64_t w_stride, int64_t count, int64_t ahead, F (*out)[N]) {
  F acc[R][N][kDotChains];
  for (int r = 0; r < R; r++)
    for (int n = 0; n < N; n++)
      for (int u = 0; u < kDotChains; u++) acc[r][n][u] = set1(0);
  int64_t i = 0;
#if FTC_ISA == 3
  if constexpr (sizeof(TX) == 2) {
    static_assert(sizeof(TW) == 2, "see Operand");
    for (; i + 64 <= count; i += 64)
      for (int u = 0; u < 2; u++) {
        __m512bh xs[N];
        for (int n = 0; n < N; n++) xs[n] = (__m512bh)_mm512_loadu_si512(x[n] + i + 32 * u);
        for (int r = 0; r < R; r++) {
          const TW* at = w + r * w_stride + i + 32 * u;
          prefetch(at + ahead);
          __m512bh ws = (__m512bh)_mm512_loadu_si512(at);
          for (int n = 0; n < N; n++) acc[r][n][u] = _mm512_dpbf16_ps(acc[r][n][u], ws, xs[n]);
        }
      }
    for (int u = 0; i < count; i += 32, u++) {
      __mmask32 mask = count - i < 32 ? (__mmask32)((1ull << (count - i)) - 1) : ~__mmask32(0);
      for (int r = 0; r < R; r++) {
        __m512bh ws = (__m512bh)_mm512_maskz_loadu_epi16(mask, w + r * w_stride + i);
        for (int n = 0; n < N; n++)
          acc[r][n][u] = _mm512_dpbf16_ps(acc[r][n][u], ws, (__m512bh)_mm512_maskz_loadu_epi16(mask, x[n] + i));
      }
    }
  }
#endif
  if constexpr (sizeof(TX) == 4) {
    for (; i + kDotChains * W <= count; i += kDotChains * W) {
      for (int r = 0; r < R; r++)
        for (int64_t line = 0; line < kDotChains * W * int64_t(sizeof(TW)); line += 64)
          prefetch((const char*)(w + r * w_stride + i + ahead) + line);
      for (int u = 0; u < kDotChains; u++) {
        F xs[N];
        for (int n = 0; n < N; n++) xs[n] = load(x[n] + i + W * u);
        for (int r = 0; r < R; r++) {
          F ws = load(w + r * w_stride + i + W * u);
          for (int n = 0; n < N; n++) acc[r][n][u] = fma(ws, xs[n], acc[r][n][u]);
        }
      }
    }
    for (int u = 0; i < count; i += W, u++) {
      int rest = int(count - i < W ? count - i : W);
      for (int r = 0; r < R; r++) {
        F ws = load_n(w + r * w_stride + i, rest);
        for (int n = 0; n < N; n++) acc[r][n][u] = fma(ws, load_n(x[n] + i, rest), acc[r][n][u]);
      }
    }
  }
  for (int r = 0; r < R; r++)
    for (int n = 0; n < N; n++) {
      out[r][n] = acc[r][n][0] + acc[r][n][1];
      if (kDotChains == 4) out[r][n] = out[r][n] + (acc[r][n][2] + acc[r][n][kDotChains - 1]);
    }
}

// out[n * out_stride + r] = x_n . w_r for 4 weight rows or one: one at a time for one row of x, a single stream being the
// fastest to read, two at a time for more, which then load half as often.
template <int Rows, int N, class TX, class TW>
inline void dot_rows(const TX* const* x, const TW* w, int64_t w_stride, int64_t count, int64_t ahead, float* out,
                     int64_t out_stride) {
  F lanes[Rows][N];
  constexpr int together = N > 1 && Rows > 1 ? kDotSide : 1;
#pragma GCC unroll 4
  for (int r = 0; r < Rows; r += together)
    dot_block<together, N>(x, w + r * w_stride, w_stride, count, ahead, lanes + r);
  for (int n = 0; n < N; n++) {
    float sums[4];
    F zero = set1(0);
    if (Rows == 4) sum4(lanes[0][n], lanes[Rows / 4][n], lanes[Rows / 2][n], lanes[Rows - 1][n], sums);
    else sum4(lanes[0][n], zero, zero, zero, sums);
    for (int r = 0; r < Rows; r++) out[n * out_stride + r] = sums[r];
  }
}

template <int Rows, class TX, class TW>
inline void dot_batch(const TX* const* x, int n, const TW* w, int64_t w_stride, int64_t count, int64_t ahead, float* out,
                      int64_t out_stride) {
  for (; n >= kDotRows; n -= kDotRows, x += kDotRows, out += kDotRows * out_stride)
    dot_rows<Rows, kDotRows>(x, w, w_stride, count, ahead, out, out_stride);
  if constexpr (kDotRows > 2) {
    if (n == 3) dot_rows<Rows, 3>(x, w, w_stride, count, ahead, out, out_stride);
    if (n == 2) dot_rows<Rows, 2>(x, w, w_stride, count, ahead, out, out_stride);
  }
  if (n == 1) dot_rows<Rows, 1>(x, w, w_stride, count, ahead, out, out_stride);
}

// The same for any number of weight rows and of x. Weights are prefetched 4 KiB ahead but at least as far as the rows that
// are read side by side reach; rows spread widely (keys of one head) by eight rows.
template <class TX, class TW>
inline void dots(const TX* const* x, int n, const TW* w, int64_t w_stride, int64_t w_rows, int64_t count, float* out,
                 int64_t out_stride) {
  int64_t ahead = 4096 / int64_t(sizeof(TW)), pair = n > 1 ? 2 * w_stride : 0, r = 0;
  ahead = w_stride >= 2 * count ? 8 * w_stride : ahead > pair ? ahead : pair;
  for (; r + 4 <= w_rows; r += 4) dot_batch<4>(x, n, w + r * w_stride, w_stride, count, ahead, out + r, out_stride);
  for (; r < w_rows; r++) dot_batch<1>(x, n, w + r * w_stride, w_stride, count, ahead, out + r, out_stride);
}

// Points at `rows` rows of x as operands; rows of another type are converted into `memory` [rows, count].
template <class O, class TX, class Row>
inline void operands(Row row, int rows, int64_t count, float* memory, const O** out) {
  for (int m = 0; m < rows; m++) {
    if constexpr (std::is_same<O, TX>::value) {
      out[m] = row(m);
    } else {
      for (int64_t i = 0; i < count; i += W) {
        int rest = int(count - i < W ? count - i : W);
        store_n(memory + m * count + i, load_n(row(m) + i, rest), rest);
      }
      out[m] = memory + m * count;
    }
  }
}

template <int R, class TW>
inline void add_some_rows(float* const* y, int n, const float* h, int64_t h_stride, const TW* w, int64_t w_stride,
                          int64_t count) {
  int64_t ahead = R * w_stride;
  for (int m = 0; m < n; m++) {
    F scale[R];
    for (int r = 0; r < R; r++) scale[r] = set1(h[m * h_stride + r]);
    float* out = y[m];
    int64_t j = 0;
    for (; j + W <= count; j += W) {
      if (m == 0 && j % (64 / int64_t(sizeof(TW))) == 0)
        for (int r = 0; r < R; r++) prefetch(w + r * w_stride + j + ahead);
      F sum = load(out + j);
      for (int r = 0; r < R; r++) sum = fma(scale[r], load(w + r * w_stride + j), sum);
      store(out + j, sum);
    }
    if (j < count) {
      int rest = int(count - j);
      F sum = load_n(out + j, rest);
      for (int r = 0; r < R; r++) sum = fma(scale[r], load_n(w + r * w_stride + j, rest), sum);
      store_n(out + j, sum, rest);
    }
  }
}

// y_n += h[n * h_stride + i] * w_i for all i, in order of i: each element of y is one chain of additions.
template <class TW>
inline void add_scaled_rows(float* const* y, int n, const float* h, int64_t h_stride, const TW* w, int64_t w_stride,
                            int64_t w_rows, int64_t count) {
  int64_t i = 0;
  for (; i + 4 <= w_rows; i += 4) add_some_rows<4>(y, n, h + i, h_stride, w + i * w_stride, w_stride, count);
  for (; i < w_rows; i++) add_some_rows<1>(y, n, h + i, h_stride, w + i * w_stride, w_stride, count);
}

// Packed tiles. A cell is 4 bytes: one float32, or with the bfloat16 dot product two bfloat16 that are neighbours along
// the sum. Panel of x: [cells][kTileRows]; panel of w: [cells][kTileOuts].
constexpr int kTileRows = FTC_ISA >= 2 ? 12 : 6;
constexpr int kTileOuts = 2 * W;
typedef uint32_t Pair;
template <class TX, class TW>
using Cell = std::conditional_t<FTC_ISA == 3 && sizeof(TX) == 2 && sizeof(TW) == 2, Pair, float>;

template <class C>
inline int64_t cells(int64_t count) {
  return std::is_same<C, Pair>::value ? (count + 1) / 2 : count;
}
template <class C, class T>
inline C cell(const T* row, int64_t i, int64_t count) {
  if constexpr (std::is_same<C, Pair>::value)
    return row[2 * i].bits | (2 * i + 1 < count ? uint32_t(row[2 * i + 1].bits) << 16 : 0);
  else
    return to_float(row[i]);
}

// W vectors as a W x W matrix of cells, transposed in place.
inline void transpose(F* v) {
#if FTC_ISA >= 2
  F t[16];
  for (int g = 0; g < 16; g += 4) {
    F a = _mm512_unpacklo_ps(v[g], v[g + 1]), b = _mm512_unpackhi_ps(v[g], v[g + 1]);
    F c = _mm512_unpacklo_ps(v[g + 2], v[g + 3]), d = _mm512_unpackhi_ps(v[g + 2], v[g + 3]);
    t[g] = (F)_mm512_unpacklo_pd((__m512d)a, (__m512d)c);
    t[g + 1] = (F)_mm512_unpackhi_pd((__m512d)a, (__m512d)c);
    t[g + 2] = (F)_mm512_unpacklo_pd((__m512d)b, (__m512d)d);
    t[g + 3] = (F)_mm512_unpackhi_pd((__m512d)b, (__m512d)d);
  }
  for (int c = 0; c < 4; c++) {
    F a = _mm512_shuffle_f32x4(t[c], t[4 + c], 0x88), b = _mm512_shuffle_f32x4(t[8 + c], t[12 + c], 0x88);
    F d = _mm512_shuffle_f32x4(t[c], t[4 + c], 0xdd), e = _mm512_shuffle_f32x4(t[8 + c], t[12 + c], 0xdd);
    v[c] = _mm512_shuffle_f32x4(a, b, 0x88);
    v[c + 4] = _mm512_shuffle_f32x4(d, e, 0x88);
    v[c + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
    v[c + 12] = _mm512_shuffle_f32x4(d, e, 0xdd);
  }
#elif FTC_ISA == 1
  F t[8];
  for (int g = 0; g < 8; g += 4) {
    F a = _mm256_unpacklo_ps(v[g], v[g + 1]), b = _mm256_unpackhi_ps(v[g], v[g + 1]);
    F c = _mm256_unpacklo_ps(v[g + 2], v[g + 3]), d = _mm256_unpackhi_ps(v[g + 2], v[g + 3]);
    t[g] = (F)_mm256_unpacklo_pd((__m256d)a, (__m256d)c);
    t[g + 1] = (F)_mm256_unpackhi_pd((__m256d)a, (__m256d)c);
    t[g + 2] = (F)_mm256_unpacklo_pd((__m256d)b, (__m256d)d);
    t[g + 3] = (F)_mm256_unpackhi_pd((__m256d)b, (__m256d)d);
  }
  for (int c = 0; c < 4; c++) {
    v[c] = _mm256_permute2f128_ps(t[c], t[4 + c], 0x20);
    v[c + 4] = _mm256_permute2f128_ps(t[c], t[4 + c], 0x31);
  }
#else
  F t[4] = {v[0], v[1], v[2], v[3]};
  for (int i = 0; i < 4; i++) v[i] = F{t[0][i], t[1][i], t[2][i], t[3][i]};
#endif
}

// `rows` rows (pointers), each `count` long, into panel[cell][lane] of `lanes` lanes; absent rows become zero.
template <class C, class T, class Row>
inline void pack_rows(Row row, int rows, int lanes, int64_t count, C* panel) {
  int64_t steps = cells<C>(count), whole = std::is_same<C, Pair>::value ? count / 2 : count;
  constexpr int64_t per_cell = std::is_same<C, Pair>::value ? 2 : 1;
  for (int first = 0; first < lanes; first += W) {
    int wide = lanes - first < W ? lanes - first : W, there = rows - first < wide ? rows - first : wide;
    int64_t i = 0;
    for (; i + W <= whole; i += W) {
      F v[W];
      for (int r = 0; r < W; r++) {
        if (r < there) prefetch(row(first + r) + per_cell * i + 512 / sizeof(T));
        if (r >= there) v[r] = set1(0);
        else if constexpr (std::is_same<C, Pair>::value) v[r] = load((const float*)(row(first + r) + per_cell * i));
        else v[r] = load(row(first + r) + i);
      }
      transpose(v);
      for (int s = 0; s < W; s++) {
        float* to = (float*)panel + (i + s) * lanes + first;
        if (wide == W) store(to, v[s]);
        else store_n(to, v[s], wide);
      }
    }
    for (; i < steps; i++)
      for (int r = 0; r < wide; r++) panel[i * lanes + first + r] = r < there ? cell<C>(row(first + r), i, count) : C(0);
  }
}

// Panels of w from rows that run along the outputs: w[i][first out ...], `outs` of them there, panel after panel.
template <class C, class T>
inline void pack_columns(const T* w, int64_t w_stride, int outs, int64_t count, C* panels) {
  int64_t steps = cells<C>(count);
  for (int64_t i = 0; i < steps; i++)
    for (int j = 0; j < outs; j += W) {
      int rest = outs - j < W ? outs - j : W;
      C* to = panels + (j / kTileOuts * steps + i) * kTileOuts + j % kTileOuts;
#if FTC_ISA == 3
      if constexpr (std::is_same<C, Pair>::value) {
        __mmask16 mask = (__mmask16)((1u << rest) - 1);
        const T* p = w + 2 * i * w_stride + j;
        prefetch(p + 16 * w_stride);
        prefetch(p + 17 * w_stride);
        __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p));
        if (2 * i + 1 < count)
          low = _mm512_or_si512(
              low, _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p + w_stride)), 16));
        _mm512_storeu_si512(to, low);
      }
#endif
      if constexpr (!std::is_same<C, Pair>::value) {
        const T* p = w + i * w_stride + j;
        prefetch(p + 8 * w_stride);
        store(to, load_n(p, rest));
      }
    }
}

// c[M][kTileOuts] = x panel . w panel. kStep, kRow: distance in cells of x between steps and between rows. next: memory
// to prefetch, a line a step, null for none.
template <int M, int kStep, int kRow, class C>
inline void multiply_block(const C* x, const C* w, int64_t steps, float* c, const char* next) {
  F acc[M][2];
  for (int m = 0; m < M; m++) acc[m][0] = acc[m][1] = set1(0);
  int64_t stride = next ? 64 : 0;
  next = next ? next : (const char*)w;
  for (int64_t i = 0; i < steps; i++, x += kStep, w += kTileOuts, next += stride) {
    prefetch(next);
#if FTC_ISA == 3
    if constexpr (std::is_same<C, Pair>::value) {
      __m512bh w0 = (__m512bh)_mm512_loadu_si512(w), w1 = (__m512bh)_mm512_loadu_si512(w + W);
      for (int m = 0; m < M; m++) {
        __m512bh one = (__m512bh)_mm512_set1_epi32(int(x[m * kRow]));
        acc[m][0] = _mm512_dpbf16_ps(acc[m][0], w0, one);
        acc[m][1] = _mm512_dpbf16_ps(acc[m][1], w1, one);
      }
      continue;
    }
#endif
    if constexpr (!std::is_same<C, Pair>::value) {
      F w0 = load(w), w1 = load(w + W);
      for (int m = 0; m < M; m++) {
        F one = set1(x[m * kRow]);
        acc[m][0] = fma(one, w0, acc[m][0]);
        acc[m][1] = fma(one, w1, acc[m][1]);
      }
    }
  }
  for (int m = 0; m < M; m++) {
    store(c + m * kTileOuts, acc[m][0]);
    store(c + m * kTileOuts + W, acc[m][1]);
  }
}

// `rows` of a tile, rounded up to a third of it: the panel holds zeros or stale finite rows beyond.
template <int kStep = kTileRows, int kRow = 1, class C>
inline void multiply(const C* x, const C* w, int64_t steps, int rows, float* c, const char* next = nullptr) {
  constexpr int third = kTileRows / 3;
  if (rows > 2 * third) multiply_block<kTileRows, kStep, kRow>(x, w, steps, c, next);
  else if (rows > third) multiply_block<2 * third, kStep, kRow>(x, w, steps, c, next);
  else multiply_block<third, kStep, kRow>(x, w, steps, c, next);
}
