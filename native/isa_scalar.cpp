// The kernels for any CPU: compiler vectors, no target raised.
#include <math.h>
#include <string.h>

#include <atomic>
#include <type_traits>

#include "kernels.h"
#define FTC_ISA 0

namespace ftc {
namespace scalar {
#include "ops.h"
}  // namespace scalar
const Kernels scalar_kernels = scalar::table;
}  // namespace ftc
