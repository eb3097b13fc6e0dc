#include "hpcdl/ops/kv_cache/kv_cache.h"

#include "hpcdl/program/check.h"

namespace hpcdl {

void AppendToCache::check(const Spec& cache, const Spec& x) {
  require_float(name, x);
  require_float(name, cache, "the cache");
  require(x.shape.rank() == 3 && cache.shape.rank() == 3 && cache[0] == x[0] && cache[2] == x[2] && cache[1] >= x[1],
          name, "{} does not fit into a cache of {}; expected (B, T, C) and (B, capacity, C)", to_string(x),
          to_string(cache));
}

void AppendToCache::require_room(const View& cache, const View& x, std::int64_t position) {
  require(position >= 0 && position + x[1] <= cache[1], name, "the cache holds {} tokens; cannot append {} after {}",
          cache[1], x[1], position);
}

void AppendToCache::check_record(const RawRecord& r) {
  r.require_count(4);
  check(r.contiguous(0), r.spec(2)), check(r.contiguous(1), r.spec(3));
  require(r.spec(0)[1] == r.spec(1)[1] && r.spec(2)[1] == r.spec(3)[1], name, "keys and values have other lengths");
}

}  // namespace hpcdl
