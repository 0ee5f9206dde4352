// Pieces of sample that go over a whole row of logits.

inline float row_max(const float* x, int64_t count) {
  F a = set1(-INFINITY), b = a;
  int64_t i = 0;
  for (; i + 2 * W <= count; i += 2 * W) a = max(load(x + i), a), b = max(load(x + i + W), b);
  float best = top(max(a, b));
  for (; i < count; i++) best = x[i] > best ? x[i] : best;
  return best;
}

inline void row_exp(float* x, int64_t count, float top, float inverse_temperature) {
  F shift = set1(top), factor = set1(inverse_temperature);
  for (int64_t i = 0; i < count; i += W) {
    int rest = int(count - i < W ? count - i : W);
    store_n(x + i, exp((load_n(x + i, rest) - shift) * factor), rest);
  }
}
