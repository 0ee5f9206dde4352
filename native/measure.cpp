// Probes of the machine: what the thread pool reads from memory per second.
#include "ftc.h"

#include <omp.h>
#include <sys/mman.h>

#include "kernels.h"

namespace {

// Sums 64-byte lines in eight chains; prefetches 2 KiB ahead as the kernels do.
uint64_t read_all(const uint64_t* p, int64_t words) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i + 8 <= words; i += 8) {
    __builtin_prefetch(p + i + 256);
    for (int j = 0; j < 8; j++) sums[j] += p[i + j];
  }
  uint64_t total = 0;
  for (uint64_t s : sums) total += s;
  return total;
}

}  // namespace

// Bytes per second of plain reading of `bytes` on huge pages, best pass of those that fit into `seconds` (at least 3).
__attribute__((visibility("default"))) double ftc_read_bandwidth(int64_t bytes, double seconds) {
  int64_t size = bytes < (1 << 21) ? 1 << 21 : bytes;
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return 0;
  madvise(data, size, MADV_HUGEPAGE);
  uint64_t* words = static_cast<uint64_t*>(data);
  int64_t count = size / 8;
  double best = 0, begin = omp_get_wtime();
  uint64_t kept = 0;
#pragma omp parallel for num_threads(ftc::threads()) schedule(static)
  for (int64_t i = 0; i < count; i++) words[i] = i;
  for (int pass = 0; pass < 3 || omp_get_wtime() - begin < seconds; pass++) {
    double start = omp_get_wtime();
#pragma omp parallel num_threads(ftc::threads()) reduction(+ : kept)
    {
      int64_t n = omp_get_num_threads(), t = omp_get_thread_num();
      kept += read_all(words + count * t / n / 8 * 8, count / n);
    }
    double rate = count / omp_get_num_threads() * 8. / (omp_get_wtime() - start);
    best = rate > best ? rate : best;
  }
  munmap(data, size);
  return kept == 42 ? 0 : best;
}
