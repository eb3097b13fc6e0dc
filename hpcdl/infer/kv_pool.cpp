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

KvPool::KvPool(std::int64_t layers, const Spec& layer, Device device) {
  require_pool("engine", layer);
  for (std::int64_t i = 0; i < 2 * layers; ++i) memory_.emplace_back(layer, device);
}

void KvPool::bind(Bindings& to) const {
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i / 2);
    to.bind(i % 2 == 0 ? name_of_keys(layer) : name_of_values(layer), memory_[i].tensor);
  }
}

void KvPool::copy_page(Stream& s, std::int32_t to, std::int32_t from) const {
  for (const auto& m : memory_) {
    const Tensor& all = m.tensor;
    const Spec page{{all[1], all[2], all[3]}, all.dtype()};
    const auto at = [&](std::int32_t i) { return Tensor(all.ptr<std::byte>() + i * page.bytes(), page, all.device()); };
    copy(s, at(to), at(from));
  }
}

}  // namespace hpcdl::infer
