#include "hpcdl/ops/fill/fill.h"

#include "hpcdl/ops/require.h"
#include "hpcdl/program/check.h"

namespace hpcdl {

/// Graph::fill passes only the output operand.
void Fill::check_record(const RawRecord& r) {
  if (r.count() != 2) r.require_count(1);
  require_float(name, r.spec(0), "output");
  if (r.count() == 2) require_spec(name, "input", r.spec(1), r.spec(0));
}

void AddInto::check_record(const RawRecord& r) {
  r.require_count(2);
  require_spec(name, "the addend", r.spec(1), require_float(name, r.spec(0), "sum"));
}

}  // namespace hpcdl
