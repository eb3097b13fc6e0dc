#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/kv_cache/kv_cache.h"

namespace hpcdl::contract {

inline void kv_cache_cases(auto& to) {
  to.add_forward("kv_cache", "BxTxC", {"k_cache BTC", "v_cache BTC", "k BTC", "v BTC"},
                 {{16, 1024, 2048}, {4, 256, 768}},
                 [](const auto& v) { return append_to_cache(v[0], v[1], v[2], v[3]), v.none(); });
}

}  // namespace hpcdl::contract
