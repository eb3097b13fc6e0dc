#include "hpcdl/ops/batch_norm/batch_norm.h"
#include "hpcdl/program/check.h"

namespace hpcdl {

void RunningStatistics::check_record(const RawRecord& r) {
  r.require_count(3);
  check_args(r.contiguous(0), r.contiguous(1), r.contiguous(2), r.args<Args>());
}

}  // namespace hpcdl
