#include "hpcdl/ops/kv_write/kv_write.h"

#include "hpcdl/program/check.h"

namespace hpcdl {

void KvWrite::check(const Spec& pool, const Spec& x, const Spec& slots) {
  require_float(name, x);
  require_pool(name, pool);
  const auto cols = pool[1] * head_dim_of(pool);
  require(x.shape.rank() == 3 && x[2] == cols, name, "{} does not fit into a pool of {}; expected (B, T, {})",
          to_string(x), to_string(pool), cols);
  require(slots.dtype == DType::i64 && slots.size() == x[0] * x[1], name, "{} rows need as many slots of I64, got {}",
          x[0] * x[1], to_string(slots));
}

void KvWrite::require_slots(const View& slots, const View& pool) {
  const auto room = pool[0] * kPageTokens;
  for (std::int64_t i = 0; i < slots.size(); ++i) {
    const auto slot = slots.ptr<std::int64_t>()[i];
    require(slot >= -1 && slot < room, name, "the pool has slots 0 .. {}, row {} is for slot {}", room - 1, i, slot);
  }
}

void KvWrite::check_record(const RawRecord& r) {
  r.require_count(5);
  check(r.contiguous(0), r.spec(2), r.contiguous(4)), check(r.contiguous(1), r.spec(3), r.spec(4));
  require(r.spec(0)[0] == r.spec(1)[0], name, "keys and values have other numbers of pages");
}

}  // namespace hpcdl
