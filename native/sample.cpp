// sample: one token per sequence from its logits. The draw depends on seed and position only, never on the batch.
#include "ftc.h"

#include <math.h>
#include <string.h>

#include <algorithm>

#include "kernels.h"

namespace ftc {
namespace {

constexpr int64_t kCandidates = 512;  // how many tokens around a cut are sorted, unless ties make them more
constexpr int kHalvings = 40;         // of the range of logits, at most, until so few are left

struct Row {
  float* logits;
  int64_t vocab;
  const uint32_t* mask;
  float temperature, top_p, min_p, presence, frequency, repetition;
  int32_t top_k;
  uint64_t seed, position;
  const int32_t* counts;
  const uint8_t* seen;
};

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
double uniform(uint64_t seed, uint64_t position) { return double(mix(mix(seed) ^ position) >> 11) * 0x1p-53; }

void adjust(const Row& r) {
  float* x = r.logits;
  if (r.seen && r.repetition != 1)
    for (int64_t i = 0; i < r.vocab; i++)
      if (r.seen[i]) x[i] = x[i] > 0 ? x[i] / r.repetition : x[i] * r.repetition;
  if (r.counts && (r.presence != 0 || r.frequency != 0))
    for (int64_t i = 0; i < r.vocab; i++)
      if (r.counts[i] > 0) x[i] -= r.presence + r.frequency * float(r.counts[i]);
  if (r.mask)
    for (int64_t i = 0; i < r.vocab; i += 32) {
      uint32_t word = r.mask[i / 32];
      if (word == 0xffffffffu) continue;
      int64_t end = std::min(i + 32, r.vocab);
      for (int64_t j = i; j < end; j++)
        if (!(word >> (j - i) & 1)) x[j] = -INFINITY;
    }
}

// A row after penalties: logits, masses e^((x - top) / temperature), and masses summed by blocks.
struct Masses {
  const float* x;
  float* mass;
  double* sums;
  int64_t vocab, blocks;
  float top, low;  // largest logit; one below which no mass is left
};

struct Token {
  float x, mass;
  int64_t id;
};

// The tokens with low <= logit < high and a mass, by falling logit, ties by id.
int64_t sorted(const Masses& m, float low, float high, Token** out) {
  Token* tokens = scratch_of<Token>(kOwn2, m.vocab);
  int64_t count = 0;
  for (int64_t i = 0; i < m.vocab;) {
    // Few runs of 64 hold any: looking for one without branches goes many lanes at a time.
    int64_t end = std::min(i + 64, m.vocab);
    int any = 0;
    for (int64_t j = i; j < end; j++) any |= (m.x[j] >= low) & (m.x[j] < high);
    for (; any && i < end; i++)
      if (m.x[i] >= low && m.x[i] < high && m.mass[i] > 0) tokens[count++] = {m.x[i], m.mass[i], i};
    i = end;
  }
  std::sort(tokens, tokens + count, [](const Token& a, const Token& b) { return a.x != b.x ? a.x > b.x : a.id < b.id; });
  *out = tokens;
  return count;
}

// Halves the range of logits around the place where enough(number, mass of the tokens above) turns true.
template <class Enough>
void narrow(const Masses& m, Enough enough, float* low, float* high, double* above) {
  *low = m.low, *high = INFINITY, *above = 0;
  int64_t low_number, high_number = 0;
  double ignored;
  kernels().row_above(m.x, m.mass, m.vocab, *low, &low_number, &ignored);
  for (int n = 0; n < kHalvings && low_number - high_number > kCandidates; n++) {
    float middle = 0.5f * (*low + (*high == INFINITY ? m.top : *high));
    int64_t number;
    double mass;
    kernels().row_above(m.x, m.mass, m.vocab, middle, &number, &mass);
    if (enough(number, mass)) *low = middle, low_number = number;
    else *high = middle, high_number = number, *above = mass;
  }
}

// Zeroes the masses of all tokens outside top_k, top_p (within the top_k) and min_p.
void cut(const Row& r, Masses& m) {
  Token* tokens = nullptr;
  int64_t kept = -1;  // how many of `tokens` stay; what is above the first stays too
  float low, high;
  double above, total = 0;
  if (r.top_k > 0 && r.top_k < r.vocab) {
    narrow(m, [&](int64_t number, double) { return number >= r.top_k; }, &low, &high, &above);
    int64_t count = sorted(m, low, INFINITY, &tokens);
    kept = count < r.top_k ? count : r.top_k;
    for (int64_t j = 0; j < kept; j++) total += tokens[j].mass;
    above = 0;
  } else if (r.top_p < 1) {
    for (int64_t b = 0; b < m.blocks; b++) total += m.sums[b];
    narrow(m, [&](int64_t, double mass) { return mass >= r.top_p * total; }, &low, &high, &above);
    kept = sorted(m, low, high, &tokens);
  }
  if (kept > 0 && r.top_p < 1) {
    int64_t j = 0;
    while (j < kept && (above += tokens[j].mass) < r.top_p * total) j++;
    kept = j < kept ? j + 1 : kept;
  }
  float level = kept > 0 ? tokens[kept - 1].x : -INFINITY;
  kernels().row_keep(m.x, m.mass, m.vocab, level, r.min_p, m.sums);
  // The last one kept and its equals of lower id lie on the level, not above it.
  for (int64_t j = kept - 1; j >= 0 && tokens[j].x == level; j--)
    if (tokens[j].mass >= r.min_p) m.mass[tokens[j].id] = tokens[j].mass, m.sums[tokens[j].id / kMassBlock] += tokens[j].mass;
}

int32_t draw(const Row& r) {
  adjust(r);
  float top = kernels().row_max(r.logits, r.vocab);
  if (!(top > -INFINITY)) return -1;
  if (!(r.temperature > 0) || top == INFINITY) {
    int64_t i = 0;
    while (r.logits[i] != top) i++;
    return int32_t(i);
  }
  int64_t blocks = (r.vocab + kMassBlock - 1) / kMassBlock;
  float* mass = scratch_of<float>(kOwn, r.vocab);
  double* sums = scratch_of<double>(kOwn3, blocks);
  Masses m = {r.logits, mass, sums, r.vocab, blocks, top, top - 90 * r.temperature};
  kernels().row_mass(r.logits, mass, r.vocab, top, 1 / r.temperature, sums);
  if ((r.top_k > 0 && r.top_k < r.vocab) || r.top_p < 1 || r.min_p > 0) cut(r, m);
  double total = 0, before = 0;
  for (int64_t b = 0; b < blocks; b++) total += sums[b];
  double wanted = uniform(r.seed, r.position) * total;
  int64_t last = -1;
  for (int64_t b = 0; b < blocks; b++) {
    if (before + sums[b] <= wanted) {
      before += sums[b];
      continue;
    }
    double at = before;
    for (int64_t i = b * kMassBlock, end = std::min(i + kMassBlock, r.vocab); i < end; i++) {
      if (!(mass[i] > 0)) continue;
      last = i, at += mass[i];
      if (at > wanted) return int32_t(i);
    }
    if (last >= 0) return int32_t(last);  // the block's own sum was rounded up past its tokens
    before += sums[b];
  }
  for (int64_t i = r.vocab - 1; i >= 0; i--)
    if (mass[i] > 0) return int32_t(i);
  return -1;
}

template <class T>
T* at(uintptr_t p) {
  return reinterpret_cast<T*>(p);
}

}  // namespace
}  // namespace ftc

