// The CPU branch of a GPU's decode step: a thread that polls a mailbox in pinned memory and runs the expert kernel.
#include <string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "ftc.h"

namespace {

enum { kOrdinal, kRows, kTopK, kRoutes, kAsked, kAnswered, kLate };
constexpr int kKept = 4096;  // answers whose times are kept

struct Worker {
  const float* x;
  const int32_t* ids;
  float* out;
  int32_t* note;
  uintptr_t gate, up, down;
  int64_t gate_stride, up_stride, down_stride;
  int w_dtype, activation;
  float limit, alpha;
  int64_t experts, hidden, width;

  std::vector<float> in, answer, ones;
  std::vector<int32_t> chosen;
  std::vector<int64_t> place;
  std::atomic<bool> active{false}, ending{false}, warm{false};
  std::mutex mutex;
  std::condition_variable woken;
  int64_t times[kKept][2];
  std::atomic<int64_t> answers{0};
  int64_t told = 0;
  std::thread thread;

  int32_t asked() const { return __atomic_load_n(note + kAsked, __ATOMIC_ACQUIRE); }

  void compute(const int32_t* ordinal, int64_t count) {
    ftc_experts((uintptr_t)in.data(), 0, hidden, (uintptr_t)chosen.data(), (uintptr_t)ones.data(), gate, gate_stride, up,
                up_stride, down, down_stride, w_dtype, (uintptr_t)ordinal, experts, activation, limit, alpha,
                (uintptr_t)answer.data(), count, 1, hidden, width, 0, 0, 0, 0);
  }

  // The first call of this thread makes its team of threads and its scratch memory: not while a GPU waits.
  void warm_up() {
    const int32_t first = 0;
    int64_t most = int64_t(chosen.size());
    for (int64_t i = 0; i < most; i++) chosen[i] = int32_t(i % experts);
    for (int64_t count : {std::min<int64_t>(most, 8), most}) compute(&first, count);
    std::lock_guard<std::mutex> lock(mutex);
    warm.store(true);
    woken.notify_all();
  }

  void run() {
    warm_up();
    int32_t last = __atomic_load_n(note + kAnswered, __ATOMIC_RELAXED);
    while (!ending.load(std::memory_order_relaxed)) {
      int32_t number = asked();
      if (number != last) {
        answer_one();
        last = number;
        __atomic_store_n(note + kAnswered, number, __ATOMIC_RELEASE);
      } else if (active.load(std::memory_order_relaxed)) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      } else {
        // wakes now and then all the same: a question is answered even if nobody said that a step began
        std::unique_lock<std::mutex> lock(mutex);
        woken.wait_for(lock, std::chrono::milliseconds(1), [&] { return active.load() || ending.load(); });
      }
    }
  }

  void answer_one() {
    auto start = std::chrono::steady_clock::now();
    int64_t top_k = note[kTopK], routes = int64_t(note[kRows]) * top_k, count = 0;
    for (int64_t route = 0; route < routes; route++) {
      if (ids[route] < 0) continue;
      memcpy(&in[count * hidden], x + route / top_k * hidden, hidden * sizeof(float));
      chosen[count] = ids[route];
      place[count++] = route;
    }
    compute(note + kOrdinal, count);
    for (int64_t i = 0; i < count; i++)
      memcpy(out + place[i] * hidden, &answer[i * hidden], hidden * sizeof(float));
    auto spent = std::chrono::steady_clock::now() - start;
    int64_t n = answers.load(std::memory_order_relaxed);
    times[n % kKept][0] = count;
    times[n % kKept][1] = std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count();
    answers.store(n + 1, std::memory_order_release);
  }
};

}  // namespace

extern "C" {

uintptr_t ftc_worker_new(uintptr_t x, uintptr_t ids, uintptr_t out, uintptr_t note, uintptr_t gate, int64_t gate_stride,
                         uintptr_t up, int64_t up_stride, uintptr_t down, int64_t down_stride, int w_dtype, int64_t experts,
                         int activation, float limit, float alpha, int64_t hidden, int64_t width, int64_t most_routes) {
  Worker* w = new Worker();
  w->x = (const float*)x, w->ids = (const int32_t*)ids, w->out = (float*)out, w->note = (int32_t*)note;
  w->gate = gate, w->up = up, w->down = down;
  w->gate_stride = gate_stride, w->up_stride = up_stride, w->down_stride = down_stride;
  w->w_dtype = w_dtype, w->activation = activation, w->limit = limit, w->alpha = alpha;
  w->experts = experts, w->hidden = hidden, w->width = width;
  w->in.resize(most_routes * hidden), w->answer.resize(most_routes * hidden), w->ones.assign(most_routes, 1.0f);
  w->chosen.resize(most_routes), w->place.resize(most_routes);
  w->thread = std::thread([w] { w->run(); });
  std::unique_lock<std::mutex> lock(w->mutex);
  w->woken.wait(lock, [w] { return w->warm.load(); });
  return (uintptr_t)w;
}

void ftc_worker_active(uintptr_t worker, int active) {
  Worker* w = (Worker*)worker;
  {
    std::lock_guard<std::mutex> lock(w->mutex);
    w->active.store(active != 0);
  }
  if (active) w->woken.notify_one();
}

int64_t ftc_worker_times(uintptr_t worker, int64_t* pairs, int64_t most) {
  Worker* w = (Worker*)worker;
  int64_t end = w->answers.load(std::memory_order_acquire), since = end - w->told;
  int64_t begin = end - std::min(since, std::min<int64_t>(most, kKept));
  for (int64_t n = begin; n < end; n++) {
    pairs[2 * (n - begin)] = w->times[n % kKept][0];
    pairs[2 * (n - begin) + 1] = w->times[n % kKept][1];
  }
  w->told = end;
  return since;
}

void ftc_worker_free(uintptr_t worker) {
  Worker* w = (Worker*)worker;
  w->ending.store(true);
  {
    std::lock_guard<std::mutex> lock(w->mutex);
  }
  w->woken.notify_one();
  w->thread.join();
  delete w;
}
}
