#include "hpcdl/dtype.h"

#include "hpcdl/core/error.h"

namespace hpcdl {

void fail_dtype(DType d) { fail("core", "expected F32, BF16 or F16 to compute with, got {}", dtype_name(d)); }

}  // namespace hpcdl
