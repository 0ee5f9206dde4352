// All kernels of one ISA in order of use, and their table. Included by each isa_*.cpp inside its namespace.
#include "simd.h"
#include "matmul.h"
#include "linear.h"
#include "experts.h"
#include "attention.h"
#include "causal_conv.h"
#include "delta_rule.h"
#include "route.h"
#include "rows.h"

constexpr Kernels table = {linear, experts, attention, causal_conv, delta_rule, route,
                           row_max, row_mass, row_above, row_keep};
