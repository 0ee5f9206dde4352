// route: the top-k experts of each row and their weights.

// Index of the largest of c, ties to the lower; -1 when nothing is above -infinity.
inline int64_t best_of(const float* c, int64_t count) {
  F tops = set1(-INFINITY);
  int64_t i = 0;
  for (; i + W <= count; i += W) tops = max(load(c + i), tops);
  float best = top(tops);
  for (; i < count; i++) best = c[i] > best ? c[i] : best;
  if (best == -INFINITY) return -1;
  for (i = 0; c[i] != best; i++) {
  }
  return i;
}

// Scores in place. Softmax runs over all `count`, the others element by element.
inline void score_of(float* s, int64_t count, int score) {
  float shift = 0;
  if (score == kSoftmax) {
    shift = -INFINITY;
    for (int64_t i = 0; i < count; i++) shift = s[i] > shift ? s[i] : shift;
  }
  for (int64_t i = 0; i < count; i += W) {
    int rest = int(count - i < W ? count - i : W);
    F x = load_n(s + i, rest), y;
    if (score == kSoftmax) y = exp(x - set1(shift));
    else y = sigmoid(x);
    if (score == kSqrtSoftplus)
      for (int j = 0; j < rest; j++) ((float*)&y)[j] = sqrtf(s[i + j] > 20 ? s[i + j] : log1pf(expf(s[i + j])));
    store_n(s + i, y, rest);
  }
  if (score == kSoftmax) {
    float total = 0;
    for (int64_t i = 0; i < count; i++) total += s[i];
    for (int64_t i = 0; i < count; i++) s[i] /= total;
  }
}

inline void limit_groups(const Route& a, float* choice, float* group_scores) {
  int64_t size = a.experts / a.groups;
  for (int64_t g = 0; g < a.groups; g++) {
    float best = -INFINITY, second = -INFINITY;
    for (int64_t i = g * size; i < (g + 1) * size; i++) {
      if (choice[i] > best) second = best, best = choice[i];
      else if (choice[i] > second) second = choice[i];
    }
    group_scores[g] = a.group_score && size > 1 ? best + second : best;
  }
  // Taken groups are marked by NaN, which no comparison finds again.
  for (int64_t n = 0; n < a.groups_taken; n++) {
    int64_t best = -1;
    for (int64_t g = 0; g < a.groups; g++)
      if (group_scores[g] == group_scores[g] && (best < 0 || group_scores[g] > group_scores[best])) best = g;
    if (best >= 0) group_scores[best] = NAN;
  }
  for (int64_t g = 0; g < a.groups; g++)
    if (group_scores[g] == group_scores[g])
      for (int64_t i = g * size; i < (g + 1) * size; i++) choice[i] = -INFINITY;
}

inline void route_row(const Route& a, int64_t row, float* scores, float* choice, float* group_scores) {
  const float* logits = a.logits + row * a.stride;
  memcpy(scores, logits, a.experts * sizeof(float));
  if (!a.choose_first) score_of(scores, a.experts, a.score);
  for (int64_t i = 0; i < a.experts; i++) {
    choice[i] = a.bias ? scores[i] + a.bias[i] : scores[i];
    if (choice[i] != choice[i]) choice[i] = -INFINITY;
  }
  if (a.groups > 1 && a.groups_taken < a.groups) limit_groups(a, choice, group_scores);
  int32_t* ids = a.ids + row * a.top_k;
  float* weights = a.weights + row * a.top_k;
  for (int64_t k = 0; k < a.top_k; k++) {
    int64_t best = best_of(choice, a.experts);
    for (int64_t i = 0; best < 0; i++) {  // only NaN and -infinity are left: the lowest id not taken yet
      best = i;
      for (int64_t j = 0; j < k; j++)
        if (ids[j] == i) best = -1;
    }
    ids[k] = int32_t(best);
    weights[k] = scores[best];
    choice[best] = -INFINITY;
  }
  if (a.choose_first) score_of(weights, a.top_k, a.score);
  float total = a.epsilon;
  for (int64_t k = 0; k < a.top_k; k++) total += weights[k];
  float factor = a.renormalize ? a.scale / total : a.scale;
  for (int64_t k = 0; k < a.top_k; k++) weights[k] *= factor;
}

inline void route(const Route& a) {
  Tasks tasks;
  parallel(a.rows * a.experts > 16384, [&] {
    float* memory = scratch_of<float>(kOwn, 2 * a.experts + a.groups);
    tasks.run(a.rows, [&](int64_t row) {
      route_row(a, row, memory, memory + a.experts, memory + 2 * a.experts);
    });
  });
}
