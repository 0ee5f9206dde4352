// sample: one token per sequence from its logits. The draw depends on seed and position only, never on the batch.
#include "ftc.h"

#include <math.h>
#include <string.h>

#include <algorithm>

#include "kernels.h"

namespace ftc {
namespace {

constexpr int kBins = 512;       // of the distance to the largest logit, 1/16 each in units of the temperature
constexpr int64_t kBlock = 256;  // tokens of one partial sum

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

// The last token kept in the order (logit descending, id ascending); everything before it is kept too.
struct Cut {
  float logit;
  int64_t id;
  bool keeps(float x, int64_t i) const { return x > logit || (x == logit && i <= id); }
};

// Finds cuts by count and by mass with one histogram; only the bin that the cut falls into is sorted.
class Cutter {
 public:
  Cutter(const Row& r, const float* mass, float top)
      : r_(r), mass_(mass), top_(top), scale_(16 / r.temperature), cut_{-INFINITY, r.vocab} {
    for (int64_t i = 0; i < r.vocab; i++) {
      if (!(mass[i] > 0)) continue;
      int b = bin(r.logits[i]);
      counts_[b]++, sums_[b] += mass[i];
    }
  }

  void by_count(int64_t wanted) {
    int64_t count = 0;
    for (int b = 0; b < kBins; b++) {
      if (count + counts_[b] >= wanted) {
        int64_t* ids = sorted(b);
        cut_ = {r_.logits[ids[wanted - count - 1]], ids[wanted - count - 1]};
        last_ = b, kept_ = wanted - count;
        return;
      }
      count += counts_[b];
    }
  }

  void by_mass(double share) {
    double total = 0, seen = 0;
    for (int b = 0; b < last_; b++) total += sums_[b];
    if (last_ < kBins) {
      int64_t* ids = sorted(last_);
      for (int64_t j = 0; j < kept_; j++) total += mass_[ids[j]];
    }
    double wanted = share * total;
    for (int b = 0; b <= last_ && b < kBins; b++) {
      if (b < last_ && seen + sums_[b] < wanted) {
        seen += sums_[b];
        continue;
      }
      int64_t* ids = sorted(b);
      int64_t count = b == last_ ? kept_ : counts_[b];
      for (int64_t j = 0; j < count; j++) {
        seen += mass_[ids[j]];
        cut_ = {r_.logits[ids[j]], ids[j]};
        if (seen >= wanted) return;
      }
    }
  }

  Cut cut() const { return cut_; }

 private:
  int bin(float x) const {
    float b = (top_ - x) * scale_;
    return b < kBins - 1 ? int(b) : kBins - 1;
  }
  int64_t* sorted(int b) {
    int64_t *ids = scratch_of<int64_t>(kOwn2, r_.vocab), n = 0;
    for (int64_t i = 0; i < r_.vocab; i++)
      if (mass_[i] > 0 && bin(r_.logits[i]) == b) ids[n++] = i;
    const float* x = r_.logits;
    std::sort(ids, ids + n, [x](int64_t i, int64_t j) { return x[i] != x[j] ? x[i] > x[j] : i < j; });
    return ids;
  }

  const Row& r_;
  const float* mass_;
  float top_, scale_;
  Cut cut_;
  int last_ = kBins;  // bin of the cut by count
  int64_t kept_ = 0, counts_[kBins] = {};
  double sums_[kBins] = {};
};

int32_t draw(const Row& r) {
  adjust(r);
  float top = kernels().row_max(r.logits, r.vocab);
  if (!(top > -INFINITY)) return -1;
  if (!(r.temperature > 0) || top == INFINITY) {
    int64_t i = 0;
    while (r.logits[i] != top) i++;
    return int32_t(i);
  }
  float* mass = scratch_of<float>(kOwn, r.vocab);
  memcpy(mass, r.logits, r.vocab * sizeof(float));
  kernels().row_exp(mass, r.vocab, top, 1 / r.temperature);
  if ((r.top_k > 0 && r.top_k < r.vocab) || r.top_p < 1 || r.min_p > 0) {
    Cut cut = {-INFINITY, r.vocab};
    if ((r.top_k > 0 && r.top_k < r.vocab) || r.top_p < 1) {
      Cutter cutter(r, mass, top);
      if (r.top_k > 0 && r.top_k < r.vocab) cutter.by_count(r.top_k);
      if (r.top_p < 1) cutter.by_mass(r.top_p);
      cut = cutter.cut();
    }
    for (int64_t i = 0; i < r.vocab; i++)
      if (!cut.keeps(r.logits[i], i) || !(mass[i] >= r.min_p)) mass[i] = 0;
  }
  int64_t blocks = (r.vocab + kBlock - 1) / kBlock, last = -1;
  double* sums = scratch_of<double>(kOwn3, blocks);
  double total = 0;
  for (int64_t b = 0; b < blocks; b++) {
    double part[4] = {};
    int64_t i = b * kBlock, end = std::min(i + kBlock, r.vocab);
    for (; i < end; i++) part[i & 3] += mass[i] > 0 ? mass[i] : 0;
    sums[b] = (part[0] + part[1]) + (part[2] + part[3]);
    total += sums[b];
  }
  double wanted = uniform(r.seed, r.position) * total, before = 0;
  for (int64_t b = 0; b < blocks; b++) {
    if (before + sums[b] <= wanted) {
      before += sums[b];
      continue;
    }
    for (int64_t i = b * kBlock, end = std::min(i + kBlock, r.vocab); i < end; i++) {
      if (!(mass[i] > 0)) continue;
      last = i, before += mass[i];
      if (before > wanted) return int32_t(i);
    }
  }
  // Rounding left the target just above the last sum: the last token kept.
  for (int64_t i = r.vocab - 1; last < 0; i--)
    if (mass[i] > 0) last = i;
  return int32_t(last);
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
