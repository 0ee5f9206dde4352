// A tape: the kernel calls of a step with all their arguments, recorded once and replayed without Python. It is to a CPU
// what a captured graph is to a GPU: every pointer is fixed, everything that changes is data behind a pointer.
#include <stddef.h>
#include <string.h>

#include <type_traits>
#include <utility>
#include <vector>

#include "ftc.h"

namespace {

union Slot {
  int64_t whole;
  double real;
};

template <class T>
T get(Slot s) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(s.real);
  } else {
    return static_cast<T>(s.whole);
  }
}

template <class... A, size_t... I>
int unpack(int (*op)(A...), const Slot* s, std::index_sequence<I...>) {
  return op(get<A>(s[I])...);
}
template <class... A>
int invoke(int (*op)(A...), const Slot* s) {
  return unpack(op, s, std::index_sequence_for<A...>{});
}
// "f" for each floating point argument, "i" for the others: how a recorder fills the slots.
template <class... A>
const char* kinds(int (*)(A...)) {
  static const char text[] = {(std::is_floating_point_v<A> ? 'f' : 'i')..., 0};
  return text;
}

struct Op {
  const char* name;
  int (*call)(const Slot*);
  const char* kinds;
};
#define OP(name) {#name, [](const Slot* s) { return invoke(name, s); }, kinds(name)}
const Op kOps[] = {OP(ftc_linear),     OP(ftc_experts), OP(ftc_attention), OP(ftc_causal_conv),
                   OP(ftc_delta_rule), OP(ftc_route)};
#undef OP

const Op* find(const char* name) {
  for (const Op& op : kOps) {
    if (!strcmp(op.name, name)) return &op;
  }
  return nullptr;
}

template <size_t... I>
void unpack_pointers(uintptr_t function, const Slot* s, std::index_sequence<I...>) {
  using Kernel = void (*)(decltype((void)I, static_cast<void*>(nullptr))...);
  reinterpret_cast<Kernel>(function)(reinterpret_cast<void*>(s[I].whole)...);
}
template <size_t N>
void call_pointers(uintptr_t function, const Slot* s) {
  unpack_pointers(function, s, std::make_index_sequence<N>{});
}
using PointerCall = void (*)(uintptr_t, const Slot*);
template <size_t... N>
PointerCall pointer_call(size_t count, std::index_sequence<N...>) {
  static const PointerCall table[] = {call_pointers<N>...};
  return table[count];
}
constexpr size_t kMostPointers = 48;

struct Entry {
  int (*op)(const Slot*);
  PointerCall kernel;
  uintptr_t function;
  size_t first;
};

struct Tape {
  std::vector<Entry> entries;
  std::vector<Slot> slots;
};

}  // namespace

extern "C" {

uintptr_t ftc_tape_new(void) { return reinterpret_cast<uintptr_t>(new Tape); }

void ftc_tape_free(uintptr_t tape) { delete reinterpret_cast<Tape*>(tape); }

const char* ftc_tape_kinds(const char* name) {
  const Op* op = find(name);
  return op ? op->kinds : nullptr;
}

int ftc_tape_op(uintptr_t tape, const char* name, const void* slots, int count) {
  const Op* op = find(name);
  if (!op || strlen(op->kinds) != static_cast<size_t>(count)) return 1;
  Tape& t = *reinterpret_cast<Tape*>(tape);
  t.entries.push_back({op->call, nullptr, 0, t.slots.size()});
  const Slot* from = static_cast<const Slot*>(slots);
  t.slots.insert(t.slots.end(), from, from + count);
  return 0;
}

int ftc_tape_kernel(uintptr_t tape, uintptr_t function, const void* slots, int count) {
  if (count < 0 || static_cast<size_t>(count) >= kMostPointers) return 1;
  Tape& t = *reinterpret_cast<Tape*>(tape);
  PointerCall call = pointer_call(count, std::make_index_sequence<kMostPointers>{});
  t.entries.push_back({nullptr, call, function, t.slots.size()});
  const Slot* from = static_cast<const Slot*>(slots);
  t.slots.insert(t.slots.end(), from, from + count);
  return 0;
}

int64_t ftc_tape_run(uintptr_t tape) {
  const Tape& t = *reinterpret_cast<const Tape*>(tape);
  for (size_t i = 0; i < t.entries.size(); i++) {
    const Entry& e = t.entries[i];
    const Slot* s = t.slots.data() + e.first;
    if (e.op) {
      if (e.op(s)) return static_cast<int64_t>(i) + 1;
    } else {
      e.kernel(e.function, s);
    }
  }
  return 0;
}

}  // extern "C"