__attribute__((visibility("default"))) int ftc_sample(
    uintptr_t logits, int64_t sequences, int64_t vocab, uintptr_t mask, uintptr_t forced, uintptr_t temperature,
    uintptr_t top_k, uintptr_t top_p, uintptr_t min_p, uintptr_t presence, uintptr_t frequency, uintptr_t repetition,
    uintptr_t seed, uintptr_t position, uintptr_t counts, uintptr_t seen, uintptr_t tokens) {
  using namespace ftc;
  int64_t words = (vocab + 31) / 32;
  int count = sequences > 1 ? threads() : 1;
#pragma omp parallel for num_threads(count) schedule(dynamic) if (count > 1)
  for (int64_t s = 0; s < sequences; s++) {
    int32_t fixed = at<int32_t>(forced)[s];
    if (fixed >= 0) {
      at<int32_t>(tokens)[s] = fixed;
      continue;
    }
    at<int32_t>(tokens)[s] = draw({at<float>(logits) + s * vocab, vocab,
                                   mask ? at<uint32_t>(mask) + s * words : nullptr, at<float>(temperature)[s],
                                   at<float>(top_p)[s], at<float>(min_p)[s], at<float>(presence)[s],
                                   at<float>(frequency)[s], at<float>(repetition)[s], at<int32_t>(top_k)[s],
                                   at<uint64_t>(seed)[s], at<uint64_t>(position)[s],
                                   counts ? at<int32_t>(counts) + s * vocab : nullptr,
                                   seen ? at<uint8_t>(seen) + s * vocab : nullptr});
  }
  return 0;
}
