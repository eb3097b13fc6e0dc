#include "hpcdl/infer/kv_pool.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace hpcdl::infer {

DType kv_type(std::string_view verb, std::string_view word) {
  constexpr std::array kTypes{DType::none, DType::bf16, DType::f32, DType::f16, DType::i8, DType::f8_e4m3};
  static_assert(kTypes.size() == kKvWords.size());
  for (std::size_t i = 0; i < kTypes.size(); ++i)
    if (word == kKvWords[i]) return kTypes[i];
  fail_usage(verb, "kv: expected {}, found {}", fmt::join(kKvWords, ", "), word);
}

std::string KvPool::name_of_keys(std::int64_t layer) { return fmt::format("pool.keys.{}", layer); }
std::string KvPool::name_of_values(std::int64_t layer) { return fmt::format("pool.values.{}", layer); }

KvPool::KvPool(std::span<const Layer> layers, Device device) {
  for (const auto& l : layers) {
    require_pool("engine", l.spec);
    layers_.push_back({OwnedTensor(l.spec, device), OwnedTensor(l.spec, device), l.window});
  }
}

void KvPool::bind(Bindings& to) const {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    to.bind(name_of_keys(static_cast<std::int64_t>(i)), layers_[i].keys.tensor);
    to.bind(name_of_values(static_cast<std::int64_t>(i)), layers_[i].values.tensor);
  }
}

void KvPool::copy_page(Stream& s, PagePair to, PagePair from) const {
  for (const auto& l : layers_)
    for (const auto* m : {&l.keys, &l.values}) {
      const Tensor& all = m->tensor;
      const Spec page{{all[1], all[2], all[3]}, all.dtype()};
      const auto at = [&](PagePair p) {
        return Tensor(all.ptr<std::byte>() + (l.window ? p.window : p.all) * page.bytes(), page, all.device());
      };
      copy(s, at(to), at(from));
    }
}

}  // namespace hpcdl::infer
