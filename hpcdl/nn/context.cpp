#include "hpcdl/nn/context.h"

#include <fmt/format.h>

#include "hpcdl/core/describe.h"

namespace hpcdl::nn {

std::string KvCache::name_of_keys(int layer) { return fmt::format("cache.keys.{}", layer); }
std::string KvCache::name_of_values(int layer) { return fmt::format("cache.values.{}", layer); }

void KvCache::bind(Bindings& to) const {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    to.bind(name_of_keys(static_cast<int>(i)), keys[i]);
    to.bind(name_of_values(static_cast<int>(i)), values[i]);
  }
}

KvCache KvCache::described(std::size_t layers, const Spec& spec) {
  const std::vector<Tensor> list(layers, Tensor(nullptr, spec));
  return {list, list};
}

std::string ForwardOptions::key() const {
  // Does not compile until a new option is named here as well.
  const auto& [dtype, again, drop, of_batch, keep, now, fused, trains, shared, smoothing, mixes, kv] = *this;
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", dtype_name(dtype), again, drop, of_batch, keep, now, fused,
                     trains, shared.has_value(), smoothing, mixes, kv ? to_string(kv->keys.at(0).spec()) : "-");
}

}  // namespace hpcdl::nn
